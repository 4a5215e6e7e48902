"""Values read off the paper's figures.

CIFAR-10, first 256 training images in TensorFlow Datasets' order, one hidden layer of GELU units, noise 0.1, thin 25,
burn-in 20 000 of a million steps. The axis of figure 1 says 2096 and 4192 where it must mean 2048 and 4096.
"""

from __future__ import annotations

from typing import Any

RHAT_STEP_SIZE = 0.1
WIDTHS = {
    "acceptance": (128, 512, 1024, 2048, 4096),
    "weights": (512, 1024, 2048, 4096, 8192),
    "predictions": (512, 1024, 2048, 4096, 8192),
    "rhat": (512, 4096),
}
VALUES = {
    ("acceptance", "pcn", 0.2): (0.0, 0.0, 0.035, 0.19, 0.38),
    ("acceptance", "pcn", 0.1): (0.0, 0.055, 0.29, 0.51, 0.66),
    ("acceptance", "pcn", 0.01): (0.80, 0.85, 0.92, 0.95, 0.96),
    ("acceptance", "lmc", 0.1): (0.03, 0.86, 0.82, 0.75, 0.65),
    ("acceptance", "pcnl", 0.1): (0.006, 0.57, 0.58, 0.58, 0.58),
    ("weights", "pcn", 0.2): (0.0002, 0.008, 0.045, 0.092, 0.133),
    ("predictions", "pcn", 0.2): (0.0005, 0.025, 0.133, 0.258, 0.353),
    ("weights", "pcn", 0.1): (0.0035, 0.018, 0.031, 0.040, 0.046),
    ("predictions", "pcn", 0.1): (0.013, 0.059, 0.095, 0.116, 0.128),
    ("weights", "pcnl", 0.2): (0.023, 0.048, 0.074, 0.097, 0.113),
    ("predictions", "pcnl", 0.2): (0.078, 0.151, 0.217, 0.265, 0.303),
    ("weights", "pcnl", 0.1): (0.051, 0.053, 0.057, 0.058, 0.058),
    ("predictions", "pcnl", 0.1): (0.192, 0.171, 0.169, 0.164, 0.160),
    ("weights", "lmc", 0.1): (0.027, 0.010, 0.0035, 0.0018, 0.0010),
    ("predictions", "lmc", 0.1): (0.058, 0.025, 0.010, 0.0047, 0.0024),
    ("weights", "lmc", 0.01): (0.008, 0.009, 0.013, 0.011, 0.011),
    ("predictions", "lmc", 0.01): (0.024, 0.023, 0.030, 0.024, 0.023),
    ("rhat", "pcn", RHAT_STEP_SIZE): (1.023, 1.0014),
    ("rhat", "lmc", RHAT_STEP_SIZE): (1.0023, 1.041),
    ("rhat", "pcnl", RHAT_STEP_SIZE): (1.002, 1.002),
}
"""By quantity (``weights`` and ``predictions``: effective samples per stored draw), sampler and step size, a value for
each of WIDTHS; R-hat of three chains after 20 000 steps."""


def published_numbers() -> list[dict[str, Any]]:
    """Every published number: quantity, sampler, step_size, width and value."""
    return [
        {"quantity": quantity, "sampler": sampler, "step_size": size, "width": width, "value": value}
        for (quantity, sampler, size), values in VALUES.items()
        for width, value in zip(WIDTHS[quantity], values, strict=True)
    ]
