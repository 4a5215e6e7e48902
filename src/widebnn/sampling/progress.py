"""A progress bar with ETA and running acceptance, on terminals only."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress


class Progress:
    """Shows one bar for all chains. ``show=None`` means: only if stderr is a terminal."""

    def __init__(self, total: int, chains: int, show: bool | None):
        console = Console(stderr=True, force_terminal=show or None)
        self._acceptance: float | None = None
        label = "" if chains == 1 else f" x {chains} chains"
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(f"steps{label}"),
            TextColumn("acceptance {task.fields[acceptance]}"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=show is False or not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=total, acceptance="...")

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        self._bar.stop()

    def update(self, phase: str, steps: int, acceptance: float) -> None:
        """Move on by ``steps`` steps with this mean acceptance rate."""
        old = self._acceptance
        self._acceptance = acceptance if old is None else 0.7 * old + 0.3 * acceptance
        self._bar.update(self._task, description=phase, advance=steps, acceptance=f"{self._acceptance:.3f}")
