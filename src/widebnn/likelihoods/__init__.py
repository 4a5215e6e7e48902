"""Distributions of observations given the function: one likelihood a file."""

from __future__ import annotations

from typing import Any

from widebnn.errors import WidebnnError, check_choice
from widebnn.likelihoods.gaussian import Gaussian
from widebnn.likelihoods.heavy_tails import HeavyTails
from widebnn.likelihoods.input_noise import InputNoise
from widebnn.likelihoods.likelihood import Likelihood, Sizes
from widebnn.likelihoods.lognormal import LogNormal
from widebnn.likelihoods.readout import Prediction
from widebnn.likelihoods.softmax import Softmax

__all__ = [
    "LIKELIHOODS",
    "Gaussian",
    "HeavyTails",
    "InputNoise",
    "Likelihood",
    "LogNormal",
    "Prediction",
    "Sizes",
    "Softmax",
]

LIKELIHOODS: dict[str, type] = {cls.name: cls for cls in (Gaussian, HeavyTails, InputNoise, Softmax)}
"""By name, each with its defaults."""


def as_likelihood(likelihood: Any, noise: Any) -> Likelihood:
    """A likelihood from a name or as it is; ``noise`` is a shorthand for ``Gaussian(noise)``."""
    if isinstance(likelihood, str):
        likelihood = LIKELIHOODS[check_choice("likelihood", likelihood, LIKELIHOODS)]()
    if not all(hasattr(likelihood, name) for name in ("log_evidence", "condition", "observe")):
        raise WidebnnError(
            f"likelihood must be one of {', '.join(LIKELIHOODS)} or an object like Gaussian(noise); got {likelihood!r}."
        )
    if noise is None:
        return likelihood
    if likelihood != Gaussian():
        raise WidebnnError(f"noise={noise} belongs to likelihood='gaussian'; got {likelihood}. Leave one of them out.")
    return Gaussian(noise)
