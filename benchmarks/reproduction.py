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
    parts = [
        (FOLDER / "intro.md").read_text().rstrip(),
        f"Chains of {scale['steps']} steps up to width {scale['full_steps_to']} and fewer above (proportional to "
        f"width^-0.75), {scale['burn_in']} steps of burn-in, one draw stored per {scale['thin']} steps, "
        f"{scale['n_train']} training images, {scale['n_test']} test images, seed {summary['config']['seed']}. "
        f"{versions(summary)}.",
        *results_sections(summary, figures, (FOLDER / "reasons.md").read_text().rstrip()),
    ]
    return "\n\n".join(parts) + "\n"


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
