"""The figures of all commands of ``make reliability`` as docs/reliability.md."""

from __future__ import annotations

import json
import re
from typing import Any

from page import RESULTS, ROOT, describe

PAGE = ROOT / "docs" / "reliability.md"
COMMANDS = ("kills", "damage", "invariance", "nonfinite", "proof", "hostile", "soak")
INTRODUCTION = """# Reliability

What happens to a run when it is killed, its files are damaged, the disk is full, the input is nonsense; and whether the
draws have the right law. `make reliability` runs the commands below one after the other, each of which prints its
figures, and writes this page. A smaller share of the same trials is part of `make test`, or, of kills, damage and
hostile files, of `make test-long`; a single command runs by itself too, `python reliability/kills.py`, and quickly with
`--share 0.05`.
"""


def section(name: str, page: dict[str, Any] | None) -> str:
    """Heading, text, figures."""
    heading, text = describe(ROOT / "reliability" / f"{name}.py")
    lines = [f"## {heading}", "", text, ""]
    if page is None:
        return "\n".join([*lines, f"Not run yet: `python reliability/{name}.py`.", ""])
    lines += [
        f"`python reliability/{name}.py`, {_minutes(page['seconds'])}:",
        "",
        "| what | figure | goal | |",
        "|---|---|---|---|",
    ]
    for check in page["checks"]:
        cells = [check["what"], check["figure"], check["goal"], "holds" if check["holds"] else "**fails**"]
        lines.append("| " + " | ".join(re.sub(r"\s*\n\s*", " ", cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def load(name: str) -> dict[str, Any] | None:
    """What a whole run of a command has written, if there was one."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def build() -> str:
    """The whole page."""
    pages = {name: load(name) for name in COMMANDS}
    checks = [check for page in pages.values() if page for check in page["checks"]]
    held = sum(check["holds"] for check in checks)
    summary = f"{held} of {len(checks)} figures hold"
    missing = [name for name, page in pages.items() if page is None]
    if missing:
        summary += f"; not run yet: {', '.join(missing)}"
    return "\n".join([INTRODUCTION, summary + ".", "", *(section(name, page) for name, page in pages.items())])


if __name__ == "__main__":
    PAGE.write_text(build())
    print(f"Wrote {PAGE.relative_to(ROOT)}")
