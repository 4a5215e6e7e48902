"""Convolutional and residual networks for images, in the NTK parametrisation.

All parameters are N(0, 1) a priori and all scales stand in the forward pass. A convolution with a k x k kernel w
and c input channels is, at position p, summed over offsets t of the kernel and input channels i,

    f(p) = (sw / sqrt(k^2 c)) sum_t sum_i h(s p + t)_i w(t)_i + sb b.

Images are padded so that stride s makes ceil(side / s) out of a side (``SAME`` in JAX; of an odd number of rows the
larger part comes after the image), with zeros or (``circular``) as if they were periodic. Where a kernel meets zeros
the variance of f is smaller: a 3 x 3 kernel keeps 84% of it on average over 8 x 8 positions, 44% on 2 x 2. With many
convolutions on small images this adds up; circular padding loses nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widebnn.errors import WidebnnError, check_choice, check_integer, check_real
from widebnn.networks.activations import activation_function
from widebnn.noise import standard_normal

POOLINGS = ("mean", "flatten")
LAYOUTS = ("hwc", "chw")
PADDINGS = {"zeros": "constant", "circular": "wrap"}
"""The names here and those of jnp.pad."""
GROUP_STRIDE = 2
"""How much each group of a residual network after the first shrinks the sides of its images."""


class ConvLayer(NamedTuple):
    """One convolution: kernels (k x k x inputs x channels) and biases (channels), all N(0, 1) a priori."""

    w: jax.Array
    b: jax.Array


class ResidualBlock(NamedTuple):
    """The two convolutions of a branch and, where the block changes the shape, the skip's 1 x 1 kernel."""

    first: ConvLayer
    second: ConvLayer
    projection: jax.Array | None
    """1 x 1 x inputs x channels; None where the skip is the identity."""


class ResidualWeights(NamedTuple):
    """The hidden parameters of a residual network."""

    stem: ConvLayer
    blocks: tuple[ResidualBlock, ...]


class _BlockShape(NamedTuple):
    inputs: int
    channels: int
    stride: int

    @property
    def projected(self) -> bool:
        return self.stride != 1 or self.inputs != self.channels


