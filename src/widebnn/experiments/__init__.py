"""The paper's experiments, re-run: grids of cells, each one Markov chain run, and what is read off them."""

from widebnn.experiments.cells import Cell, run_cell
from widebnn.experiments.grid import EXPERIMENTS, SCALES, Scale, plan, run_grid

__all__ = ["EXPERIMENTS", "SCALES", "Cell", "Scale", "plan", "run_cell", "run_grid"]
