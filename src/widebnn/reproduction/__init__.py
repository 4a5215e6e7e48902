"""The paper's experiments, re-run: grids of cells, each one run of Markov chains, and what is read off them."""

from widebnn.reproduction.cells import Cell, run_cell
from widebnn.reproduction.engines import local_engine, ray_engine
from widebnn.reproduction.grid import EXPERIMENTS, SCALES, Scale, plan, run_grid
from widebnn.reproduction.sweep import sweep

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
