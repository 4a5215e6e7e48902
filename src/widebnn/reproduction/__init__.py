"""The paper's experiments, re-run: grids of cells, each one run of Markov chains, and what is read off them."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from widebnn.reproduction.cells import Cell, run_cell
    from widebnn.reproduction.engines import local_engine, ray_engine
    from widebnn.reproduction.grid import EXPERIMENTS, SCALES, Scale, plan, run_grid
    from widebnn.reproduction.sweeps import sweep

__all__ = [
    "EXPERIMENTS",
    "SCALES",
    "Cell",
    "Scale",
    "local_engine",
    "plan",
    "ray_engine",
    "run_cell",
    "run_grid",
    "sweep",
]
_HOMES = {"Cell": "cells", "run_cell": "cells", "local_engine": "engines", "ray_engine": "engines", "sweep": "sweeps"}


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used: ``widebnn --help`` need not wait for JAX."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'grid')}"), name)
