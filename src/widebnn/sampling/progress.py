"""A progress bar with ETA and running acceptance, on terminals only."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress


def display(show: bool | None = None) -> RichProgress:
    """An empty display on stderr, for any number of bars. ``show=None`` means: only if stderr is a terminal."""
    console = Console(stderr=True, force_terminal=show or None)
    return RichProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        speed_estimate_period=24 * 3600,
        disable=show is False or not console.is_terminal,
    )


class Progress:
    """One bar for all chains of a run, in a display of its own or, where one is given, among others."""

    def __init__(self, total: int, chains: int, show: bool | RichProgress | None):
        self._shared = isinstance(show, RichProgress)
        self._display = show if isinstance(show, RichProgress) else display(show)
        self._acceptance: float | None = None
        self._done, self._total = 0, total
        self._chains = "" if chains == 1 else f" x {chains} chains"

    def __enter__(self) -> Progress:
        if not self._shared:
            self._display.start()
        self._task = self._display.add_task("starting", total=self._total, note="")
        return self

    def __exit__(self, *_) -> None:
        if self._shared:
            self._display.remove_task(self._task)
        else:
            self._display.stop()

    def skip(self, steps: int) -> None:
        """Steps that were done before."""
        self._done += steps
        self._display.update(self._task, completed=self._done)

    def update(self, phase: str, steps: int, acceptance: float) -> None:
        """Move on by ``steps`` steps with this mean acceptance rate."""
        old = self._acceptance
        self._acceptance = acceptance if old is None else 0.7 * old + 0.3 * acceptance
        self._done += steps
        note = f"{self._done}/{self._total} steps{self._chains}, acceptance {self._acceptance:.3f}"
        self._display.update(self._task, description=phase, advance=steps, note=note)
