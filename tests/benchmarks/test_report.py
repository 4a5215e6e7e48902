"""The pages of benchmarks and of the reproduction are made of the committed measurements and nothing else."""

from pathlib import Path

import numpy as np

import report
import reproduction
from growth import exponent

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_what_the_measurements_say():
    assert (ROOT / "docs" / "benchmarks.md").read_text() == report.page(), "run python benchmarks/report.py"


def test_the_reproduction_is_what_the_run_says():
    page = (ROOT / "docs" / "reproduction.md").read_text()
    assert page == reproduction.page(), "run python benchmarks/reproduction.py"


def test_exponent_of_a_power_law():
    sizes = [64, 128, 256, 512]
    np.testing.assert_allclose(exponent(sizes, [3 * size**1.5 for size in sizes]), 1.5)
