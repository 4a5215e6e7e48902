"""Diagnostics of chains."""

from widebnn.diagnostics.convergence import ess, rhat
from widebnn.diagnostics.summary import summarise

__all__ = ["ess", "rhat", "summarise"]
