"""The report of a run: summary.json, figures, and one page in Markdown, which also becomes report.html."""

from __future__ import annotations

import base64
import dataclasses
import io
import itertools
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd
import xarray as xr
from markdown_it import MarkdownIt

from widebnn.data import Dataset
from widebnn.diagnostics.summary import installed_versions
from widebnn.reproduction.analysis import STATISTICS, Row, cell_table, compare, summarise_cells
from widebnn.reproduction.cells import LABELS, NOISE, Cell
from widebnn.reproduction.claims import claims
from widebnn.reproduction.figures import draw_figures
from widebnn.reproduction.grid import Scale
from widebnn.runs.files import output, write_bytes

INTRODUCTION = """# Function-space MCMC for wide Bayesian networks, re-run

The experiments of Pezzetti, Favaro and Peluchetti (AISTATS 2025), recomputed with the corrected formulas by widebnn."""
NOTES = """Means over 100 projections. Bulk and tail are ArviZ's rank-normalised effective sample sizes. Per step, per
gradient and per second follow from the pooled value where there is one, else from the paper's.\n\n## Environment\n\n"""
CAPTIONS = {
    "acceptance": "Acceptance rate against width (figure 1 of the paper).{hollow}",
    "ess": "Effective samples per stored draw (figure 2 of the paper). Lines: autocorrelations pooled over 100 random "
    "projections of weights and of test predictions, about means known from Hilbert-space HMC. Dotted: the paper's "
    "definition, mean of 100 projections, which in a slow chain of N stored draws shows about 5/N.{hollow}",
    "rhat": "R-hat of three chains by the paper's definition: mean and standard deviation over 200 projections.",
    "traces": "Traces of the first two principal components of the iterates, step size {size}.",
    "speed": "Effective samples per second. Every sampler runs in function space; the published code does not.",
    "distance": "Distance of the posterior from the reference N(0, I), as the Jeffreys divergence "
    "E_posterior[l] - E_prior[l], and of its predictive mean from the infinite-width limit's.",
}
QUANTITIES = {
    "acceptance": "Acceptance rate",
    "weights": "Effective samples per stored draw, random projections of all weights",
    "predictions": "Effective samples per stored draw, random projections of test predictions",
    "rhat": "R-hat of three chains",
}
WITHIN = {"pcn": 0.03, "lmc": 0.05}
"""How near to the published curve the acceptance rate was to come."""
CELL_COLUMNS = {
    "ess": "ESS/draw, paper's definition",
    "ess_pooled": "ESS/draw, pooled",
    "bulk_ess": "ESS/draw, bulk",
    "tail_ess": "ESS/draw, tail",
    "ess_per_step": "ESS/step",
    "ess_per_gradient": "ESS/gradient",
    "ess_per_second": "ESS/s",
}


def write_report(folder: Path, results: Mapping[Cell, xr.Dataset], dataset: Dataset, scale: Scale, config: Row) -> Row:
    """Write figures (PNG and PDF), summary.json and report.html of finished cells; return the summary."""
    rows = summarise_cells(results, dataset, scale.rhat_steps)
    cells = cell_table(rows)
    compared = compare(cells) if _is_paper_data(config) else []
    summary = {"config": config, "scale": dataclasses.asdict(scale), "cells": rows, "compared": compared}
    summary |= {"claims": claims(cells), "versions": installed_versions()}
    figures = draw_figures(cells, results, _is_paper_data(config))
    with output(folder):
        for (name, figure), kind in itertools.product(figures.items(), ("png", "pdf")):
            content = io.BytesIO()
            figure.savefig(content, format=kind, dpi=140)
            write_bytes(folder / f"{name}.{kind}", content.getvalue())
        plain = json.loads(json.dumps(summary), parse_constant=lambda _: None)  # JSON has no NaN
        write_bytes(folder / "summary.json", json.dumps(plain, indent=1).encode() + b"\n")
        markdown = _report_page(summary, {name: f"{name}.png" for name in figures})
        write_bytes(folder / "report.html", _to_html(markdown, folder).encode())
    return summary


def _report_page(summary: Row, figures: Mapping[str, str]) -> str:
    """Markdown of the report: settings, results, and a row for each cell."""
    settings = {**summary["config"], "noise": NOISE, **summary["scale"]}
    shown = [[name, ", ".join(map(str, v)) if isinstance(v, tuple) else str(v)] for name, v in settings.items()]
    parts = [INTRODUCTION, f"## Settings\n\n{table(['setting', 'value'], shown, '---')}"]
    parts += results_sections(summary, figures)
    cells = cell_table(summary["cells"]).set_index("cell")
    for statistic in STATISTICS:
        names = {f"{statistic}.{name}": label for name, label in CELL_COLUMNS.items()}
        names = {"acceptance": "acceptance", "ms_per_step": "ms/step"} | names
        shown = cells.reindex(columns=list(names)).rename(columns=names)
        parts.append(f"## All cells: {statistic}\n\n{_numbers('cell', shown)}")
    return "\n\n".join([*parts, f"{NOTES}{versions(summary)}; seed {summary['config']['seed']}.\n"])


