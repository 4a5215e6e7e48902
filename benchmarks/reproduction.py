"""Write docs/reproduction.md from a finished `widebnn reproduce all --scale laptop --data cifar10`.

python benchmarks/reproduction.py RUN    copies the run's summary and figures, then writes the page
python benchmarks/reproduction.py        writes the page from what was copied before
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from common import ROOT
from report import table
from widebnn.experiments.cells import LABELS

FOLDER = ROOT / "docs" / "reproduction"
FIGURES = {
    "acceptance": "Acceptance rate against width",
    "ess": "Effective samples per stored draw against width",
    "rhat": "R-hat of three chains against steps",
    "traces-0.1": "Traces of the first two principal components, step size 0.1",
    "speed": "Effective samples per second against width",
    "distance": "Distance of the posterior from its limits against width",
}
QUANTITIES = {
    "acceptance": "Acceptance rate",
    "weights": "Effective samples per stored draw, random projections of all weights",
    "predictions": "Effective samples per stored draw, random projections of test predictions",
    "rhat": "R-hat of three chains",
}
WITHIN = {"pcn": 0.03, "lmc": 0.05}
"""How near to the published curve the acceptance rate was to come."""


def number(value: float | None) -> str:
    """Two significant digits, and nothing for what is not there."""
    if value is None or value != value:
        return ""
    return f"{value:.3f}" if value > 1 else "0" if value < 1e-4 else f"{value:.2g}"


def section(rows: list[dict[str, Any]], quantity: str) -> str:
    """Published values and ours, one line per sampler and step size, widths across."""
    here = [row for row in rows if row["quantity"] == quantity]
    widths = sorted({row["width"] for row in here})
    lines: list[list[str]] = []
    seen = set()
    for row in here:
        published, ours = (row["sampler"], row["step_size"]), (row["ours_sampler"], row["step_size"], "ours")
        if published not in seen:
            seen.add(published)
            values = {r["width"]: r["value"] for r in here if (r["sampler"], r["step_size"]) == published}
            name = LABELS[row["sampler"]].split(" (")[0]
            lines.append([f"**{name}, {row['step_size']:g}, published**", *(number(values.get(w)) for w in widths)])
        if ours in seen:
            continue
        seen.add(ours)
        mine = {r["width"]: r for r in here if (r["ours_sampler"], r["step_size"]) == ours[:2]}
        kinds = {"ours": "ours"}
        if quantity in ("weights", "predictions"):
            kinds = {"pooled": "pooled", "ours": "paper's definition"}
        for key, kind in kinds.items():
            values = {width: r.get(key) for width, r in mine.items()}
            if any(value is not None for value in values.values()):
                label = f"{LABELS[row['ours_sampler']]}, {row['step_size']:g}, {kind}"
                lines.append([label, *(number(values.get(w)) for w in widths)])
    return f"### {QUANTITIES[quantity]}\n\n{table(['sampler, step size', *map(str, widths)], lines)}\n"


def nearness(rows: list[dict[str, Any]]) -> str:
    """How far our acceptance rates are from the published ones."""
    lines = []
    for sampler, limit in WITHIN.items():
        for row in rows:
            if row["quantity"] == "acceptance" and row["ours_sampler"] == sampler:
                apart = abs(row["ours"] - row["value"])
                if apart > limit:
                    where = f"{LABELS[sampler]} at step size {row['step_size']:g}, width {row['width']}"
                    lines.append(f"- {where}: published {row['value']:g}, ours {row['ours']:.3f}")
    judged = [row for row in rows if row["quantity"] == "acceptance" and row["ours_sampler"] in WITHIN]
    limits = " and ".join(f"{limit:g} ({LABELS[sampler]})" for sampler, limit in WITHIN.items())
    text = f"{len(judged) - len(lines)} of {len(judged)} acceptance rates are within {limits} of the published curve."
    return text + (" The others:\n\n" + "\n".join(lines) if lines else "")


def cells_section(rows: list[dict[str, Any]]) -> str:
    """Beyond the paper: what a second buys, and depth."""
    fast = [row for row in rows if row["chains"] == 1 and row["depth"] == 1]
    widths = sorted({row["width"] for row in fast})
    lines = []
    for sampler in dict.fromkeys(row["sampler"] for row in fast):
        best = []
        for width in widths:
            here = [
                row["predictions"]["ess_per_second"]
                for row in fast
                if (row["sampler"], row["width"]) == (sampler, width)
            ]
            best.append(number(max(here)) if here else "")
        lines.append([LABELS[sampler], *best])
    speed = table(["effective samples of predictions per second, best step size", *map(str, widths)], lines)
    deep = sorted((row for row in rows if row["depth"] > 1), key=lambda row: (row["depth"], row["sampler"]))
    lines = [
        [
            f"{row['depth']} hidden layers, {LABELS[row['sampler']]}"
            + ("" if row["step_size"] is None else f", {row['step_size']:g}"),
            str(row["width"]), number(row["acceptance"]), number(row["predictions"]["ess_per_step"]),
        ]
        for row in deep
    ]  # fmt: skip
    text = f"## Beyond the paper\n\n{speed}\n"
    if lines:
        text += (
            "\n"
            + table(["depth, sampler, step size", "width", "acceptance", "ESS per step, predictions"], lines)
            + "\n"
        )
    return text


def page() -> str:
    """The whole page."""
    summary = json.loads((FOLDER / "summary.json").read_text())
    scale = summary["scale"]
    versions = ", ".join(f"{name} {number}" for name, number in summary["versions"].items())
    claims = [[claim["claim"], claim["verdict"], claim["note"]] for claim in summary["claims"]]
    pictures = "\n\n".join(
        f"![{text}](reproduction/{name}.png)" for name, text in FIGURES.items() if (FOLDER / f"{name}.png").exists()
    )
    parts = [
        (FOLDER / "intro.md").read_text().rstrip(),
        f"Chains of {scale['steps']} steps up to width {scale['full_steps_to']} and fewer above (proportional to "
        f"width^-0.75), {scale['burn_in']} steps of burn-in, one draw stored per {scale['thin']} steps, "
        f"{scale['n_train']} training images, {scale['n_test']} test images, seed {summary['config']['seed']}. "
        f"{versions}.",
        f"## Claims\n\n{table(['claim', 'verdict', 'by'], claims).replace('---:', '---')}\n",
        f"## Figures\n\n{pictures}\n",
        f"## Published numbers and ours\n\n{nearness(summary['compared'])}\n",
        *(section(summary["compared"], quantity) for quantity in QUANTITIES),
        (FOLDER / "reasons.md").read_text().rstrip(),
        cells_section(summary["cells"]),
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def main() -> None:
    """Copy, if a run is given, and write."""
    if len(sys.argv) > 1:
        run = Path(sys.argv[1])
        FOLDER.mkdir(exist_ok=True)
        shutil.copy(run / "summary.json", FOLDER)
        for name in FIGURES:
            if (run / f"{name}.png").exists():
                shutil.copy(run / f"{name}.png", FOLDER)
    (ROOT / "docs" / "reproduction.md").write_text(page())


if __name__ == "__main__":
    main()
