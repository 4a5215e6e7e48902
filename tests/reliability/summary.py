"""The figures of ``make reliability`` as docs/reliability.json and docs/reliability.md.

python tests/reliability/summary.py build/reliability.jsonl
"""

import ast
import datetime
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs"
RESULTS, PAGE = DOCS / "reliability.json", DOCS / "reliability.md"
PARTS = ("kills", "damage", "disk", "invariance", "nonfinite", "hostile", "soak", "proof")
INTRODUCTION = """# Reliability

What happens to a run when it is killed, its files are corrupted, the disk is full or the input is hostile; and whether
the draws have the right distribution. `make reliability` runs the long tests in `tests/reliability` at their full size
(hours) and writes this page from the figures in [reliability.json](reliability.json); `make test-long` runs them at a
moderate size, and `pytest -m long tests/reliability/test_kills.py` one of them.
"""


def section(part, figures):
    """Heading, text and figures of one part: the docstring of its test, and a table."""
    docstring = ast.get_docstring(ast.parse((HERE / f"test_{part}.py").read_text()))
    heading, _, text = docstring.partition("\n")
    heading = f"## {heading.rstrip('.')}\n\n{text.strip()}\n\n"
    if not figures:
        return f"{heading}Not measured at this version.\n"
    form = "full" if all(figure["full"] for figure in figures) else "moderate"
    lines = [f"`test_{part}.py`, {form} size:", "", "| what | figure | goal | |", "|---|---|---|---|"]
    for figure in figures:
        cells = [figure["what"], figure["figure"], figure["goal"], "holds" if figure["holds"] else "**fails**"]
        lines.append("| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |")
    return heading + "\n".join([*lines, ""])


def build(results):
    """The whole page."""
    figures, packages = results["figures"], " ".join(f"{name} {v}," for name, v in results["packages"].items())
    held = f"{sum(figure['holds'] for figure in figures)} of {len(figures)} figures hold. "
    held += f"Measured on {results['date']} with {packages} Python {results['python']}, {results['cores']} cores.\n"
    held = held if figures else "No figure has been measured at this version.\n"
    parts = (section(part, [figure for figure in figures if figure["part"] == part]) for part in PARTS)
    return "\n".join([INTRODUCTION, held, *parts])


if __name__ == "__main__":
    about = {"date": datetime.date.today().isoformat(), "cores": os.cpu_count(), "python": platform.python_version()}
    about["packages"] = {name: importlib.metadata.version(name) for name in ("widebnn", "jax", "jaxlib", "numpy")}
    about["figures"] = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    RESULTS.write_text(json.dumps(about, indent=1) + "\n")
    PAGE.write_text(build(about))
