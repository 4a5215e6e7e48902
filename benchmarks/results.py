"""Write docs/results.md from the measurements of uci.py, images.py and rows.py, and the table of rows of the README.

python benchmarks/results.py
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from common import ROOT, digits
from images import CELLS, SOFTMAX_ROWS
from report import RESULTS, table
from uci import DISTINCT, GP_ROWS, MANY_ROWS, MANY_SETTINGS, TABLES, is_current
from widebnn.estimators.base import DEEP_ROWS
from widebnn.estimators.chains import RHAT_LIMIT
from widebnn.limits import choose_hyperparameters

NAMES = {
    "widebnn": "widebnn",
    "nngp": "infinite-width limit",
    "gp": "Gaussian process (scikit-learn)",
    "ensemble": "deep ensemble",
}
IMAGES = {
    "widebnn regression": "widebnn, label regression",
    "nngp": "its infinite-width limit",
    "widebnn softmax": "widebnn, softmax",
    "nngp softmax": "its infinite-width limit",
    "logistic": "logistic regression",
}
BASIC = ("widebnn regression", "nngp", "logistic")
"""What every set of images has."""
REPEATS = 10
MAX_ROWS = inspect.signature(choose_hyperparameters).parameters["max_rows"].default
START, END = "<!-- rows: made by benchmarks/results.py -->", "<!-- end of rows -->"


def read(name: str) -> Any:
    """What a benchmark measured."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def listed(settings: dict[str, Any]) -> str:
    """What is not None."""
    return ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None)


def mean_and_error(values: Any) -> tuple[float, float]:
    """The mean over repeats and its standard error."""
    return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))


def is_near_best(by_method: dict[str, list[dict[str, Any]]], methods: list[str]) -> bool:
    """Whether widebnn has the best log-likelihood of these methods or is within one standard error of it.

    The splits are the same for all, so that the error of a difference is that of its pairs.
    """
    nll = {method: np.array([row["nll"] for row in by_method[method]]) for method in methods}
    best = min(nll, key=lambda method: nll[method].mean())
    gap, error = mean_and_error(nll["widebnn"] - nll[best])
    return gap <= max(error, mean_and_error(nll[best])[1])


def is_covered(by_method: dict[str, list[dict[str, Any]]]) -> bool:
    """Whether the 90 % intervals of widebnn hold about as many observations as they say."""
    return 0.87 <= float(np.mean([row["coverage_90"] for row in by_method["widebnn"]])) <= 0.93


