"""Convolutional and residual networks written in Flax, sampled by widebnn.

    python examples/wide_resnet.py

The wide residual network of Hron et al. (2022), without normalisers: residual blocks are scaled as Shao et al. (2020)
propose, so that the prior variance stays the same after any number of blocks. With h_0 = stem(x), g = relu and
k = 1 ... B,

    h_k = sqrt((k - 1 + B) / (k + B)) skip(h_{k-1}) + sqrt(1 / (k + B)) second(g(first(g(h_{k-1})))),
    Psi = [mean over positions of g(h_B) / sqrt(channels), 0.1].

Every parameter is N(0, 1) and every scale is part of the forward pass (NTK parametrisation), which is what
``widebnn.feature_map`` expects. The readout on top of Psi is integrated out: the chain moves in ``marginal``
coordinates, the hidden parameters only.
"""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import widebnn
from widebnn.data import load_dataset


class Scaled(nn.Module):
    """A dense layer over channels: f = sqrt(gain / fan-in) h w + bias_std b with w, b ~ N(0, 1)."""

    channels: int
    gain: float = 2.0
    bias_std: float = 0.1

    @nn.compact
    def __call__(self, h: jax.Array) -> jax.Array:
        """The layer at every position."""
        w = self.param("w", nn.initializers.normal(1.0), (h.shape[-1], self.channels))
        f = math.sqrt(self.gain / h.shape[-1]) * h @ w
        if self.bias_std:
            f = f + self.bias_std * self.param("b", nn.initializers.normal(1.0), (self.channels,))
        return f


def neighbours(h: jax.Array, stride: int = 1) -> jax.Array:
    """The 3 x 3 neighbourhood of every position as channels; images are periodic, which keeps the variance at borders.

    ``Scaled(c)(neighbours(h))`` is ``nn.Conv(c, (3, 3), padding="CIRCULAR")(h)`` as one matrix product. XLA's own
    convolution is slow inside of loops on CPUs, and all steps of a chain are one loop; on GPUs use ``nn.Conv``.
    """
    _, height, width, _ = h.shape
    padded = jnp.pad(h, ((0, 0), (1, 1), (1, 1), (0, 0)), "wrap")
    shifted = [padded[:, i : i + height : stride, j : j + width : stride] for i in range(3) for j in range(3)]
    return jnp.concatenate(shifted, axis=-1)


def readout_inputs(h: jax.Array) -> jax.Array:
    """Scaled so that the width does not matter, and a constant column for the readout's bias."""
    return jnp.concatenate([h / math.sqrt(h.shape[1]), jnp.full((len(h), 1), 0.1, h.dtype)], axis=1)


class WideResNet(nn.Module):
    """Groups of residual blocks; each group after the first halves the image and doubles the channels."""

    width: int
    blocks: tuple[int, ...] = (1, 1)

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """One row of features per image."""
        h = Scaled(self.width)(neighbours(x))
        k, total = 0, sum(self.blocks)
        for group, blocks in enumerate(self.blocks):
            channels = self.width * 2**group
            for block in range(blocks):
                k, stride = k + 1, 2 if group > 0 and block == 0 else 1
                branch = Scaled(channels)(neighbours(nn.relu(h), stride))
                branch = Scaled(channels)(neighbours(nn.relu(branch)))
                if stride > 1:
                    h = Scaled(channels, gain=1.0, bias_std=0.0)(h[:, ::stride, ::stride])
                h = math.sqrt((k - 1 + total) / (k + total)) * h + math.sqrt(1 / (k + total)) * branch
        return readout_inputs(nn.relu(h).mean(axis=(1, 2)))


class ConvNet(nn.Module):
    """Two convolutions; the readout sees every position."""

    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """One row of features per image."""
        h = nn.relu(Scaled(self.width)(neighbours(x)))
        h = nn.relu(Scaled(self.width)(neighbours(h)))
        return readout_inputs(h.reshape(len(h), -1))


def network_of(module: nn.Module, image_shape: tuple[int, int, int]) -> widebnn.networks.FeatureMap:
    """The module as a network of widebnn; its inputs are flattened images of shape (height, width, channels)."""
    shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, *image_shape)))
    return widebnn.feature_map(shapes, lambda p, x: module.apply(p, x.reshape(-1, *image_shape)))


def main(width: int = 8, rows: int = 60, steps: int = 40, burn_in: int = 60) -> dict[str, tuple[float, float]]:
    """Accuracy on 200 test images of digits and acceptance rate, for both networks."""
    data = load_dataset("digits", rows, 200)
    found = {}
    for module in (ConvNet(width), WideResNet(width)):
        name, network = type(module).__name__, network_of(module, (8, 8, 1))
        target = widebnn.posterior(network, data.x_train, data.y_train, noise=0.2, coordinates="marginal")
        collect = widebnn.track(target, data.x_test)
        # Short trajectories: the default, a quarter turn, takes many gradients in networks as narrow as these.
        result = widebnn.sample(target, "hilbert_hmc", num_steps=4, steps=steps, burn_in=burn_in, collect=collect)
        mean = result.draws["mean_test"].mean(axis=(0, 1))
        accuracy = float(np.mean(mean.argmax(axis=1) == data.y_test.argmax(axis=1)))
        found[name] = accuracy, result.acceptance_rate
        print(f"{name:10} {target.dimension:5} parameters, {accuracy:.0%} of test images right, ", end="")
        print(f"acceptance {result.acceptance_rate:.2f}")
    return found


if __name__ == "__main__":
    main()
