"""Accuracy and calibration on images, beside the infinite-width limit and logistic regression.

python benchmarks/images.py [--data-dir DIR] [--cells digits:256,digits:1000,cifar10:256,cifar10:1024,cifar10:4096]

Results go to benchmarks/results/images.json one by one; what is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegressionCV

from common import DATA_DIR, ROOT
from widebnn.data import load_dataset
from widebnn.diagnostics.calibration import classification_scores
from widebnn.estimators import WideBNNClassifier
from widebnn.estimators.ensemble import argmax_probabilities
from widebnn.networks.evidence import choose_hyperparameters
from widebnn.networks.nngp import gp_posterior

RESULTS = ROOT / "benchmarks" / "results" / "images.json"
CELLS = "digits:256,digits:1000,cifar10:256,cifar10:1024,cifar10:4096"
TEST_ROWS = {"digits": 700, "cifar10": 1000}
SETTINGS: dict[str, Any] = {"width": 512, "chains": 2, "burn_in": 40, "target_ess": 30, "max_steps": 40}
"""Of the networks: fewer units and draws than the defaults, for an hour on a laptop."""
SOFTMAX_ROWS = 1024
"""With more rows than this there is label regression only."""


def widebnn(likelihood: str) -> Callable[..., tuple[np.ndarray, dict[str, Any]]]:
    """The estimator as it comes but for SETTINGS."""

    def run(x, labels, x_test):
        model = WideBNNClassifier(likelihood=likelihood, random_state=0, **SETTINGS).fit(x, labels)
        found = {name: model.diagnostics_[name] for name in ("ess", "rhat", "steps", "acceptance_rate")}
        return model.predict_proba(x_test), found

    return run


def run_nngp(x, labels, x_test):
    """Label regression in the limit, with the hyperparameters of its evidence."""
    centre, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    x, x_test = (x - centre) / scale, (x_test - centre) / scale
    y = np.eye(10)[labels] - 0.1
    chosen = choose_hyperparameters(x, y, seed=0)
    found = gp_posterior(chosen.network(x.shape[1], 1), x, y, chosen.noise, x_test)
    std = np.sqrt(found.variance + chosen.noise**2)[:, None]
    return argmax_probabilities(found.mean[None], std[None]), {"noise": chosen.noise}


def run_logistic(x, labels, x_test):
    """Multinomial, standardised, penalty by five-fold cross-validation."""
    centre, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    model = LogisticRegressionCV(Cs=np.geomspace(1e-5, 1, 6), cv=5, max_iter=1000, use_legacy_attributes=False)
    model.fit((x - centre) / scale, labels)
    return model.predict_proba((x_test - centre) / scale), {}


METHODS: dict[str, Callable[..., tuple[np.ndarray, dict[str, Any]]]] = {
    "logistic": run_logistic,
    "nngp": run_nngp,
    "widebnn regression": widebnn("regression"),
    "widebnn softmax": widebnn("softmax"),
}


def run(data: str, rows: int, method: str, data_dir: Path) -> dict[str, Any]:
    """One cell."""
    dataset = load_dataset(data, rows, TEST_ROWS[data], data_dir=data_dir if data == "cifar10" else None)
    x, x_test = (np.asarray(part, np.float64) for part in (dataset.x_train, dataset.x_test))
    labels, labels_test = (np.argmax(part, axis=1) for part in (dataset.y_train, dataset.y_test))
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        probabilities, details = METHODS[method](x, labels, x_test)
    seconds = time.perf_counter() - began
    scores = classification_scores(probabilities, labels_test)
    return {"data": data, "rows": rows, "method": method} | scores | {"seconds": seconds} | details


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=DATA_DIR)
    parser.add_argument("--cells", default=CELLS)
    options = parser.parse_args()
    found = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    done = {(row["data"], row["rows"], row["method"]) for row in found}
    for cell in options.cells.split(","):
        data, rows = cell.split(":")
        for method in METHODS:
            if (data, int(rows), method) in done or ("softmax" in method and int(rows) > SOFTMAX_ROWS):
                continue
            found.append(run(data, int(rows), method, options.data_dir))
            temporary = RESULTS.with_suffix(".tmp")
            temporary.write_text(json.dumps({"settings": SETTINGS, "rows": found}, indent=1) + "\n")
            os.replace(temporary, RESULTS)
            print(found[-1], flush=True)


if __name__ == "__main__":
    main()
