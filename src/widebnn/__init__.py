"""widebnn: exact posterior sampling of wide Bayesian neural networks.

The usual path is ``dense -> posterior -> sample``::

    network = widebnn.dense(x.shape[1], widths=[1024])
    target = widebnn.posterior(network, x, y, noise=0.1)
    result = widebnn.sample(target, "pcn", step_size=0.1, steps=5000, burn_in=1000, thin=10)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from widebnn import samplers
    from widebnn.errors import WidebnnError
    from widebnn.estimators import WideBNNClassifier, WideBNNRegressor
    from widebnn.likelihoods import Gaussian, HeavyTails, InputNoise, LogNormal, Softmax
    from widebnn.networks import Weights, dense, feature_map
    from widebnn.posteriors import Posterior, posterior
    from widebnn.samplers.target import GaussianTarget, Target, gaussian_target
    from widebnn.sampling import Result, device_mesh, sample, track

_HOMES = {
    "errors": ("WidebnnError",),
    "estimators": ("WideBNNClassifier", "WideBNNRegressor"),
    "networks": ("Weights", "dense", "feature_map"),
    "likelihoods": ("Gaussian", "HeavyTails", "InputNoise", "LogNormal", "Softmax"),
    "posteriors": ("Posterior", "posterior"),
    "samplers.target": ("GaussianTarget", "Target", "gaussian_target"),
    "sampling": ("Result", "device_mesh", "sample", "track"),
}
_SUBPACKAGES = ("coordinates", "data", "diagnostics", "estimators", "likelihoods", "limits", "networks", "samplers")
__all__ = [
    "Gaussian",
    "GaussianTarget",
    "HeavyTails",
    "InputNoise",
    "LogNormal",
    "Posterior",
    "Result",
    "Softmax",
    "Target",
    "Weights",
    "WideBNNClassifier",
    "WideBNNRegressor",
    "WidebnnError",
    "dense",
    "device_mesh",
    "feature_map",
    "gaussian_target",
    "posterior",
    "sample",
    "samplers",
    "track",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used: ``widebnn --help`` need not wait for JAX."""
    if name in _SUBPACKAGES:
        return importlib.import_module(f"widebnn.{name}")
    for home, names in _HOMES.items():
        if name in names:
            globals()[name] = getattr(importlib.import_module(f"widebnn.{home}"), name)
            return globals()[name]
    raise AttributeError(f"module 'widebnn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
