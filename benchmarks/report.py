"""Write docs/benchmarks.md from the measurements of steps.py and mixing.py.

python benchmarks/report.py
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def digits(value: float) -> str:
    """Three digits, never an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A markdown table, first column left, the others right."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def where(report: dict[str, Any]) -> str:
    """The command, the machine and the versions."""
    machine = report["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in report["packages"].items())
    return (
        f"`{report['command']}` on {machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']:.0f} GiB; {packages}. "
        f"Data: {report['problem']['data']}."
    )


def steps_section(report: dict[str, Any]) -> str:
    """Time per step."""
    widths = sorted({row["width"] for row in report["results"]})
    names = list(dict.fromkeys(row["contender"] for row in report["results"]))
    cells = {(row["contender"], row["width"]): row for row in report["results"]}

    def cell(name, width):
        row = cells.get((name, width))
        if row is None:
            return ""
        return f"{digits(row['ms_per_step'])} ({digits(row['ms_min'])}-{digits(row['ms_max'])})"

    times = table(
        ["sampler, coordinates", *map(str, widths)], [[name, *(cell(name, w) for w in widths)] for name in names]
    )
    kinds = list(dict.fromkeys((r["slower"], r["faster"]) for r in report["ratios"]))
    found = {(r["slower"], r["faster"], r["width"]): r for r in report["ratios"]}
    ratio_rows = [
        [f"{slower} / {faster}"]
        + [
            f"{digits(r['ratio'])} ({digits(r['min'])}-{digits(r['max'])})"
            for r in (found[slower, faster, w] for w in widths)
        ]
        for slower, faster in kinds
    ]
    notes = "\n".join(f"- {note}" for note in report["notes"])
    setting = f"one hidden layer, n = {report['problem']['n']}: median over {report['repeats']} rounds"
    return f"""## Time per step

{where(report)}
Milliseconds per step against width, {setting} (fastest to slowest), all measured in turn in one run.

{times}

Ratios, within the same run (range over the rounds):

{table(["ratio", *map(str, widths)], ratio_rows)}

{notes}

![Time per step against width](images/steps.png)
"""


def mixing_section(report: dict[str, Any]) -> str:
    """Effective samples per second."""
    parts = [
        f"## Effective samples\n\n{where(report)} "
        f"{report['problem']['seconds_per_sampler']:g} s of sampling for each sampler, all from the same start. "
        "Columns: effective samples per second of the log-likelihood (lp), of the predictive mean at 16 test images "
        "and of the slowest of 100 random projections of the chain's coordinates; gradients per effective sample."
    ]
    for width in sorted({row["width"] for row in report["results"]}):
        here = [row for row in report["results"] if row["width"] == width]
        rows = []
        for row in sorted(here, key=lambda row: -row["ess_per_second"]["slowest projection"]):
            per = row["ess_per_gradient"]
            rows.append(
                [row["sampler"], digits(row["ms_per_step"]), f"{row['acceptance_rate']:.2f}"]
                + [digits(value) for value in row["ess_per_second"].values()]
                + [digits(1 / per[key]) if per else "" for key in ("log-likelihood", "slowest projection")]
            )
        header = ["sampler", "ms/step", "acceptance", "lp /s", "mean /s", "slowest /s", "gradients, lp", "slowest"]
        parts.append(f"### Width {width}\n\n{table(header, rows)}")
        named = {row["sampler"]: row["ess_per_second"] for row in here}
        auto = named["auto (Hilbert-space HMC)"]
        published = next(rates for name, rates in named.items() if name.startswith("published"))
        theirs = {name: rates for name, rates in named.items() if name.startswith("BlackJAX")}
        best = max(theirs, key=lambda name: min(theirs[name].values()))
        lines = [
            f"- {key}: {digits(auto[key] / published[key])} times the published recipe, "
            f"{auto[key] / theirs[best][key]:.2f} times {best}"
            for key in auto
        ]
        parts.append("The default sampler against the others:\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Read what was measured, write the page."""
    intro = (ROOT / "benchmarks" / "intro.md").read_text()
    sections = [intro]
    steps, mixing = RESULTS / "steps.json", RESULTS / "mixing.json"
    if steps.is_file():
        sections.append(steps_section(json.loads(steps.read_text())))
        (ROOT / "docs" / "images").mkdir(exist_ok=True)
        shutil.copy(steps.with_suffix(".png"), ROOT / "docs" / "images" / "steps.png")
    if mixing.is_file():
        sections.append(mixing_section(json.loads(mixing.read_text())))
    (ROOT / "docs" / "benchmarks.md").write_text("\n".join(sections))
    print("Wrote docs/benchmarks.md.")


if __name__ == "__main__":
    main()
