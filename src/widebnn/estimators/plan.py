"""How the chains of a fit are run, and how much time there is."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

from widebnn.errors import check_real
from widebnn.posteriors import Posterior


class Clock:
    """The time that a fit may still take."""

    def __init__(self, minutes: float | None):
        self._began = time.perf_counter()
        self.seconds = math.inf
        if minutes is not None:
            self.seconds = 60 * check_real("max_minutes", minutes, above=0, at_most=math.inf)

    def left(self, share: float = 1.0) -> float:
        """Seconds until this share of the time is over; 0 afterwards."""
        return max(0.0, share * self.seconds - (time.perf_counter() - self._began))


@dataclass(frozen=True)
class Plan:
    """How the chains of a fit are run; everything is checked."""

    sampler: str
    step_size: float | None
    chains: int
    burn_in: int
    wanted: int
    """Effective draws."""
    most: int
    """Steps of a chain."""
    clock: Clock
    progress: bool | None
    store: str | None

    def folder(self, target: Posterior, name: str) -> Path | None:
        """Where a part of the fit is stored."""
        return None if self.store is None else Path(self.store) / f"{target.dtype}-{name}"

    @property
    def has_begun(self) -> bool:
        """Whether chains of this fit are stored already."""
        return self.store is not None and any(path.is_dir() for path in Path(self.store).glob("*"))
