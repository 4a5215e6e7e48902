"""Time and memory of the regressor against the number of training rows, each in a process of its own.

python benchmarks/rows.py [--rows 256,1000,5000,10000] [--width 1024]

The table has eight inputs and noise of a tenth of the signal. Results go to benchmarks/results/rows.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from typing import Any

import numpy as np

from common import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "rows.json"
INPUTS = 8
STEPS = 8


def measure(rows: int, width: int) -> dict[str, Any]:
    """One fit of few steps, of one chain."""
    import widebnn.estimators.base as base
    from widebnn.estimators import WideBNNRegressor

    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, INPUTS))
    y = np.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.1 * rng.normal(size=rows)
    evidence: dict[str, float] = {}
    choose = base.choose_hyperparameters

    def timed(*arguments, **options):
        began = time.perf_counter()
        found = choose(*arguments, **options)
        evidence["seconds"] = time.perf_counter() - began
        return found

    base.choose_hyperparameters = timed  # type: ignore[assignment]
    model = WideBNNRegressor(width, chains=1, burn_in=10, target_ess=1, max_steps=STEPS, random_state=0)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, y)
    total = time.perf_counter() - began
    gradients = float(model.posterior_["sample_stats"]["gradients"].values.sum())
    seconds = model.diagnostics_["seconds"]
    return {
        "rows": rows,
        "width": width,
        "evidence_seconds": evidence["seconds"],
        "seconds_per_gradient": seconds / gradients,
        "gradients_per_draw": gradients / STEPS,
        "seconds_per_draw": seconds / STEPS,
        "fit_seconds": total,
        "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


def main() -> None:
    """Run every size in a process of its own: memory is the peak of a process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="256,1000,5000,10000")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.width)))
        return
    found = []
    for rows in map(int, options.rows.split(",")):
        command = [sys.executable, __file__, "--one", str(rows), "--width", str(options.width)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found.append(json.loads(output.splitlines()[-1]))
        print(found[-1], flush=True)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
