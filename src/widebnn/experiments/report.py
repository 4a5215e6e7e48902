"""report.html: one file with settings, figures, the paper's numbers beside ours, and a verdict per claim."""

from __future__ import annotations

import base64
import dataclasses
import html
import io
import itertools
import json
import platform
from collections.abc import Set
from importlib.metadata import version
from pathlib import Path
from typing import Any

import xarray as xr
from matplotlib.figure import Figure

from widebnn.data import Dataset
from widebnn.durable import output, write_bytes
from widebnn.experiments import figures
from widebnn.experiments.analysis import (
    STATISTICS,
    add_pooled_ess,
    best_ess,
    compare,
    distance_from_limit,
    find,
    is_main,
    rhat_against_steps,
    summarise_cell,
)
from widebnn.experiments.cells import LABELS, NOISE, cell_of
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
th, td { border-bottom: 1px solid #ddd; padding: .25rem .6rem; text-align: right; vertical-align: top; }
td { white-space: nowrap; }
th:first-child, td:first-child, .text td, .text th { text-align: left; }
.text td { white-space: normal; }
th { border-bottom: 2px solid #888; }
.yes { color: #00654a; font-weight: 600; } .no { color: #a33f00; font-weight: 600; }
@media (max-width: 40rem) { figure img { max-width: none; width: 46rem; } }
@media print { .scroll { overflow: visible; } table { font-size: .7rem; } figure { break-inside: avoid; } }
"""


def write_report(
    folder: Path, results: dict[str, xr.Dataset], dataset: Dataset, scale: Scale, config: dict[str, Any]
) -> dict[str, Any]:
    """Figures (PNG and PDF), summary.json and report.html from finished cells; returns the summary."""
    rows = [summarise_cell(stored) for stored in results.values()]
    add_pooled_ess(rows, list(results.values()))
    for row, stored in zip(rows, results.values(), strict=True):
        if "jeffreys" in row:
            row["limit"] = distance_from_limit(stored, dataset)
    on_paper_data = config["data"] == "cifar10" and config["n_train"] == 256
    drawn = draw_figures(rows, list(results.values()), scale, on_paper_data)
    shown: dict[str, tuple[bytes, str]] = {}
    for name, (figure, caption) in drawn.items():
        for kind in ("png", "pdf"):
            picture = io.BytesIO()
            figure.savefig(picture, format=kind, dpi=140)
            _write(folder / f"{name}.{kind}", picture.getvalue())
        shown[name] = (folder / f"{name}.png").read_bytes(), caption
    several = [stored for stored in results.values() if cell_of(stored).chains > 1]
    rhat = [rhat_against_steps(stored, scale.rhat_steps) for stored in several]
    summary = {
        "config": config,
        "scale": dataclasses.asdict(scale),
        "cells": rows,
        "rhat": rhat,
        "compared": compare(rows, rhat) if on_paper_data else [],
        "claims": claims(rows, rhat),
        "versions": {name: version(name) for name in VERSIONS} | {"python": platform.python_version()},
    }
    _write(folder / "summary.json", (json.dumps(_without_nan(summary), indent=1) + "\n").encode())
    _write(folder / "report.html", render(summary, shown).encode())
    return summary


def draw_figures(
    rows: list[dict[str, Any]], results: list[xr.Dataset], scale: Scale, on_paper_data: bool
) -> dict[str, tuple[Figure, str]]:
    """Every figure that the finished cells allow, with its caption."""
    drawn: dict[str, tuple[Figure, str]] = {}
    main = [row for row in rows if is_main(row)]
    hollow = " Hollow markers: values read off the published figure." if on_paper_data else ""
    if main:
        caption = "Acceptance rate against width (figure 1 of the paper)." + hollow
        drawn["acceptance"] = figures.acceptance_figure(rows, on_paper_data), caption
        caption = (
            "Effective samples per stored draw (figure 2 of the paper). Lines: autocorrelations pooled over 100 random "
            "projections of weights and of test predictions, about means known from Hilbert-space HMC. Dotted: the "
            "paper's definition, mean of 100 projections, which in a slow chain of N stored draws shows about 5/N."
            + hollow
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


def claims(rows: list[dict[str, Any]], rhat_rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The paper's claims, judged by the cells that are there.

    A claim about pCNL is judged twice, for the right law and for the one that the published formulas sample: where
    the two disagree the published result depends on that fault.
    """
    main = [row for row in rows if is_main(row)]
    sizes = sorted({row["step_size"] for row in main})
    judged: list[dict[str, str]] = []

    def judge(claim: str, holds: list[bool], note: str = "", faulty: list[bool] | None = None) -> None:
        if not holds:
            return
        verdict = "confirmed" if all(holds) else "not confirmed"
        if faulty and all(faulty) != all(holds):
            verdict = "depends on the pCNL fault"
            note = f"with the published potential: {'yes' if all(faulty) else 'no'}. {note}"
        count = f"{sum(holds)} of {len(holds)} comparisons"
        judged.append({"claim": claim, "verdict": verdict, "note": f"{count}. {note}".strip()})

    def along_width(sampler: str, change, only: tuple[float, ...] = ()) -> list[bool]:
        chosen = only or sizes
        return [
            change(a, b)
            for size in chosen
            for a, b in itertools.pairwise(find(main, sampler=sampler, step_size=size))
        ]  # fmt: skip

    def rises(a, b):
        return b["acceptance"] > a["acceptance"] - 0.01

    def grows(a, b):
        return best_ess(b, "predictions") >= 0.8 * best_ess(a, "predictions")

    judge("Acceptance of pCN rises with the width, without tuning.", along_width("pcn", rises))
    judge(
        "Acceptance of pCNL rises with the width, without tuning.",
        along_width("pcnl", rises),
        faulty=along_width("pcnl_published", rises),
    )
    for sampler in ("lmc", "underdamped"):
        falls = []
        for size in sizes:
            here = find(main, sampler=sampler, step_size=size)
            if len(here) > 1 and max(row["acceptance"] for row in here) > 0.05:
                peak = max(range(len(here)), key=lambda i: here[i]["acceptance"])
                falls += [b["acceptance"] < a["acceptance"] + 0.01 for a, b in itertools.pairwise(here[peak:])]
        judge(f"Acceptance of {LABELS[sampler]} falls with the width once it moves at all.", falls)
    moves = [size for size in sizes if size >= 0.1] or sizes
    judge(
        "Effective sample size of pCN grows with the width.",
        along_width("pcn", grows, tuple(moves)),
        "Allowing 20 % for Monte Carlo error, step sizes of at least 0.1.",
    )
    judge(
        "Effective sample size of pCNL grows with the width.",
        along_width("pcnl", grows, tuple(moves)),
        "Allowing 20 % for Monte Carlo error, step sizes of at least 0.1.",
    )
    widest = max((row["width"] for row in main), default=0)
    for sampler in ("lmc", "underdamped"):
        wins = []
        for size in moves:
            pcn, lmc = (find(main, sampler=name, step_size=size, width=widest) for name in ("pcn", sampler))
            if pcn and lmc:
                wins += [best_ess(pcn[0], name) > best_ess(lmc[0], name) for name in STATISTICS]
        claim = f"At width {widest} pCN has more effective samples than {LABELS[sampler]}."
        judge(claim, wins, "Step sizes of at least 0.1, weights and predictions.")
    for sampler, better in (("pcn", True), ("lmc", False), ("underdamped", False)):
        here = find(rhat_rows, sampler=sampler)
        if len(here) > 1:
            first, last = here[0]["mean"][-1], here[-1]["mean"][-1]
            direction = "improves" if better else "gets worse"
            judge(f"R-hat of {LABELS[sampler]} {direction} with the width.", [(last < first) == better])
    return judged


def render(summary: dict[str, Any], shown: dict[str, tuple[bytes, str]]) -> str:
    """The page, with nothing outside it."""
    config = summary["config"]
    settings = {**config, "noise": NOISE, **summary["scale"]}
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width, initial-scale=1">',
        "<link rel=icon href=data:,>",
        f"<title>Function-space MCMC for wide Bayesian networks, re-run</title><style>{STYLE}</style>",
        "<h1>Function-space MCMC for wide Bayesian networks, re-run</h1>",
        "<p>The experiments of Pezzetti, Favaro and Peluchetti (AISTATS 2025), recomputed with the corrected formulas "
        "by widebnn.</p>",
        "<h2>Settings</h2>",
        _table(["setting", "value"], [[name, _text(value)] for name, value in settings.items()], kind="text"),
    ]
    if summary["claims"]:
        rows = [[claim["claim"], _verdict(claim["verdict"]), claim["note"]] for claim in summary["claims"]]
        parts += ["<h2>Claims</h2>", _table(["claim", "verdict", "by"], rows, raw={1}, kind="text")]
    for name, (picture, caption) in shown.items():
        encoded, text = base64.b64encode(picture).decode(), html.escape(caption)
        parts.append(
            f'<figure id="{name}"><div class="scroll"><img alt="{text}" src="data:image/png;base64,{encoded}"></div>'
            f"<figcaption>{text}</figcaption></figure>"
        )
    if summary["compared"]:
        rows = [
            [
                row["quantity"], LABELS[row["ours_sampler"]], f"{row['step_size']:g}", str(row["width"]),
                f"{row['value']:.4g}", f"{row['ours']:.4g}", _number(row.get("pooled")),
            ]
            for row in summary["compared"]
        ]  # fmt: skip
        header = ["quantity", "sampler", "step size", "width", "published", "ours", "ours, pooled"]
        parts += [
            "<h2>Published numbers and ours</h2>",
            "<p>Weights and predictions are effective samples per stored draw, by the paper's definition and pooled "
            "(see the figure above), which is the one to compare when chains are short. R-hat is published after "
            "20&nbsp;000 steps; the number of steps of ours is in the figure above.</p>",
            _table(header, rows),
        ]
    for name in STATISTICS:
        header = ["cell", "acceptance", "ms/step", "ESS/draw, paper's definition", "ESS/draw, pooled"]
        header += ["ESS/draw, bulk", "ESS/draw, tail", "ESS/step", "ESS/gradient", "ESS/s"]
        rows = [
            [
                row["cell"], f"{row['acceptance']:.3f}", f"{row['ms_per_step']:.3g}",
                *(_number(row[name].get(kind)) for kind in (
                    "ess", "ess_pooled", "bulk_ess", "tail_ess", "ess_per_step", "ess_per_gradient", "ess_per_second",
                )),
            ]
            for row in summary["cells"]
        ]  # fmt: skip
        parts += [f"<h2>All cells: {name}</h2>", _table(header, rows)]
    parts.append(
        "<p>Means over 100 projections. Bulk and tail are ArviZ's rank-normalised effective sample sizes. Per step, "
        "per gradient and per second follow from the pooled value where there is one, else from the paper's.</p>"
    )
    environment = ", ".join(f"{name} {number}" for name, number in summary["versions"].items())
    parts.append(f"<h2>Environment</h2><p>{html.escape(environment)}; seed {config['seed']}.</p></html>")
    return "\n".join(parts)


def _table(header: list[str], rows: list[list[str]], raw: Set[int] = frozenset(), kind: str = "numbers") -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{v if i in raw else html.escape(v)}</td>" for i, v in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table class="{kind}"><tr>{head}</tr>{body}</table></div>'


def _verdict(verdict: str) -> str:
    return f'<span class="{"yes" if verdict == "confirmed" else "no"}">{html.escape(verdict)}</span>'


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _number(value: float | None) -> str:
    return "" if value is None or value != value else f"{value:.3g}"


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: None instead."""
    if isinstance(value, dict):
        return {name: _without_nan(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and value != value else value


def _write(path: Path, content: bytes) -> None:
    with output(path):
        write_bytes(path, content)
