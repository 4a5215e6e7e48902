"""Diagnostics of chains."""

from widebnn.diagnostics.convergence import ess, rhat
from widebnn.diagnostics.published import published_ess, published_rhat
from widebnn.diagnostics.summary import summarise

__all__ = ["ess", "published_ess", "published_rhat", "rhat", "summarise"]
