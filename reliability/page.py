"""What the reliability commands share: a page of checks with figures, written as JSON, and the scale of a run."""

from __future__ import annotations

import argparse
import ast
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "reliability" / "results"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "statistical")]


class Page:
    """The figures of one command. ``share`` scales the number of trials: 1 is the whole thing, tests take less."""

    def __init__(self, name: str, share: float = 1.0):
        self.name, self.share = name, share
        self.checks: list[dict[str, Any]] = []
        self._began = self._said = time.perf_counter()

    def count(self, whole: int, least: int = 1) -> int:
        """How many trials to make of those that the whole command makes."""
        return max(least, round(whole * self.share))

    def check(self, what: str, figure: str, goal: str, holds: bool) -> None:
        """A figure and the goal it is held against."""
        self.checks.append({"what": what, "figure": figure, "goal": goal, "holds": bool(holds)})
        print(f"{'ok    ' if holds else 'FAILED'} {what}: {figure} (goal: {goal})", flush=True)

    def progress(self, what: str, done: int, total: int) -> None:
        """A line every ten seconds, with the time that is left of this part."""
        now = time.perf_counter()
        if done == 0:
            self._part = now
        if done and now - self._said > 10:
            left = (now - self._part) / done * (total - done)
            print(f"       {what}: {done} of {total}, {left:.0f} s left", file=sys.stderr, flush=True)
            self._said = now

    @property
    def holds(self) -> bool:
        """Whether all checks do."""
        return all(check["holds"] for check in self.checks)

    def write(self) -> None:
        """The results of a whole run."""
        RESULTS.mkdir(exist_ok=True)
        page = {
            "name": self.name,
            "share": self.share,
            "seconds": round(time.perf_counter() - self._began),
            "python": platform.python_version(),
            "checks": self.checks,
        }
        (RESULTS / f"{self.name}.json").write_text(json.dumps(page, indent=1) + "\n")


def main(script: str, run: Callable[[Page], None]) -> None:
    """The command line of a script: ``run`` fills the page, and a check that fails is an exit code of 1."""
    path = Path(script)
    parser = argparse.ArgumentParser(description=describe(path)[0])
    parser.add_argument("--share", type=float, default=1.0, help="part of the trials to make; only 1 is published")
    page = Page(path.stem, parser.parse_args().share)
    run(page)
    if page.share == 1.0:
        page.write()
    raise SystemExit(0 if page.holds else 1)


def describe(path: Path) -> tuple[str, str]:
    """The first line of a script's docstring and the rest of it: heading and text of its part of the page."""
    text = ast.get_docstring(ast.parse(path.read_text())) or path.stem
    first, _, rest = text.partition("\n")
    return first.rstrip("."), rest.strip()