def verdict(done: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """On how many tables widebnn is where it should be; of two forms of a table one is counted."""
    others = [method for method in NAMES if method != "nngp"]
    twice = [name for name in done if name.endswith(DISTINCT)]
    as_they_are = [name for name in done if name not in twice]
    without_copies = [name for name in done if name + DISTINCT not in done]

    def count(test: Callable[..., bool], names: list[str], *options: Any) -> str:
        found = [name for name in names if test(done[name], *options)]
        return f"{len(found)} of {len(names)} ({', '.join(found) or 'none'})"

    header = ["on how many tables", "as they are", "wine without copies"]
    tests: dict[str, tuple[Any, ...]] = {
        "best log-likelihood, or within one standard error of it": (is_near_best, list(NAMES)),
        "the same, the limit left out": (is_near_best, others),
        "90 % intervals cover 87 to 93 %": (is_covered,),
    }
    body = [
        [what, *(count(test, names, *options) for names in (as_they_are, without_copies))]
        for what, (test, *options) in tests.items()
    ]
    return table(header, body)


def uci_section(report: dict[str, Any]) -> str:
    """Every table beside every method."""
    parts = []
    rows = sorted(filter(is_current, report["rows"]), key=lambda row: row["repeat"])
    measured = Counter((row["table"], row["method"]) for row in rows)
    complete = [name for name in TABLES if all(measured[name, method] == REPEATS for method in NAMES)]
    missing = [name for name in TABLES if name not in complete]
    done = {
        name: {method: [row for row in rows if (row["table"], row["method"]) == (name, method)] for method in NAMES}
        for name in complete
    }
    for name, by_method in done.items():
        nll = {method: mean_and_error([row["nll"] for row in found]) for method, found in by_method.items()}
        best = min(nll, key=lambda method: nll[method][0])
        body = []
        for method, found in by_method.items():
            value, spread = nll[method]
            rmse = mean_and_error([row["rmse"] for row in found])
            body.append(
                [
                    NAMES[method],
                    f"{rmse[0]:.3f} ± {rmse[1]:.3f}",
                    f"{'**' if method == best else ''}{value:.3f} ± {spread:.3f}{'**' if method == best else ''}",
                    *(f"{np.mean([row[f'coverage_{level}'] for row in found]):.1%}" for level in (50, 90)),
                    digits(float(np.median([row["seconds"] for row in found]))),
                ]
            )
        header = ["method", "RMSE", "negative log-likelihood", "in 50 %", "in 90 %", "seconds"]
        networks = by_method["widebnn"]
        bent, heavy = (sum(row.get(name, False) for row in networks) for name in ("bent", "heavy"))
        ess, ratio = (np.median([row[name] for row in networks]) for name in ("ess", "rhat"))
        doubled = [2 * row["acceptance_rate"] for row in networks]  # of two chains, each of which may be at 0 or at 1
        still = sum(abs(rate - round(rate)) < 0.06 for rate in doubled)
        parts.append(
            f"### {name}\n\n{networks[0]['rows']} training rows, {len(networks)} splits; {bent} of the fits of widebnn "
            f"are on the asinh scale, {heavy} have heavy tails.\nMedians over its fits: {ess:.0f} effective draws, "
            f"R-hat {ratio:.2f}; in {still} of them a chain missed its step size.\n\n"
            f"{table(header, body)}\n"
        )
    settings = listed(report["settings"])
    ratios = [row["rhat"] for row in rows if row["method"] == "widebnn"]
    converged = f"{sum(ratio < RHAT_LIMIT for ratio in ratios)} of {len(ratios)}"
    return f"""## Tables

`python benchmarks/uci.py`, on UCI tables. Every repeat has its own split, nine tenths for training, seeded by its
number. Means over the splits ± their standard error, the smallest negative log-likelihood in bold; the median of the
seconds of fit and prediction, most of them with one of two cores. RMSE and log-likelihoods are in units of the target.

- widebnn is `WideBNNRegressor` with
  {settings}
  (with more than {MANY_ROWS} rows {listed(MANY_SETTINGS)}), everything else as it comes: narrower and with
  fewer draws than its defaults, so that all splits take a few hours. Effective draws and R-hat are those of the slowest
  direction of the function at the training inputs. The estimator warns from an R-hat of {RHAT_LIMIT} on: it is below
  that in {converged} fits, and with thousands of rows and hundreds of units nowhere near. Burn-ins as short as these do
  not always find the step size: a chain then stands still (acceptance 0) or creeps (acceptance 1) where the burn-in
  left it, and its draws are next to one network. With more than {DEEP_ROWS} rows one hidden layer only is tried.
  Fits with normal tails were made before there were others, and would not choose them today: how much better rows left
  out must be predicted for that was settled when the gains on these tables were known.
- The limit is the exact posterior of a network of infinite width with normal noise. One or two layers, activation,
  scales and the scale of the target are chosen by the evidence as for the network; its seconds do not count the search.
- The Gaussian process has a squared exponential kernel with a length scale per input. Its hyperparameters are fitted to
  at most {GP_ROWS} rows, those of widebnn and the limit to at most {MAX_ROWS}; all rows are conditioned on.
- The ensemble is five networks with two layers of 50 units that predict mean and variance, stopped early.
- One row in seven of wine-quality-red is a copy of another, target included, so that many test rows are training rows
  too. A Gaussian process takes copies for proof that there is no noise and predicts those rows nearly exactly, which
  dominates its log-likelihood; `widebnn` counts copies once when it chooses its hyperparameters, and does not do that.
  wine-quality-red{DISTINCT} is the same table with every row once, and says more about new wines; it was added when the
  results of the others were known. (concrete and power-plant hold copies too, 2.4 % and 0.4 % of their rows, and stay
  as they are.)

An error is the larger of that of the best method and that of the difference over the same splits.
{f"Not measured yet: {', '.join(missing)}." if missing else ""}

{verdict(done)}

{chr(10).join(parts)}"""


def images_section(report: dict[str, Any]) -> str:
    """Accuracy and calibration error."""
    cells = list(dict.fromkeys((row["data"], row["rows"]) for row in report["rows"]))
    found = {(row["data"], row["rows"], row["method"]): row for row in report["rows"]}
    body = []
    for data, rows in cells:
        for method, name in IMAGES.items():
            row = found.get((data, rows, method))
            if row is None:
                continue
            numbers = [f"{row['accuracy']:.1%}", f"{row['ece']:.3f}", f"{row['log_loss']:.3f}"]
            converged = f"{row['rhat']:.2f}" if "rhat" in row else ""
            body.append([f"{data}, {rows} images", name, *numbers, converged, digits(row["seconds"])])
    settings = listed(report["settings"])
    header = ["training images", "method", "accuracy", "calibration error", "log loss", "R-hat", "seconds"]
    ess = [row["ess"] for row in report["rows"] if "ess" in row]
    missing = [cell for cell in CELLS.split(",") if not set(BASIC) <= {m for d, n, m in found if f"{d}:{n}" == cell}]
    return f"""## Images

`python benchmarks/images.py`: dense networks on raw pixels, {settings}
(median {np.median(ess):.0f} effective draws of the slowest direction of the function at the training inputs).
Accuracy, expected calibration error (15 bins of equal width) and log loss on 700 (digits) and 1000 (CIFAR-10) test
images. A limit has the hyperparameters of the network above it, and its seconds do not count the search for them; with
the softmax likelihood it is sampled too. Hyperparameters are chosen by the evidence of label regression in both cases.
R-hat is that of the slowest direction too: where it is well above 1, as with more rows than units, the chains have
not converged, and the estimator warns. With more than {SOFTMAX_ROWS} images there is label regression only. The seconds
were taken with other work on the machine, those of 4096 images on one core. All networks but that of 4096 images were
measured when a fit that fell short made a second run, no longer than the first, and kept that one.
{f"Not yet whole: {', '.join(missing)}." if missing else ""}

{table(header, body)}
"""


def rows_table(report: list[dict[str, Any]]) -> str:
    """Time and memory against rows."""
    header = [
        "rows",
        "choosing hyperparameters",
        "compiling",
        f"one draw ({report[0]['gradients_per_draw']} gradients)",
    ]
    header += ["precision", "peak memory"]
    body = [
        [
            f"{row['rows']:,}".replace(",", " "),
            f"{row['evidence_seconds']:.0f} s",
            f"{row['compile_seconds']:.0f} s",
            f"{digits(row['seconds_per_draw'])} s",
            row["dtype"],
            f"{row['peak_memory_gb']:.1f} GB",
        ]
        for row in report
    ]
    return table(header, body)


def page() -> str:
    """docs/results.md."""
    rows = read("rows")
    what = (
        f"`python benchmarks/rows.py`: {rows[0]['width']} units in one hidden layer, eight inputs, noise of a tenth of "
    )
    what += "the signal."
    sections = [uci_section(read("uci")), images_section(read("images")), f"## Rows\n\n{what}\n\n{rows_table(rows)}\n"]
    return "# Results\n\nMade by `python benchmarks/results.py` from `benchmarks/results`.\n\n" + "\n".join(sections)


def with_rows(readme: str) -> str:
    """The README with its table of rows."""
    before, rest = readme.split(START)
    return f"{before}{START}\n{rows_table(read('rows'))}\n{END}{rest.split(END)[1]}"


def main() -> None:
    """Write both files."""
    readme = ROOT / "README.md"
    readme.write_text(with_rows(readme.read_text()))
    (ROOT / "docs" / "results.md").write_text(page())


if __name__ == "__main__":
    main()
