"""The scripts in examples/ run as they are, some of them shorter, and find what they say."""

import importlib.util
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import psutil
import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
pytestmark = pytest.mark.ambient


def load(name):
    """An example as a module."""
    specification = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # where dataclasses look for their annotations
    specification.loader.exec_module(module)
    return module


def test_every_example_is_tested():
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in EXAMPLES.glob("*.py")} <= tested


@pytest.mark.long
def test_blackjax_kernels():
    means = load("blackjax_kernels").main(steps=200, warmup=200)
    ours = means["widebnn, auto"]
    assert len(means) == 3 and np.ptp(ours) > 1
    for name, mean in means.items():
        assert np.max(np.abs(mean - ours)) < 0.05, name


def test_own_target():
    found = load("own_target").main(size=50, steps=10_000)
    assert np.max(np.abs(found["pcn"] - found["hilbert_hmc"])) < 0.2
    assert np.sqrt(np.mean((found["hilbert_hmc"] - found["truth"]) ** 2)) < 0.35
    # By 200,000 steps of pCN.
    np.testing.assert_allclose(found["intercept"], 0.85, atol=0.08)
    np.testing.assert_allclose(found["slopes"][:2], [1.67, -0.17], atol=0.08)


@pytest.mark.long
def test_numpyro_model():
    example = load("numpyro_model")
    means = example.main(steps=400, warmup=200)
    assert means["widebnn"].keys() == means["NumPyro"].keys() == {"intercept", "slopes"}
    for name, mean in means["widebnn"].items():
        np.testing.assert_allclose(mean, means["NumPyro"][name], atol=0.12)

    def positive(x):
        example.numpyro.sample("scale", example.dist.HalfNormal(1.0))

    with pytest.raises(TypeError, match="scale is HalfNormal"):
        example.target_of(positive, 0)


@pytest.mark.long
def test_flax_features():
    found = load("flax_features").main(steps=60, burn_in=120)
    # The parameters of both have the same names in the same order, so the chains are the same but for rounding.
    np.testing.assert_allclose(found["linen"][0], found["nnx"][0], atol=0.05)
    assert all(rate > 0.6 and np.ptp(mean) > 1 for mean, rate in found.values())


def prior_second_moment(module, image, draws):
    """E |Psi|^2 over the prior of the hidden parameters: the mean and its standard error."""
    example = load("wide_resnet")
    network = example.network_of(module, image.shape)

    def square(key):
        return jnp.sum(network.features(network.sample_hidden(key, jnp.float32), image.reshape(1, -1)) ** 2)

    values = np.asarray(jax.jit(lambda keys: jax.lax.map(square, keys))(jax.random.split(jax.random.key(0), draws)))
    return values.mean(), values.std() / np.sqrt(draws)


@pytest.mark.long
def test_wide_resnet():
    example = load("wide_resnet")
    found = example.main(width=4, rows=30, steps=10, burn_in=30)
    for name, (accuracy, rate) in found.items():
        assert accuracy > 0.2 and 0.3 < rate < 1, name


@pytest.mark.parametrize("stride", [1, 2])
def test_neighbours_make_a_convolution(stride):
    """The matrix product is Flax's convolution with the same kernel."""
    example = load("wide_resnet")
    h, w = (np.random.default_rng(0).normal(size=s).astype(np.float32) for s in ((2, 6, 4, 3), (3, 3, 3, 5)))
    layer = example.nn.Conv(5, (3, 3), padding="CIRCULAR", use_bias=False, precision="highest")
    expected = layer.apply({"params": {"kernel": w}}, h)[:, ::stride, ::stride]
    np.testing.assert_allclose(example.neighbours(h, stride) @ w.reshape(27, 5), expected, atol=1e-4)


