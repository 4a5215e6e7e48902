"""Write docs/benchmarks.md from the measurements of steps.py.

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
    machine_class = f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']:.0f} GiB"
    return f"`{report['command']}` on {machine_class}; {packages}. Data: {report['problem']['data']}."


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


def main() -> None:
    """Read what was measured, write the page."""
    intro, steps = ROOT / "benchmarks" / "intro.md", RESULTS / "steps.json"
    page = intro.read_text() + "\n" + steps_section(json.loads(steps.read_text()))
    (ROOT / "docs" / "images").mkdir(exist_ok=True)
    shutil.copy(steps.with_suffix(".png"), ROOT / "docs" / "images" / "steps.png")
    (ROOT / "docs" / "benchmarks.md").write_text(page)
    print("Wrote docs/benchmarks.md.")


if __name__ == "__main__":
    main()
