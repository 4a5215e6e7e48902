"""Write docs/results.md from the measurements of uci.py, images.py and rows.py, and the table of rows of the README.

python benchmarks/results.py
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from typing import Any

import numpy as np

from common import ROOT, digits
from images import CELLS
from report import RESULTS, table
from uci import GP_ROWS, TABLES, is_current
from widebnn.networks.evidence import choose_hyperparameters

NAMES = {
    "widebnn": "widebnn",
    "nngp": "its infinite-width limit",
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
EARLIER = """- Earlier versions of widebnn and the limit, where a table says so, fitted hyperparameters to at most 1000
  rows, tuned step sizes less well, and predicted by mixtures of more and narrower normals. The limit looked for
  hyperparameters of its own, which its seconds count.
"""
START, END = "<!-- rows: made by benchmarks/results.py -->", "<!-- end of rows -->"


def read(name: str) -> Any:
    """What a benchmark measured."""
    return json.loads((RESULTS / f"{name}.json").read_text())


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


def uci_section(report: dict[str, Any]) -> str:
    """Every table beside every method."""
    parts, near, near_others, covered = [], [], [], []
    measured = Counter((row["table"], row["method"]) for row in report["rows"])
    done = [name for name in TABLES if all(measured[name, method] == REPEATS for method in NAMES)]
    missing = [name for name in TABLES if name not in done]
    for name in done:
        rows = sorted((row for row in report["rows"] if row["table"] == name), key=lambda row: row["repeat"])
        by_method = {method: [row for row in rows if row["method"] == method] for method in NAMES}
        nll = {method: mean_and_error([row["nll"] for row in found]) for method, found in by_method.items()}
        best = min(nll, key=lambda method: nll[method][0])
        if is_near_best(by_method, list(NAMES)):
            near.append(name)
        if is_near_best(by_method, [method for method in NAMES if method != "nngp"]):
            near_others.append(name)
        coverage = float(np.mean([row["coverage_90"] for row in by_method["widebnn"]]))
        if 0.87 <= coverage <= 0.93:
            covered.append(name)
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
        bent = sum(row["bent"] for row in by_method["widebnn"])
        older = {NAMES[row["method"]] for row in rows if not is_current(row)}
        parts.append(
            f"### {name}\n\n{rows[0]['rows']} training rows, {len(by_method['widebnn'])} splits; "
            f"{bent} of the fits of widebnn are on the asinh scale.\n\n{table(header, body)}\n"
            + (f"\nMeasured with an earlier version: {', '.join(sorted(older))}.\n" if older else "")
        )
    ess = [row["ess"] for row in report["rows"] if row["method"] == "widebnn"]
    settings = ", ".join(f"{name} {value}" for name, value in report["settings"].items())
    earlier = EARLIER if any(not is_current(row) for row in report["rows"] if row["table"] in done) else ""
    return f"""## Tables

`python benchmarks/uci.py`, on UCI tables. Every repeat has its own split, nine tenths for training, seeded by its
number. Means over the splits ± their standard error, the smallest negative log-likelihood in bold; the median of the
seconds of fit and prediction on two cores, some of them with other work beside it. RMSE and log-likelihoods are in
units of the target.

- widebnn is `WideBNNRegressor` with
  {settings}, everything else as it comes: narrower and with fewer draws than its
  defaults (median {np.median(ess):.0f} effective draws of the slowest direction of the function at the training
  inputs), so that all splits take a few hours.
- The limit is the exact posterior of the same network of infinite width, with the same scale of the target and the same
  hyperparameters; its seconds do not count the search for them.
- The Gaussian process has a squared exponential kernel with a length scale per input. Its hyperparameters are fitted to
  at most {GP_ROWS} rows, those of widebnn and the limit to at most {MAX_ROWS}; all rows are conditioned on.
{earlier}- The ensemble is five networks with two layers of 50 units that predict mean and variance, stopped early.
- wine-quality-red holds copies of rows, always with the same target. A Gaussian process takes them for proof
  that there is no noise, and then predicts test rows that are copies of training rows nearly exactly, which dominates
  its log-likelihood. `widebnn` counts copies once when it chooses its hyperparameters, and does not do that.

Best in log-likelihood, or within one standard error of the best (the larger of that of the best and that of the
difference over the same splits): {len(near)} of {len(done)} tables ({", ".join(near) or "none"}).
Its own limit, the same model too wide to sample, left out: {len(near_others)} of {len(done)}
({", ".join(near_others) or "none"}).
90 % intervals cover 87 to 93 % on {len(covered)} of {len(done)}
({", ".join(covered) or "none"}). {f"Not measured yet: {', '.join(missing)}." if missing else ""}

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
            body.append([f"{data}, {rows} images", name, *numbers, digits(row["seconds"])])
    settings = ", ".join(f"{name} {value}" for name, value in report["settings"].items())
    header = ["training images", "method", "accuracy", "calibration error", "log loss", "seconds"]
    ess = [row["ess"] for row in report["rows"] if "ess" in row]
    missing = [cell for cell in CELLS.split(",") if not set(BASIC) <= {m for d, n, m in found if f"{d}:{n}" == cell}]
    return f"""## Images

`python benchmarks/images.py`: dense networks on raw pixels, {settings}
(median {np.median(ess):.0f} effective draws of the slowest direction of the function at the training inputs).
Accuracy, expected calibration error (15 bins of equal width) and log loss on 700 (digits) and 1000 (CIFAR-10) test
images. A limit has the hyperparameters of the network above it, and its seconds do not count the search for them; with
the softmax likelihood it is sampled too. Hyperparameters are chosen by the evidence of label regression in both cases.
The seconds were taken with other work on the machine.
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


def main() -> None:
    """Write both files."""
    sections = [uci_section(read("uci"))]
    if (RESULTS / "images.json").exists():
        sections.append(images_section(read("images")))
    if (RESULTS / "rows.json").exists():
        rows = read("rows")
        listing = rows_table(rows)
        what = f"`python benchmarks/rows.py`: {rows[0]['width']} units in one hidden layer, eight inputs, noise of a "
        what += "tenth of the signal."
        sections.append(f"## Rows\n\n{what}\n\n{listing}\n")
        readme = ROOT / "README.md"
        before, rest = readme.read_text().split(START)
        _, after = rest.split(END)
        readme.write_text(f"{before}{START}\n{listing}\n{END}{after}")
    text = "# Results\n\nMade by `python benchmarks/results.py` from `benchmarks/results`.\n\n" + "\n".join(sections)
    (ROOT / "docs" / "results.md").write_text(text)


if __name__ == "__main__":
    main()
