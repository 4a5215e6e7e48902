"""Write docs/results.md from its template and what uci.py, images.py and rows.py measured, and the guide's table.

python benchmarks/results.py
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from common import RESULTS, ROOT, digits, fill, read
from images import CELLS, SOFTMAX_ROWS
from uci import DISTINCT, GP_ROWS, TABLES, is_current
from widebnn.estimators import WideBNNRegressor
from widebnn.estimators.convergence import RHAT_LIMIT
from widebnn.limits import choose_hyperparameters
from widebnn.reproduction.report import table

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
LEAST = 3
"""Splits that all methods must have run on before a table is shown."""
WANTED = WideBNNRegressor().target_ess
MAX_ROWS = inspect.signature(choose_hyperparameters).parameters["max_rows"].default
GUIDE = ROOT / "docs" / "guides" / "tables.md"
START, END = "<!-- rows: made by benchmarks/results.py -->", "<!-- end of rows -->"


def is_near_best(rows: pd.DataFrame, methods: list[str]) -> bool:
    """Whether widebnn has the best log-likelihood of these methods or is within one standard error of it.

    The splits are the same for all, so that the error of a difference is that of its pairs.
    """
    nll = rows.pivot(index="repeat", columns="method", values="nll")[methods]
    best = nll.mean().idxmin()
    gap = nll["widebnn"] - nll[best]
    return bool(gap.mean() <= max(gap.sem(), nll[best].sem()))


def is_covered(rows: pd.DataFrame) -> bool:
    """Whether the 90 % intervals of widebnn hold about as many observations as they say."""
    return bool(0.87 <= rows[rows["method"] == "widebnn"]["coverage_90"].mean() <= 0.93)


def verdict(done: dict[str, pd.DataFrame]) -> str:
    """On how many tables widebnn is where it should be; of two forms of a table one is counted."""
    others = [method for method in NAMES if method != "nngp"]
    as_they_are = [name for name in done if not name.endswith(DISTINCT)]
    without_copies = [name for name in done if name + DISTINCT not in done]
    tests: dict[str, Callable[[pd.DataFrame], bool]] = {
        "best log-likelihood, or within one standard error of it": lambda rows: is_near_best(rows, list(NAMES)),
        "the same, the limit left out": lambda rows: is_near_best(rows, others),
        "90 % intervals cover 87 to 93 %": is_covered,
    }
    body = []
    for what, test in tests.items():
        found = [[name for name in names if test(done[name])] for names in (as_they_are, without_copies)]
        counts = zip(found, (as_they_are, without_copies), strict=True)
        body.append([what, *(f"{len(of)} of {len(names)} ({', '.join(of) or 'none'})" for of, names in counts)])
    return table(["on how many tables", "as they are", "wine without copies"], body)


def uci_places(report: dict[str, Any]) -> dict[str, str]:
    """Every table beside every method."""
    rows = pd.DataFrame(filter(is_current, report["rows"])).sort_values("repeat")
    found = {name: rows[rows["table"] == name] for name in TABLES}
    found = {
        name: here[here.groupby("repeat")["method"].transform("count") == len(NAMES)] for name, here in found.items()
    }
    done = {name: here for name, here in found.items() if here["repeat"].nunique() >= LEAST}
    missing = [name for name in TABLES if name not in done]
    fits = rows[rows["method"] == "widebnn"].reindex(columns=["rhat", "ess"])
    converged = (fits["rhat"] < RHAT_LIMIT) & (fits["ess"] >= WANTED)
    return {
        "RHAT_LIMIT": str(RHAT_LIMIT),
        "WANTED": str(WANTED),
        "CONVERGED": f"{converged.sum()} of {len(fits)}",
        "GP_ROWS": str(GP_ROWS),
        "MAX_ROWS": str(MAX_ROWS),
        "UCI_MISSING": f"Not measured yet: {', '.join(missing)}." if missing else "",
        "VERDICT": verdict(done),
        "TABLES": "\n".join(table_section(name, here) for name, here in done.items()),
    }


def table_section(name: str, rows: pd.DataFrame) -> str:
    """One table of the UCI repository."""
    by_method = {method: rows[rows["method"] == method] for method in NAMES}
    best = min(by_method, key=lambda method: by_method[method]["nll"].mean())
    body = []
    for method, here in by_method.items():
        bold = "**" if method == best else ""
        rmse, nll = (f"{here[score].mean():.3f} ± {here[score].sem():.3f}" for score in ("rmse", "nll"))
        cover = [f"{here[f'coverage_{level}'].mean():.1%}" for level in (50, 90)]
        body.append([NAMES[method], rmse, f"{bold}{nll}{bold}", *cover, digits(here["seconds"].median())])
    header = ["method", "RMSE", "negative log-likelihood", "in 50 %", "in 90 %", "seconds"]
    networks = by_method["widebnn"]
    bent, heavy = (int((networks[name] == True).sum()) for name in ("bent", "heavy"))  # noqa: E712
    per_draw = (networks["gradients"] / networks["ess"]).median()
    seconds = (networks["seconds"] / networks["ess"]).median()
    medians = f"{networks['ess'].median():.0f} effective draws, R-hat {networks['rhat'].median():.3f} (largest "
    medians += f"{networks['rhat'].max():.3f}), {digits(per_draw)} gradients and {digits(seconds)} s per effective draw"
    return (
        f"### {name}\n\n{networks['rows'].iloc[0]} training rows, {len(networks)} splits; {bent} of the fits of "
        f"widebnn are on the asinh scale, {heavy} have heavy tails.\nMedians over its fits: {medians}."
        f"\n\n{table(header, body)}\n"
    )


def images_places(report: dict[str, Any]) -> dict[str, str]:
    """Accuracy and calibration error."""
    found = {(row["data"], row["rows"], row["method"]): row for row in report["rows"]}
    body = []
    for data, rows in dict.fromkeys((row["data"], row["rows"]) for row in report["rows"]):
        for method, name in IMAGES.items():
            if row := found.get((data, rows, method)):
                numbers = [f"{row['accuracy']:.1%}", f"{row['ece']:.3f}", f"{row['log_loss']:.3f}"]
                converged = f"{row['rhat']:.2f}" if "rhat" in row else ""
                body.append([f"{data}, {rows} images", name, *numbers, converged, digits(row["seconds"])])
    header = ["training images", "method", "accuracy", "calibration error", "log loss", "R-hat", "seconds"]
    missing = [cell for cell in CELLS.split(",") if not set(BASIC) <= {m for d, n, m in found if f"{d}:{n}" == cell}]
    return {
        "IMAGES_SETTINGS": ", ".join(f"{name} {value}" for name, value in report["settings"].items() if value),
        "IMAGES_ESS": f"{np.median([row['ess'] for row in report['rows'] if 'ess' in row]):.0f}",
        "SOFTMAX_ROWS": str(SOFTMAX_ROWS),
        "IMAGES_MISSING": f"Not yet whole: {', '.join(missing)}." if missing else "",
        "IMAGES": table(header, body),
    }


def rows_table(report: list[dict[str, Any]]) -> str:
    """Time and memory against rows."""
    draw = f"one draw ({report[0]['gradients_per_draw']} gradients)"
    header = ["rows", "choosing hyperparameters", "compiling", draw, "precision", "peak memory"]
    body = []
    for row in report:
        times = f"{row['evidence_seconds']:.0f}", f"{row['compile_seconds']:.0f}", digits(row["seconds_per_draw"])
        rows, memory = f"{row['rows']:,}".replace(",", " "), f"{row['peak_memory_gb']:.1f} GB"
        body.append([rows, *(f"{time} s" for time in times), row["dtype"], memory])
    return table(header, body)


def page() -> str:
    """docs/results.md."""
    rows = read(RESULTS / "rows.json")
    places = uci_places(read(RESULTS / "uci.json")) | images_places(read(RESULTS / "images.json"))
    return fill("results", **places, ROWS_WIDTH=str(rows[0]["width"]), ROWS=rows_table(rows))


def with_rows(guide: str) -> str:
    """The guide to tables with its table of rows."""
    before, rest = guide.split(START)
    return f"{before}{START}\n{rows_table(read(RESULTS / 'rows.json'))}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    GUIDE.write_text(with_rows(GUIDE.read_text()))
    (ROOT / "docs" / "results.md").write_text(page())
