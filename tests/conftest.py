"""Shared fixtures. Tests run with double precision allowed, except those marked ``ambient``."""

import collections
import os
import signal
import sys
import warnings
from pathlib import Path

# With vmap, JAX factors a batch of matrices on XLA's thread pool and waits for it *inside* the pool: as many
# such calls at once as there are threads wait for each other for ever. The harness vmaps over replicates, so
# give the pool more threads than a two-core machine would. (sample() never batches: it cannot hang this way.)
os.environ.setdefault("NPROC", "8")
# Two test processes whose BLAS threads spin on two cores wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import jax
import pytest

from widebnn.compilation import compile_quickly

# Jobs in the background of a shell ignore Ctrl-C, and so would the programs that these tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Most of the time of these tests is compilation of small programs that run once.
compile_quickly()
ROOT = Path(__file__).resolve().parents[1]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """``some(n)``: all parameter cases of a test but ``n`` are long."""
    groups = {}
    for item in items:
        if item.get_closest_marker("some") and not item.get_closest_marker("long"):
            groups.setdefault((item.path, item.originalname), []).append(item)
    for cases in groups.values():
        kept = spread([item.callspec.params for item in cases], *cases[0].get_closest_marker("some").args)
        for i, item in enumerate(cases):
            if i not in kept:
                item.add_marker(pytest.mark.long)


def spread(cases, n):
    """Indices of n cases: each has as many parameter values as possible that are rare among those before it."""
    values = [[(name, repr(value)) for name, value in case.items()] for case in cases]
    kept, seen = [], collections.Counter()
    for _ in range(min(n, len(cases))):
        left = [i for i in range(len(cases)) if i not in kept]
        # Of equal ones that which is farthest from the others in the list.
        best = min(left, key=lambda i: (sum(seen[v] for v in values[i]), -min((abs(i - k) for k in kept), default=0)))
        kept.append(best)
        seen.update(values[best])
    return kept


@pytest.fixture(autouse=True)
def precision(request):
    """float64 available inside the test, as inside sample(); the global configuration stays as it is."""
    if request.node.get_closest_marker("ambient"):
        yield
    else:
        with jax.enable_x64(True):
            yield
    assert not jax.config.jax_enable_x64, "a test changed the global JAX configuration"


@pytest.fixture
def widebnn(monkeypatch, capsys):
    """The command line in this process: ``widebnn(*arguments)`` returns (exit code, stdout, stderr)."""
    from widebnn.cli import main

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["widebnn", *map(str, arguments)])
        with warnings.catch_warnings(), pytest.raises(SystemExit) as stop:
            warnings.simplefilter("always", UserWarning)
            main()
        return stop.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data sets, which is not part of the project."""
    folder = Path(os.environ.get("WIDEBNN_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real data not found at {folder}; set WIDEBNN_TEST_DATA to run this test")
    return folder
