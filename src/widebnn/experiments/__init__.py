"""The paper's experiments, re-run: grids of cells, each one Markov chain run, and what is read off them."""

from widebnn.experiments.cells import Cell, run_cell
from widebnn.experiments.grid import EXPERIMENTS, SCALES, Scale, plan, run_grid
from widebnn.experiments.sweep import local_engine, ray_engine, sweep

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
