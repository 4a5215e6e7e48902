"""Progress with ETA and running acceptance: a bar on terminals, a line now and then in logs."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Column

LINE_SECONDS = 30.0
"""Time between two lines where there is no terminal."""


def display(show: bool | None = None) -> RichProgress:
    """An empty display on stderr, for any number of bars; ``show=None`` shows it only if stderr is a terminal."""
    console = Console(stderr=True, force_terminal=show or None)
    narrow = console.width < 110
    return RichProgress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True, max_width=max(10, console.width - 76))),
        BarColumn(8 if narrow else 40),
        TextColumn("{task.percentage:>3.0f} %", table_column=Column(no_wrap=True, min_width=5)),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
        TextColumn("ETA"),
        TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
        console=console,
        transient=True,
        speed_estimate_period=24 * 3600,
        disable=show is False or not console.is_terminal,
    )


class _Bar:
    """One bar, in a display of its own or in one that is given; with ``show=None`` and no terminal, lines."""

    def __init__(self, description: str, total: float, show: bool | RichProgress | None, done: int = 0):
        self._shared = isinstance(show, RichProgress)
        self._display = show if isinstance(show, RichProgress) else display(show)
        self._lines = show is None and not self._display.console.is_terminal
        self._began = self._said = time.monotonic()
        self._description, self._total, self._done = description, total, done

    def __enter__(self) -> Self:
        if not self._shared:
            self._display.start()
        self._task = self._display.add_task(self._description, total=self._total, completed=self._done, note="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._shared:
            self._display.remove_task(self._task)
        else:
            self._display.stop()

    def _print_now_and_then(self, line: str) -> None:
        if self._lines and time.monotonic() - self._said >= LINE_SECONDS:
            self._display.console.print(line, highlight=False, soft_wrap=True)
            self._said = time.monotonic()


class Progress(_Bar):
    """Progress of all chains of a run, of which some steps are done before."""

    def __init__(self, total: int, done: int, chains: int, show: bool | RichProgress | None):
        super().__init__("starting", total, show, done)
        self._acceptance: float | None = None
        self._skipped = done
        self._chains = "" if chains == 1 else f" x {chains} chains"

    def set_total(self, total: int) -> None:
        """How many steps there will be, as far as is known now."""
        self._total = total
        self._display.update(self._task, total=total)

    def update(self, phase: str, steps: int, acceptance: float) -> None:
        """Move on by ``steps`` steps with this mean acceptance rate."""
        old = self._acceptance
        self._acceptance = acceptance if old is None else 0.7 * old + 0.3 * acceptance
        self._done += steps
        note = f"{self._done}/{self._total} steps{self._chains}, acceptance {self._acceptance:.3f}"
        self._display.update(self._task, description=phase, advance=steps, note=note)
        rate = (time.monotonic() - self._began) / (self._done - self._skipped)
        self._print_now_and_then(f"{phase}: {note}, ETA {rate * (self._total - self._done):.0f} s")


class SearchProgress(_Bar):
    """Progress of the choice of hyperparameters."""

    def __init__(self, show: bool | None):
        super().__init__("choosing hyperparameters", 1.0, show)

    def update(self, share: float, note: str) -> None:
        """This share is done."""
        self._display.update(self._task, completed=share, note=note)
        self._print_now_and_then(f"{self._description}: {note}")

    def say(self, line: str) -> None:
        """A line above the bar, unless nothing is to be shown."""
        if self._lines or not self._display.disable:
            self._display.console.print(line, highlight=False, markup=False, soft_wrap=True)
