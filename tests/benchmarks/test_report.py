"""The pages of benchmarks and of the reproduction are made of the committed measurements and nothing else."""

from pathlib import Path

import numpy as np
import pandas as pd

import report
import reproduction
import results
from growth import exponent

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_what_the_measurements_say():
    assert (ROOT / "docs" / "benchmarks.md").read_text() == report.page(), "run python benchmarks/report.py"


def test_the_reproduction_is_what_the_run_says():
    page = (ROOT / "docs" / "reproduction.md").read_text()
    assert page == reproduction.page(), "run python benchmarks/reproduction.py"


def test_the_results_are_what_the_measurements_say():
    assert (ROOT / "docs" / "results.md").read_text() == results.page(), "run python benchmarks/results.py"
    guide = results.GUIDE.read_text()
    assert guide == results.with_rows(guide), "run python benchmarks/results.py"


def row(method, repeat, nll, coverage=0.9):
    return {"method": method, "repeat": repeat, "nll": nll, "coverage_90": coverage}


def test_near_the_best_is_within_one_standard_error():
    """Of the best method or of the difference, whichever is larger; splits are compared with themselves."""
    best = [row("gp", i, value) for i, value in enumerate([1.0, 2.0, 3.0])]  # standard error 0.577
    for gap, near in ((0.5, True), (0.6, False)):
        widebnn = [row("widebnn", i, value + gap) for i, value in enumerate([1.0, 2.0, 3.0])]
        assert results.is_near_best(pd.DataFrame(best + widebnn), ["gp", "widebnn"]) is near
    noisy = [row("widebnn", i, value) for i, value in enumerate([0.0, 2.0, 6.0])]  # worse by 0.667, error 1.2
    assert results.is_near_best(pd.DataFrame(best + noisy), ["gp", "widebnn"])


def test_a_table_counts_in_one_form_only():
    """With its copies in the first column, without them in the second."""

    def methods(nll):
        rates = {method: [0.0, 0.01, 0.02] for method in results.NAMES} | {"widebnn": [nll] * 3}
        return pd.DataFrame(row(method, i, rates[method][i]) for method in rates for i in range(3))

    done = {"wine": methods(1.0), "wine-distinct": methods(0.0), "yacht": methods(0.0)}
    line = next(line for line in results.verdict(done).splitlines() if "best" in line)
    assert [cell.strip() for cell in line.split("|")[2:4]] == ["1 of 2 (yacht)", "2 of 2 (wine-distinct, yacht)"]


def test_exponent_of_a_power_law():
    sizes = [64, 128, 256, 512]
    np.testing.assert_allclose(exponent(sizes, [3 * size**1.5 for size in sizes]), 1.5)
