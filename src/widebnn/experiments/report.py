"""report.html: one file with settings, figures, the paper's numbers beside ours, and a verdict per claim."""

from __future__ import annotations

import base64
import html
import io
import itertools
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import xarray as xr
from matplotlib.figure import Figure

from widebnn.data import Dataset
from widebnn.experiments import figures
from widebnn.experiments.analysis import compare, distance_from_limit, find, rhat_against_steps, summarise_cell
from widebnn.experiments.cells import LABELS, cell_of
from widebnn.experiments.grid import Scale

VERSIONS = ("widebnn", "jax", "jaxlib", "numpy", "scipy", "arviz-stats")
STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin-top: 2rem; }
img { max-width: 100%; height: auto; }
figure { margin: 1rem 0; } figcaption { color: #555; font-size: .9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { border-bottom: 1px solid #ddd; padding: .25rem .6rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { border-bottom: 2px solid #888; }
.yes { color: #00654a; font-weight: 600; } .no { color: #a33f00; font-weight: 600; }
@media print { .scroll { overflow: visible; } table { font-size: .7rem; } figure { break-inside: avoid; } }
"""


def write_report(
    folder: Path, results: dict[str, xr.Dataset], dataset: Dataset, scale: Scale, config: dict[str, Any]
) -> dict[str, Any]:
    """Figures (PNG and PDF), summary.json and report.html from finished cells; returns the summary."""
    rows = [summarise_cell(stored) for stored in results.values()]
    for row, stored in zip(rows, results.values(), strict=True):
        if row["sampler"] == "hilbert_hmc" and row["depth"] == 1:
            row["limit"] = distance_from_limit(stored, dataset)
    on_paper_data = config["data"] == "cifar10" and config["n_train"] == 256
    drawn = draw_figures(rows, list(results.values()), scale, on_paper_data)
    for name, (figure, _) in drawn.items():
        for kind in ("png", "pdf"):
            figure.savefig(folder / f"{name}.{kind}", dpi=140)
    compared = compare(rows) if on_paper_data else []
    rhat = [
        {"cell": name, **rhat_against_steps(stored, scale.rhat_steps)}
        for name, stored in results.items()
        if cell_of(stored).chains > 1
    ]
    summary = {
        "config": config,
        "cells": rows,
        "rhat": rhat,
        "compared": compared,
        "claims": claims(rows),
        "versions": {name: version(name) for name in VERSIONS} | {"python": platform.python_version()},
    }
    _write(folder / "summary.json", json.dumps(_without_nan(summary), indent=1) + "\n")
    _write(folder / "report.html", render(summary, drawn))
    return summary


def draw_figures(
    rows: list[dict[str, Any]], results: list[xr.Dataset], scale: Scale, on_paper_data: bool
) -> dict[str, tuple[Figure, str]]:
    """Every figure that the finished cells allow, with its caption."""
    drawn: dict[str, tuple[Figure, str]] = {}
    main = [row for row in rows if row["chains"] == 1 and row["depth"] == 1 and row["step_size"] is not None]
    hollow = " Hollow markers: values read off the published figure." if on_paper_data else ""
    if main:
        caption = "Acceptance rate against width (figure 1 of the paper)." + hollow
        drawn["acceptance"] = figures.acceptance_figure(rows, on_paper_data), caption
        caption = (
            "Effective samples per stored draw by the paper's definition (its figure 2): mean and range over 100 "
            "random projections of weights and of test predictions." + hollow
        )
        drawn["ess"] = figures.ess_figure(rows, on_paper_data), caption
    several = [stored for stored in results if cell_of(stored).chains > 1]
    if several:
        caption = "R-hat of three chains by the paper's definition: mean and standard deviation over 200 projections."
        drawn["rhat"] = figures.rhat_figure(several, scale.rhat_steps), caption
    single = [s for s in results if cell_of(s).chains == 1 and cell_of(s).depth == 1]
    for size in sorted({row["step_size"] for row in main}, reverse=True):
        caption = f"Traces of the first two principal components of the iterates, step size {size:g}."
        drawn[f"traces-{size:g}"] = figures.traces_figure(single, size), caption
    if any(row["sampler"] in ("hilbert_hmc", "elliptical_slice") for row in rows):
        caption = "Effective samples per second. Every sampler runs in function space; the published code does not."
        drawn["speed"] = figures.speed_figure(rows), caption
    if any(row.get("limit") for row in rows):
        caption = (
            "Distance of the posterior from the reference N(0, I), as the Jeffreys divergence "
            "E_posterior[l] - E_prior[l], and of its predictive mean from the infinite-width limit's."
        )
        drawn["distance"] = figures.distance_figure(rows), caption
    return drawn


def claims(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The paper's claims, judged by the cells that are there."""
    judged = []

    def judge(claim: str, holds: list[bool], note: str = "") -> None:
        if holds:
            verdict = "confirmed" if all(holds) else "not confirmed"
            judged.append(
                {"claim": claim, "verdict": verdict, "note": note or f"{sum(holds)} of {len(holds)} comparisons"}
            )

    main = [row for row in rows if row["chains"] == 1 and row["depth"] == 1 and row["step_size"] is not None]
    sizes = sorted({row["step_size"] for row in main})
    for sampler in ("pcn", "pcnl"):
        pairs = [(a, b) for size in sizes for a, b in _neighbours(find(main, sampler=sampler, step_size=size))]
        rises = [b["acceptance"] > a["acceptance"] - 0.01 for a, b in pairs]
        judge(f"Acceptance of {LABELS[sampler]} rises with the width, without tuning.", rises)
    falls = []
    for size in sizes:
        here = find(main, sampler="lmc", step_size=size)
        if len(here) > 1 and max(row["acceptance"] for row in here) > 0.05:
            peak = max(range(len(here)), key=lambda i: here[i]["acceptance"])
            falls += [b["acceptance"] < a["acceptance"] + 0.01 for a, b in _neighbours(here[peak:])]
    judge("Acceptance of Langevin Monte Carlo falls with the width once it is in equilibrium.", falls)
    grows = []
    for size in sizes:
        for a, b in _neighbours(find(main, sampler="pcn", step_size=size)):
            grows.append(b["predictions"]["ess"] > 0.7 * a["predictions"]["ess"])
    judge("Effective sample size of pCN grows with the width.", grows, "allowing 30 % for Monte Carlo error")
    widest = max((row["width"] for row in main), default=0)
    for size in sizes:
        pcn, lmc = (find(main, sampler=name, step_size=size, width=widest) for name in ("pcn", "lmc"))
        if pcn and lmc and size >= 0.1:
            wins = [pcn[0][name]["ess"] > lmc[0][name]["ess"] for name in ("weights", "predictions")]
            judge(f"At width {widest} and step size {size:g}, pCN has more effective samples than LMC.", wins)
    both = [
        (find(main, sampler=name, step_size=size, width=widest) for name in ("pcnl", "pcnl_published"))
        for size in sizes
    ]
    differs = [abs(a[0]["acceptance"] - b[0]["acceptance"]) > 0.02 for a, b in map(tuple, both) if a and b]
    if differs:
        verdict = "depends on the pCNL fault" if any(differs) else "not affected by the pCNL fault here"
        note = "the published potential lacks the log determinant and the change of the readout's prior"
        judged.append({"claim": "The published pCNL curves.", "verdict": verdict, "note": note})
    return judged


def _neighbours(rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return list(itertools.pairwise(rows))


def render(summary: dict[str, Any], drawn: dict[str, tuple[Figure, str]]) -> str:
    """The page, with nothing outside it."""
    config = summary["config"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width, initial-scale=1">',
        "<link rel=icon href=data:,>",
        f"<title>Function-space MCMC for wide Bayesian networks, re-run</title><style>{STYLE}</style>",
        "<h1>Function-space MCMC for wide Bayesian networks, re-run</h1>",
        "<p>The experiments of Pezzetti, Favaro and Peluchetti (AISTATS 2025), recomputed with the corrected formulas "
        "by widebnn.</p>",
        "<h2>Settings</h2>",
        _table(["setting", "value"], [[name, _text(value)] for name, value in config.items()]),
    ]
    if summary["claims"]:
        rows = [[claim["claim"], _verdict(claim["verdict"]), claim["note"]] for claim in summary["claims"]]
        parts += ["<h2>Claims</h2>", _table(["claim", "verdict", "by"], rows, raw={1})]
    for name, (figure, caption) in drawn.items():
        parts.append(
            f'<figure id="{name}"><img alt="{html.escape(caption)}" src="data:image/png;base64,{_png(figure)}">'
            f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        )
    if summary["compared"]:
        rows = [
            [
                row["quantity"], LABELS[row["ours_sampler"]], f"{row['step_size']:g}", str(row["width"]),
                f"{row['value']:.4g}", f"{row['ours']:.4g}",
            ]
            for row in summary["compared"]
        ]  # fmt: skip
        header = ["quantity", "sampler", "step size", "width", "published", "ours"]
        parts += ["<h2>Published numbers and ours</h2>", "<p>Effective samples are per stored draw.</p>"]
        parts.append(_table(header, rows))
    header = ["cell", "acceptance", "ESS/draw, weights", "ESS/draw, predictions", "ESS/step, predictions"]
    header += ["ESS/gradient, predictions", "ESS/s, predictions", "ms/step"]
    rows = [
        [
            row["cell"], f"{row['acceptance']:.3f}", f"{row['weights']['ess']:.4g}", f"{row['predictions']['ess']:.4g}",
            f"{row['predictions']['ess_per_step']:.3g}", _number(row["predictions"].get("ess_per_gradient")),
            f"{row['predictions']['ess_per_second']:.3g}", f"{row['ms_per_step']:.3g}",
        ]
        for row in summary["cells"]
    ]  # fmt: skip
    parts += ["<h2>All cells</h2>", _table(header, rows)]
    environment = ", ".join(f"{name} {number}" for name, number in summary["versions"].items())
    parts.append(f"<h2>Environment</h2><p>{html.escape(environment)}; seed {config['seed']}.</p></html>")
    return "\n".join(parts)


def _table(header: list[str], rows: list[list[str]], raw: set[int] = frozenset()) -> str:  # type: ignore[assignment]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{v if i in raw else html.escape(v)}</td>" for i, v in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _verdict(verdict: str) -> str:
    return f'<span class="{"yes" if verdict == "confirmed" else "no"}">{html.escape(verdict)}</span>'


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _png(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return base64.b64encode(buffer.getvalue()).decode()


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: None instead."""
    if isinstance(value, dict):
        return {name: _without_nan(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and value != value else value


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    os.replace(temporary, path)