def results_sections(summary: Row, figures: Mapping[str, str], reasons: str = "") -> list[str]:
    """Markdown of claims, figures (paths by name), published numbers beside ours, and what goes beyond the paper."""
    hollow = " Hollow markers: values read off the published figure." if _is_paper_data(summary["config"]) else ""
    parts = []
    if summary["claims"]:
        rows = [[claim["claim"], claim["verdict"], claim["note"]] for claim in summary["claims"]]
        parts.append(f"## Claims\n\n{table(['claim', 'verdict', 'by'], rows, '---')}")
    captions = {name: CAPTIONS[name.split("-")[0]].format(hollow=hollow, size=name[7:]) for name in figures}
    parts.append("\n\n".join(["## Figures", *(f"![{captions[name]}]({path})" for name, path in figures.items())]))
    if summary["compared"]:
        compared = pd.DataFrame(summary["compared"])
        parts.append(f"## Published numbers and ours\n\n{_nearness(compared)}")
        parts += [_published_section(compared, quantity) for quantity in QUANTITIES]
    return [*parts, *([reasons] if reasons else []), _beyond_section(cell_table(summary["cells"]))]


def _nearness(compared: pd.DataFrame) -> str:
    """How far our acceptance rates are from the published ones."""
    rates = compared[(compared["quantity"] == "acceptance") & compared["ours_sampler"].isin(list(WITHIN))]
    far = rates[(rates["ours"] - rates["value"]).abs() > rates["ours_sampler"].map(WITHIN)]
    limits = " and ".join(f"{limit:g} ({LABELS[sampler]})" for sampler, limit in WITHIN.items())
    text = f"{len(rates) - len(far)} of {len(rates)} acceptance rates are within {limits} of the published curve."
    lines = [
        f"- {LABELS[row['ours_sampler']]} at step size {row['step_size']:g}, width {row['width']}: "
        f"published {row['value']:g}, ours {row['ours']:.3f}"
        for row in far.to_dict("records")
    ]
    return text + (" The others:\n\n" + "\n".join(lines) if lines else "")


def _published_section(compared: pd.DataFrame, quantity: str) -> str:
    """Published values and ours, one line per sampler and step size, widths across."""
    here = compared[compared["quantity"] == quantity].set_index("width")
    kinds = {"pooled": "pooled", "ours": "paper's definition"} if quantity in STATISTICS else {"ours": "ours"}
    lines: dict[str, pd.Series] = {}
    for (sampler, size, name), group in here.groupby(["sampler", "step_size", "ours_sampler"], sort=False):
        lines[f"**{LABELS[sampler].split(' (')[0]}, {size:g}, published**"] = group["value"]
        lines |= {f"{LABELS[name]}, {size:g}, {kind}": group[key] for key, kind in kinds.items()}
    shown = pd.DataFrame(lines).T.dropna(how="all").sort_index(axis=1)
    return f"### {QUANTITIES[quantity]}\n\n{_numbers('sampler, step size', shown)}"


def _beyond_section(cells: pd.DataFrame) -> str:
    """Effective samples per second, and depth."""
    single = cells[cells["chains"] == 1]
    flat, deep = single[single["depth"] == 1], single[single["depth"] > 1].sort_values(["depth", "sampler"])
    best = flat.pivot_table("predictions.ess_per_second", "sampler", "width", "max", sort=False).sort_index(axis=1)
    header = "effective samples of predictions per second, best step size"
    parts = ["## Beyond the paper", _numbers(header, best.rename(index=LABELS))]
    lines = []
    for row in deep.to_dict("records"):
        size = f", {row['step_size']:g}" if row["step_size"] > 0 else ""
        label = f"{row['depth']} hidden layers, {LABELS[row['sampler']]}{size}"
        lines.append([label, str(row["width"]), number(row["acceptance"]), number(row["predictions.ess_per_step"])])
    if lines:
        parts.append(table(["depth, sampler, step size", "width", "acceptance", "ESS per step, predictions"], lines))
    return "\n\n".join(parts)


def _to_html(markdown: str, folder: Path) -> str:
    """One HTML file from a page in Markdown, with the pictures of the folder inside and nothing from outside."""

    def picture(found: re.Match[str]) -> str:
        encoded = base64.b64encode((folder / found[1]).read_bytes()).decode()
        image = f'<div class="scroll"><img alt="{found[2]}" src="data:image/png;base64,{encoded}"></div>'
        return f'<figure id="{Path(found[1]).stem}">{image}<figcaption>{found[2]}</figcaption></figure>'

    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    body = re.sub(r'<p><img src="([^"]+)" alt="([^"]*)" */?></p>', picture, body)
    body = re.sub(r"(?s)<table>.*?</table>", r'<div class="scroll">\g<0></div>', body)
    body = body.replace("<td>confirmed</td>", '<td class="yes">confirmed</td>')
    body = re.sub("<td>(not confirmed|depends on [^<]*)</td>", r'<td class="no">\1</td>', body)
    template = Path(__file__).with_name("report_template.html")
    return template.read_text(encoding="utf-8").replace("<!-- BODY -->", body)


def table(header: list[str], rows: Iterable[list[str]], alignment: str = "---:") -> str:
    """A Markdown table, first column left, the others as given."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|---" + f"|{alignment}" * (len(header) - 1) + "|", *lines[1:]])


def _numbers(corner: str, frame: pd.DataFrame) -> str:
    """A table of numbers in Markdown, with the names of its rows in the first column."""
    rows = ([name, *map(number, values)] for name, *values in frame.itertuples(name=None))
    return table([corner, *map(str, frame.columns)], rows)


def number(value: float | None) -> str:
    """Two significant digits, three decimals above 1, and nothing for what is not there."""
    if value is None or value != value:
        return ""
    return f"{value:.3f}" if value > 1 else "0" if value < 1e-4 else f"{value:.2g}"


def versions(summary: Row) -> str:
    """Names and versions of what made the run."""
    return ", ".join(f"{name} {number}" for name, number in summary["versions"].items())


def _is_paper_data(config: Row) -> bool:
    return config["data"] == "cifar10" and config["n_train"] == 256