@pytest.mark.some(1)
@pytest.mark.parametrize("width", [2, 16])
def test_the_second_moment_of_a_convolutional_network_is_exact_at_any_width(width):
    """relu halves second moments and a convolution doubles their mean over positions: v <- v + 0.1^2, from x^2."""
    image = np.random.default_rng(0).normal(size=(6, 6, 1)).astype(np.float32)
    expected = (2 * np.mean(image**2) + 0.1**2 + 0.1**2) / 2 + 0.1**2
    value, error = prior_second_moment(load("wide_resnet").ConvNet(width), image, 3000)
    assert error < 0.05 * expected
    assert abs(value - expected) < 4.5 * error


@pytest.mark.long
@pytest.mark.parametrize("blocks", [(3,), (1, 1)])
def test_the_second_moment_of_the_residual_network_does_not_depend_on_its_depth(blocks):
    """All positions of a constant image are alike: v <- (1 - a^2) v + a^2 (v + 2 * 0.1^2) with a^2 = 1 / (k + B)."""
    image, total = np.full((4, 4, 1), 1.5, np.float32), sum(blocks)
    v = 2 * 1.5**2 + 0.1**2
    for k in range(1, total + 1):
        v += 2 * 0.1**2 / (k + total)
    expected = v / 2 + 0.1**2
    value, error = prior_second_moment(load("wide_resnet").WideResNet(24, blocks), image, 800)
    assert error < 0.04 * expected
    assert abs(value - expected) < 4.5 * error


def test_equinox_features():
    mean, std, rate = load("equinox_features").main(steps=60, burn_in=60)
    truth = np.sin(2 * np.linspace(-1.8, 1.8, 7))
    assert np.all(np.abs(mean - truth) < 4 * std) and rate > 0.6


# What ArviZ-plots does with Matplotlib is not ours.
@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The scale 'SquareRootScale':PendingDeprecationWarning")
def test_arviz_figures(tmp_path):
    for path in load("arviz_figures").main(tmp_path, width=16, steps=100):
        image = matplotlib.image.imread(path)
        assert image.shape[0] > 100 and image.shape[1] > 300
        # Something is drawn in each: every chain has a colour.
        assert len(np.unique(image[..., :3].reshape(-1, 3), axis=0)) > 50, path


@pytest.mark.long
def test_posterior_and_limit(tmp_path, capsys):
    path = load("posterior_and_limit").main(tmp_path, width=16, steps=100, chains=2)
    assert matplotlib.image.imread(path).shape[1] > 1000
    assert "largest R-hat" in capsys.readouterr().out


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="lists the sockets of a process")
def test_many_processes_listen_on_the_coordinators_address_only(tmp_path):
    """The first of two processes waits for the second; meanwhile nobody reaches it from another machine."""
    address = free_address()
    command = [sys.executable, EXAMPLES / "many_processes.py", "--coordinator", address, "--processes", "2"]
    command += ["--process", "0", "--store", tmp_path]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        try:
            watched, listening, deadline = psutil.Process(first.pid), set(), time.monotonic() + 60
            while not listening and first.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
                sockets = watched.net_connections("inet")
                listening = {f"{one.laddr.ip}:{one.laddr.port}" for one in sockets if one.status == psutil.CONN_LISTEN}
        finally:
            first.kill()
    # A socket for both families shows an address of IPv4 as one of IPv6.
    assert {one.removeprefix("::ffff:") for one in listening} == {address}


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.long
def test_many_processes(tmp_path):
    """Two processes on this machine find what one finds."""

    def start(*arguments):
        command = [sys.executable, EXAMPLES / "many_processes.py", "--steps", "30", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    both = ["--coordinator", free_address(), "--processes", "2", "--store", tmp_path / "two"]
    two = [start(*both, "--process", str(i)) for i in range(2)]
    outputs = [child.communicate(timeout=300) for child in two]
    assert [child.returncode for child in two] == [0, 0], outputs
    assert "devices" not in outputs[1][0] and "2 devices of 2 processes" in outputs[0][0]
    mean = load("many_processes").main(steps=30)
    printed = [float(found) for found in re.findall(r"= ([+-][\d.]+),", outputs[0][0])]
    np.testing.assert_allclose(printed, mean, atol=0.006)
