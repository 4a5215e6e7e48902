"""Names that users choose from, as types that can be imported without JAX.

Where a registry has more than the name, such as ``widebnn.samplers.SAMPLERS``, a test compares the two.
"""

from typing import Literal

Activation = Literal["gelu", "relu", "erf", "tanh", "sin"]
ClosedFormActivation = Literal["gelu", "relu", "erf", "sin"]
"""Activations whose evidence is known in closed form."""
Coordinates = Literal["weights", "reparametrised", "marginal", "function", "full"]
Sampler = Literal[
    "auto", "hilbert_hmc", "elliptical_slice", "pcn", "pcnl", "mala", "lmc", "underdamped", "rwmh", "hmc"
]  # fmt: skip
Dtype = Literal["float32", "float64", "mixed"]
ClassLikelihood = Literal["softmax", "regression"]
Tails = Literal["auto", "heavy", "normal"]
Transform = Literal["auto", "asinh", "none"]
Download = Literal["cifar10", "mnist"]
Reproduction = Literal["acceptance", "ess", "rhat", "traces", "beyond", "all"]
Scale = Literal["smoke", "laptop", "paper"]
Engine = Literal["local", "ray"]
