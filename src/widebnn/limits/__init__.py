"""The limit of infinite width: its kernel, its exact posterior, and hyperparameters by its evidence."""

from widebnn.limits.choice import choose_hyperparameters
from widebnn.limits.evidence import Hyperparameters, log_evidence
from widebnn.limits.gp import GPPosterior, gp_posterior, leave_one_out, log_normal
from widebnn.limits.kernel import dual_activation, nngp_kernel

__all__ = [
    "GPPosterior",
    "Hyperparameters",
    "choose_hyperparameters",
    "dual_activation",
    "gp_posterior",
    "leave_one_out",
    "log_evidence",
    "log_normal",
    "nngp_kernel",
]