@dataclass(frozen=True)
class ConvNetwork:
    """A convolutional network; build it with :func:`conv`, which checks the arguments.

    h_0 = x,   h_{l+1} = g(f_{l+1}) with the convolution f_{l+1} of h_l that stands at the top of this module,
    Psi = [(sw_out / sqrt(c_L)) mean_p h_L(p), sb_out 1]                       for pooling ``mean``,
    Psi = [(sw_out / sqrt(c_L P)) (h_L(1), ..., h_L(P)), sb_out 1]             for ``flatten``, P positions.
    """

    image_shape: tuple[int, int, int]
    channels: tuple[int, ...]
    activation: str
    kernel_size: int
    strides: tuple[int, ...]
    pooling: str
    padding: str
    layout: str
    weight_std: float
    bias_std: float
    readout_weight_std: float
    readout_bias_std: float

    @property
    def input_dim(self) -> int:
        """Number of columns of a flattened image."""
        return math.prod(self.image_shape)

    @property
    def feature_dim(self) -> int:
        """Number of columns of Psi, the constant one included."""
        if self.pooling == "mean":
            return self.channels[-1] + 1
        height, width, _ = self.image_shape
        for stride in self.strides:
            height, width = -(-height // stride), -(-width // stride)
        return height * width * self.channels[-1] + 1

    def sample_hidden(self, key: jax.Array, dtype: Any = jnp.float32) -> tuple[ConvLayer, ...]:
        """Draw all hidden layers from N(0, 1)."""
        fan_ins = (self.image_shape[2], *self.channels[:-1])
        keys = jax.random.split(key, len(self.channels))
        return tuple(
            _sample_layer(layer_key, self.kernel_size, inputs, outputs, dtype)
            for layer_key, inputs, outputs in zip(keys, fan_ins, self.channels, strict=True)
        )

    def features(self, hidden: Sequence[ConvLayer], x: jax.Array) -> jax.Array:
        """Psi, one row per image; ``x`` holds images or flattened images."""
        g = activation_function(self.activation)
        h = _images(x, self.image_shape, self.layout)
        for layer, stride in zip(hidden, self.strides, strict=True):
            h = g(_layer(h, layer, stride, self.padding, self.weight_std, self.bias_std))
        h = jnp.mean(h, axis=(1, 2)) if self.pooling == "mean" else h.reshape(h.shape[0], -1)
        return _readout_inputs(h, self.readout_weight_std, self.readout_bias_std)


@dataclass(frozen=True)
class ResidualNetwork:
    """A residual network without normalisers; build it with :func:`resnet`, which checks the arguments.

    h_0 = stem(x),   h_{l+1} = sqrt(1 - a^2) skip(h_l) + a second(g(first(g(h_l)))),
    Psi = [(sw_out / sqrt(c)) mean_p g(h_L(p)), sb_out 1].

    stem, first and second are convolutions with weights and biases; first has the stride of the block. The skip is
    the identity, or where the shape changes a 1 x 1 convolution with that stride, without bias and with scale
    1 / sqrt(c): no activation comes before it, so this keeps the variance as it is. The variance after a block is
    (1 - a^2) times that of the skip plus a^2 times that of the branch. For relu and sw = sqrt(2) the two are equal up
    to the biases: the variance is the same after any number of blocks.
    """

    image_shape: tuple[int, int, int]
    channels: tuple[int, ...]
    blocks: tuple[int, ...]
    activation: str
    kernel_size: int
    branch_scale: float
    padding: str
    layout: str
    weight_std: float
    bias_std: float
    readout_weight_std: float
    readout_bias_std: float

    @property
    def input_dim(self) -> int:
        """Number of columns of a flattened image."""
        return math.prod(self.image_shape)

    @property
    def feature_dim(self) -> int:
        """Number of columns of Psi: the channels of the last group and the constant one."""
        return self.channels[-1] + 1

    def sample_hidden(self, key: jax.Array, dtype: Any = jnp.float32) -> ResidualWeights:
        """Draw the stem and all blocks from N(0, 1)."""
        shapes = _block_shapes(self.channels, self.blocks)
        stem_key, *block_keys = jax.random.split(key, 1 + len(shapes))
        stem = _sample_layer(stem_key, self.kernel_size, self.image_shape[2], self.channels[0], dtype)
        blocks = []
        for block_key, shape in zip(block_keys, shapes, strict=True):
            first_key, second_key, skip_key = jax.random.split(block_key, 3)
            kernel = (1, 1, shape.inputs, shape.channels)
            blocks.append(
                ResidualBlock(
                    _sample_layer(first_key, self.kernel_size, shape.inputs, shape.channels, dtype),
                    _sample_layer(second_key, self.kernel_size, shape.channels, shape.channels, dtype),
                    standard_normal(skip_key, kernel, dtype) if shape.projected else None,
                )
            )
        return ResidualWeights(stem, tuple(blocks))

    def features(self, hidden: ResidualWeights, x: jax.Array) -> jax.Array:
        """Psi, one row per image; ``x`` holds images or flattened images."""
        g = activation_function(self.activation)
        convolution = functools.partial(
            _layer, padding=self.padding, weight_std=self.weight_std, bias_std=self.bias_std
        )
        skip_scale = math.sqrt(1 - self.branch_scale**2)
        h = convolution(_images(x, self.image_shape, self.layout), hidden.stem, 1)
        for block, shape in zip(hidden.blocks, _block_shapes(self.channels, self.blocks), strict=True):
            branch = convolution(g(convolution(g(h), block.first, shape.stride)), block.second, 1)
            if block.projection is not None:
                h = convolve(h, block.projection, shape.stride, self.padding) / math.sqrt(shape.inputs)
            h = skip_scale * h + self.branch_scale * branch
        return _readout_inputs(jnp.mean(g(h), axis=(1, 2)), self.readout_weight_std, self.readout_bias_std)


def conv(
    image_shape: Sequence[int],
    channels: Sequence[int] | int,
    activation: str = "gelu",
    *,
    kernel_size: int = 3,
    strides: Sequence[int] | int = 1,
    pooling: str = "mean",
    padding: str = "zeros",
    layout: str = "hwc",
    weight_std: float = math.sqrt(2.0),
    bias_std: float = 0.1,
    readout_weight_std: float = 1.0,
    readout_bias_std: float = 0.1,
) -> ConvNetwork:
    """A network of ``len(channels)`` convolutions for images of ``image_shape`` = (height, width, channels).

    ``strides`` is one number or one for each convolution; ``padding`` is ``zeros`` or ``circular``. ``pooling`` is what
    the readout sees: the mean over positions, or with ``flatten`` all positions. Inputs are n x height x width x
    channels, or flattened, n x pixels, or n x height x width if there is one channel. ``layout="chw"`` is for inputs
    whose axes, flattened or not, are channels, height, width, such as the columns of widebnn.data's CIFAR-10;
    ``image_shape`` stays as it is. Activations: gelu (exact), relu, erf, tanh, sin.
    """
    shape = _check_image_shape(image_shape)
    channels = _check_integers("channels", channels)
    kernel_size = check_integer("kernel_size", kernel_size, 1)
    strides = _check_integers("strides", strides, len(channels), "convolution")
    check_choice("padding", padding, PADDINGS)
    sides = shape[:2]
    for number, stride in enumerate(strides, start=1):
        sides = _check_sides(f"convolution {number}", sides, kernel_size, stride, padding, "smaller strides")
    activation_function(activation)
    return ConvNetwork(
        image_shape=shape,
        channels=channels,
        activation=activation,
        kernel_size=kernel_size,
        strides=strides,
        pooling=check_choice("pooling", pooling, POOLINGS),
        padding=padding,
        layout=check_choice("layout", layout, LAYOUTS),
        weight_std=check_real("weight_std", weight_std, above=0),
        bias_std=check_real("bias_std", bias_std, at_least=0),
        readout_weight_std=check_real("readout_weight_std", readout_weight_std, above=0),
        readout_bias_std=check_real("readout_bias_std", readout_bias_std, at_least=0),
    )


def resnet(
    image_shape: Sequence[int],
    channels: Sequence[int] | int = (64, 128, 256),
    blocks: Sequence[int] | int = 2,
    activation: str = "relu",
    *,
    kernel_size: int = 3,
    branch_scale: float = math.sqrt(0.5),
    padding: str = "zeros",
    layout: str = "hwc",
    weight_std: float = math.sqrt(2.0),
    bias_std: float = 0.1,
    readout_weight_std: float = 1.0,
    readout_bias_std: float = 0.1,
) -> ResidualNetwork:
    """A wide residual network (Zagoruyko and Komodakis, 2016) without batch normalisation.

    A stem convolution with ``channels[0]`` channels, then one group of residual blocks for each entry of ``channels``;
    ``blocks`` is one number or one for each group. Each group after the first halves the sides of the images.
    ``branch_scale`` is a in sqrt(1 - a^2) skip + a branch, above 0 and at most 1, where there is no skip.
    With relu, the default here, and ``weight_std`` sqrt(2) the prior variance does not depend on the number of blocks
    (but for the biases, and for zeros at the border); with gelu each convolution of a branch loses 15% of a variance of
    1, and more of a smaller one. Inputs, ``padding`` and ``layout`` are as for :func:`conv`; the readout sees the mean
    over positions.
    """
    shape = _check_image_shape(image_shape)
    channels = _check_integers("channels", channels)
    blocks = _check_integers("blocks", blocks, len(channels), "group")
    kernel_size = check_integer("kernel_size", kernel_size, 1)
    check_choice("padding", padding, PADDINGS)
    sides = _check_sides("the stem", shape[:2], kernel_size, 1, padding, "fewer groups")
    for group in range(len(channels)):
        sides = _check_sides(
            f"group {group + 1}", sides, kernel_size, GROUP_STRIDE if group else 1, padding, "fewer groups"
        )
        _check_sides(f"group {group + 1}", sides, kernel_size, 1, padding, "fewer groups")
    activation_function(activation)
    return ResidualNetwork(
        image_shape=shape,
        channels=channels,
        blocks=blocks,
        activation=activation,
        kernel_size=kernel_size,
        branch_scale=check_real("branch_scale", branch_scale, above=0, at_most=1),
        padding=padding,
        layout=check_choice("layout", layout, LAYOUTS),
        weight_std=check_real("weight_std", weight_std, above=0),
        bias_std=check_real("bias_std", bias_std, at_least=0),
        readout_weight_std=check_real("readout_weight_std", readout_weight_std, above=0),
        readout_bias_std=check_real("readout_bias_std", readout_bias_std, at_least=0),
    )


# --- The forward pass


def convolve(h: jax.Array, w: jax.Array, stride: int, padding: str = "zeros") -> jax.Array:
    """The convolution of images (n x height x width x c) with kernels (k x k x c x channels), without any scale.

    On CPUs XLA runs a convolution inside a loop, where sample() has all of its steps, tens of times slower than
    outside; a matrix product has the same speed in both, for k^2 times the memory of the images.
    """
    k = w.shape[0]
    pads = jax.lax.padtype_to_pads(h.shape[1:3], (k, k), (stride, stride), "SAME")
    padded = jnp.pad(h, ((0, 0), *pads, (0, 0)), PADDINGS[padding])
    dtype = jnp.result_type(h, w)
    return jax.lax.platform_dependent(
        padded.astype(dtype),
        w.astype(dtype),
        cpu=functools.partial(convolve_by_product, stride=stride),
        default=functools.partial(convolve_by_xla, stride=stride),
    )


def convolve_by_xla(padded: jax.Array, w: jax.Array, stride: int) -> jax.Array:
    """XLA's own convolution, with the positions where the whole kernel fits in."""
    return jax.lax.conv_general_dilated(
        padded, w, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"), precision="highest"
    )


def convolve_by_product(padded: jax.Array, w: jax.Array, stride: int) -> jax.Array:
    """The same as one matrix product: what the kernel meets at each position, times the kernel as a matrix."""
    n, height, width, inputs = padded.shape
    k, _, _, channels = w.shape
    rows, columns = (height - k) // stride + 1, (width - k) // stride + 1
    met = [
        padded[:, i : i + (rows - 1) * stride + 1 : stride, j : j + (columns - 1) * stride + 1 : stride]
        for i in range(k)
        for j in range(k)
    ]
    patches = jnp.concatenate(met, axis=3).reshape(n * rows * columns, k * k * inputs)
    product = jnp.matmul(patches, w.reshape(k * k * inputs, channels), precision="highest")
    return product.reshape(n, rows, columns, channels)


def _layer(h: jax.Array, layer: ConvLayer, stride: int, padding: str, weight_std: float, bias_std: float) -> jax.Array:
    fan_in = math.prod(layer.w.shape[:3])
    return weight_std / math.sqrt(fan_in) * convolve(h, layer.w, stride, padding) + bias_std * layer.b


def _readout_inputs(h: jax.Array, weight_std: float, bias_std: float) -> jax.Array:
    constant = jnp.full((h.shape[0], 1), bias_std, h.dtype)
    return jnp.concatenate([weight_std / math.sqrt(h.shape[1]) * h, constant], axis=1)


def _images(x: jax.Array, image_shape: tuple[int, int, int], layout: str) -> jax.Array:
    """``x`` as n x height x width x channels."""
    height, width, channels = image_shape
    axes = image_shape if layout == "hwc" else (channels, height, width)
    accepted = {axes, (math.prod(axes),)} | ({(height, width)} if channels == 1 else set())
    if x.shape[1:] not in accepted:
        expected = " x ".join(map(str, ("n", *axes)))
        raise WidebnnError(
            f"the network expects images of shape {expected} or, flattened, n x {math.prod(axes)}; got {x.shape}. "
            f"Reshape them, or change image_shape={image_shape} or layout={layout!r} of the network."
        )
    x = x.reshape(x.shape[0], *axes)
    return x if layout == "hwc" else jnp.moveaxis(x, 1, 3)


# --- Parameters


def _sample_layer(key: jax.Array, kernel_size: int, inputs: int, outputs: int, dtype: Any) -> ConvLayer:
    w_key, b_key = jax.random.split(key)
    return ConvLayer(
        standard_normal(w_key, (kernel_size, kernel_size, inputs, outputs), dtype),
        standard_normal(b_key, (outputs,), dtype),
    )


def _block_shapes(channels: tuple[int, ...], blocks: tuple[int, ...]) -> list[_BlockShape]:
    """All blocks in order: only the first block of a group may change the shape."""
    shapes = []
    inputs = channels[0]
    for group, (outputs, count) in enumerate(zip(channels, blocks, strict=True)):
        for block in range(count):
            shapes.append(_BlockShape(inputs, outputs, GROUP_STRIDE if group and not block else 1))
            inputs = outputs
    return shapes


# --- Checks


def _check_image_shape(value: Any) -> tuple[int, int, int]:
    value = value.tolist() if isinstance(value, np.ndarray) else value
    sizes = tuple(value) if isinstance(value, Sequence) else (value,)
    if len(sizes) != 3:
        raise WidebnnError(
            f"image_shape must be (height, width, channels), got {value!r}; for grey images use (height, width, 1)."
        )
    height, width, channels = (check_integer("each entry of image_shape", size, 1) for size in sizes)
    return height, width, channels


def _check_integers(name: str, value: Any, count: int | None = None, each: str = "") -> tuple[int, ...]:
    """A tuple of positive integers; where ``count`` is known, one number stands for ``count`` equal ones."""
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(value, Sequence):
        return (check_integer(name, value, 1),) * (count or 1)
    numbers = tuple(check_integer(f"each entry of {name}", number, 1) for number in value)
    if not numbers:
        raise WidebnnError(f"{name} is empty: at least one number is needed.")
    if count is not None and len(numbers) != count:
        raise WidebnnError(
            f"{name} must be one number or one for each {each}, {count} in all; got {len(numbers)}: {value}."
        )
    return numbers


def _check_sides(
    layer: str, sides: tuple[int, int], kernel_size: int, stride: int, padding: str, remedy: str
) -> tuple[int, int]:
    """The sides of the image after a convolution, if every weight of its kernel meets the image somewhere."""
    after = -(-sides[0] // stride), -(-sides[1] // stride)
    for side, positions in zip(sides, after, strict=True):
        ((before, _),) = jax.lax.padtype_to_pads((side,), (kernel_size,), (stride,), "SAME")
        # The first weight in its last position, the last weight in its first one.
        meets = (positions - 1) * stride - before >= 0 and kernel_size - 1 - before <= side - 1
        if stride > side or not (meets or padding == "circular"):
            raise WidebnnError(
                f"{layer} gets images of {sides[0]} x {sides[1]}, too small for kernel_size={kernel_size} and stride "
                f"{stride}: the stride must fit in, and no weight of the kernel may meet zeros only. "
                f"Use larger images, a smaller kernel_size or {remedy}."
            )
    return after
