"""Time and memory of a fit against the number of training rows, each in a process of its own.

python benchmarks/rows.py [--rows 256,1000,5000,10000] [--width 1024]

The table has eight inputs and noise of a tenth of the signal, the network one hidden layer. Results go to
benchmarks/results/rows.json.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from typing import Any

import numpy as np

import widebnn
from common import RESULTS, in_a_process, parser, peak_megabytes, save
from widebnn.errors import PrecisionWarning
from widebnn.estimators.ensemble import collect_networks
from widebnn.limits import choose_hyperparameters

INPUTS = 8
OPTIONS: dict[str, Any] = {"step_size": 0.02, "num_steps": 20, "steps": 4, "burn_in": 1}
"""About as many gradients of one draw as the regressor takes where the noise is a tenth of the signal."""


def measure(rows: int, width: int) -> dict[str, Any]:
    """Hyperparameters as the regressor chooses them, then some steps of one chain with what it keeps of a draw."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, INPUTS))
    y = np.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.1 * rng.normal(size=rows)
    began = time.perf_counter()
    chosen = choose_hyperparameters(x, y, depths=1, input_scales=True)
    evidence = time.perf_counter() - began
    network, scaled = chosen.network(INPUTS, width), x * np.array(chosen.input_scales)
    for dtype in ("float32", "mixed", "float64"):  # the first that is precise enough, as the regressor does
        target = widebnn.posterior(network, scaled, y[:, None], noise=chosen.noise, dtype=dtype)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", PrecisionWarning)
                result = widebnn.sample(target, "hilbert_hmc", collect=collect_networks(target), **OPTIONS)
            break
        except (PrecisionWarning, widebnn.WidebnnError):
            continue
    found = {"rows": rows, "width": width, "dtype": dtype, "gradients_per_draw": OPTIONS["num_steps"]}
    found |= {"evidence_seconds": evidence, "compile_seconds": result.compile_seconds}
    found["seconds_per_draw"] = result.seconds / OPTIONS["steps"]
    return found | {"peak_memory_gb": peak_megabytes() * 2**20 / 1e9}


def main() -> None:
    """Run every size in a process of its own: memory is the peak of a process."""
    arguments = parser(__doc__)
    arguments.add_argument("--rows", default="256,1000,5000,10000")
    arguments.add_argument("--width", type=int, default=1024)
    arguments.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.width)))
        return
    found = []
    for rows in options.rows.split(","):
        found.append(in_a_process(__file__, "--one", rows, "--width", str(options.width)))
        print(found[-1], flush=True)
        save(found, RESULTS / "rows.json")


if __name__ == "__main__":
    main()
