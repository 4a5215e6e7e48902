"""Write docs/reproduction.md from a finished `widebnn reproduce all --scale laptop --data cifar10`.

python benchmarks/reproduction.py RUN    copies the run's summary and figures, then writes the page
python benchmarks/reproduction.py        writes the page from what was copied before
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from common import ROOT
from widebnn.reproduction.report import results_sections, versions

FOLDER = ROOT / "docs" / "reproduction"
FIGURES = ("acceptance", "ess", "rhat", "traces-0.1", "speed", "distance")


def page() -> str:
    """The whole page."""
    summary = json.loads((FOLDER / "summary.json").read_text())
    scale = summary["scale"]
    figures = {name: f"reproduction/{name}.png" for name in FIGURES if (FOLDER / f"{name}.png").exists()}
    intro, reasons = ((FOLDER / f"{name}.md").read_text().rstrip() for name in ("intro", "reasons"))
    setting = (
        f"Chains of {scale['steps']} steps up to width {scale['full_steps_to']} and fewer above (proportional to "
        f"width^-0.75), {scale['burn_in']} steps of burn-in, one draw stored per {scale['thin']} steps, "
        f"{scale['n_train']} training images, {scale['n_test']} test images, seed {summary['config']['seed']}. "
        f"{versions(summary)}."
    )
    return "\n\n".join([intro, setting, *results_sections(summary, figures, reasons)]) + "\n"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        FOLDER.mkdir(exist_ok=True)
        for path in [Path(sys.argv[1], "summary.json"), *(Path(sys.argv[1], f"{name}.png") for name in FIGURES)]:
            if path.exists():
                shutil.copy(path, FOLDER)
    (ROOT / "docs" / "reproduction.md").write_text(page())
