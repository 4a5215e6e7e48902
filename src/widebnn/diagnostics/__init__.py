"""Diagnostics of chains."""

from widebnn.diagnostics.convergence import ess, rhat
from widebnn.diagnostics.projections import random_projections

__all__ = ["ess", "random_projections", "rhat"]
