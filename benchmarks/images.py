"""Accuracy and calibration on images, beside the infinite-width limit and logistic regression.

python benchmarks/images.py [--data-dir DIR] [--cells digits:256,digits:1000,cifar10:256,cifar10:1024,cifar10:4096]

Results go to benchmarks/results/images.json one by one; what is there is not run again.
"""

from __future__ import annotations

import operator
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import softmax
from sklearn.linear_model import LogisticRegressionCV

from common import RESULTS, parser, read, save_row
from widebnn.data import load_dataset
from widebnn.diagnostics.calibration import classification_scores
from widebnn.estimators import WideBNNClassifier
from widebnn.estimators.classifier import LABEL_SHIFT, LOGIT_SCALE
from widebnn.estimators.ensemble import argmax_probabilities
from widebnn.estimators.transform import location_and_scale
from widebnn.likelihoods.softmax import softmax_log_likelihood
from widebnn.limits import gp_posterior, nngp_kernel
from widebnn.precision import double_precision, in_double_precision
from widebnn.samplers.target import Target
from widebnn.sampling import sample

OUT = RESULTS / "images.json"
CELLS = "digits:256,digits:1000,cifar10:256,cifar10:1024,cifar10:4096"
TEST_ROWS = {"digits": 700, "cifar10": 1000}
SETTINGS: dict[str, Any] = {"width": 512, "chains": 2, "burn_in": 40, "target_ess": 30, "max_steps": 40}
SETTINGS["max_minutes"] = None
"""Of the networks: fewer units and draws than the defaults, for an hour on a laptop."""
SOFTMAX_ROWS = 1024
"""With more rows than this there is label regression only, to save time."""


def run_networks(likelihood: str) -> Callable[..., Iterator[tuple[np.ndarray, dict[str, Any]]]]:
    """The estimator with its defaults but for SETTINGS, and its infinite-width limit with the same hyperparameters."""

    def run(x, labels, x_test):
        model = WideBNNClassifier(likelihood=likelihood, random_state=0, **SETTINGS).fit(x, labels)
        found = {name: model.diagnostics_[name] for name in ("ess", "rhat", "steps", "acceptance_rate")}
        yield model.predict_proba(x_test), found
        x, x_test = ((part - model.x_mean_) / model.x_scale_ for part in (x, x_test))
        if likelihood == "softmax":
            yield softmax_limit(model, x, np.eye(10)[labels], x_test), {}
            return
        noise = model.hyperparameters_.noise
        limit = gp_posterior(model.network_, x, np.eye(10)[labels] - LABEL_SHIFT, noise, x_test)
        std = np.sqrt(limit.variance + noise**2)[:, None]
        yield argmax_probabilities(limit.mean[None], std[None]), {}

    return run


def softmax_limit(model: WideBNNClassifier, x: np.ndarray, y: np.ndarray, x_test: np.ndarray) -> np.ndarray:
    """Logits s f, f a Gaussian process and s as for the network, sampled by Hilbert-space HMC: f = root z at x."""
    n, classes = y.shape
    kernel = nngp_kernel(model.network_, np.concatenate([x, x_test]))
    root = np.linalg.cholesky(kernel[:n, :n] + 1e-9 * np.eye(n))
    white = np.linalg.solve(root, kernel[:n, n:])
    std = np.sqrt(np.maximum(np.diagonal(kernel)[n:] - np.sum(white**2, axis=0), 0.0))

    def log_likelihood(u):
        return softmax_log_likelihood(LOGIT_SCALE.at(u["s"]) * (jnp.asarray(root) @ u["z"]), jnp.asarray(y))

    def sample_reference(key):
        with double_precision():
            keys = jax.random.split(key)
            return {"z": jax.random.normal(keys[0], (n, classes)), "s": jax.random.normal(keys[1])}

    target = Target(in_double_precision(log_likelihood), sample_reference)
    draws = sample(target, steps=600, burn_in=300, thin=2, chains=2, progress=False).draws
    z, s = (np.asarray(draws[name]).reshape(-1, *draws[name].shape[2:]) for name in ("z", "s"))
    rng = np.random.default_rng(0)
    total = np.zeros((len(x_test), classes))
    for z_one, s_one in zip(z, s, strict=True):
        f = white.T @ z_one + std[:, None] * rng.standard_normal(total.shape)
        total += softmax(LOGIT_SCALE.median * np.exp(LOGIT_SCALE.log_sd * s_one) * f, axis=1)
    return total / len(z)


def run_logistic(x, labels, x_test):
    """Multinomial, standardised, penalty by the log loss of five-fold cross-validation."""
    centre, scale = location_and_scale(x)
    options = {"cv": 5, "max_iter": 300, "tol": 1e-3, "use_legacy_attributes": False}
    model = LogisticRegressionCV(Cs=np.geomspace(1e-5, 1, 6), scoring="neg_log_loss", **options)
    model.fit((x - centre) / scale, labels)
    yield model.predict_proba((x_test - centre) / scale), {}


METHODS: dict[tuple[str, ...], Callable[..., Iterator[tuple[np.ndarray, dict[str, Any]]]]] = {
    ("widebnn regression", "nngp"): run_networks("regression"),
    ("widebnn softmax", "nngp softmax"): run_networks("softmax"),
    ("logistic",): run_logistic,
}
"""What gives the predictions of which methods, in that order."""


def run(data: str, rows: int, methods: tuple[str, ...], data_dir: Path) -> Iterator[dict[str, Any]]:
    """The rows of some methods for one training set."""
    dataset = load_dataset(data, rows, TEST_ROWS[data], data_dir=data_dir if data == "cifar10" else None)
    x, x_test = (np.asarray(part, np.float64) for part in (dataset.x_train, dataset.x_test))
    labels, labels_test = (np.argmax(part, axis=1) for part in (dataset.y_train, dataset.y_test))
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for method, (p, details) in zip(methods, METHODS[methods](x, labels, x_test), strict=True):
            seconds, began = time.perf_counter() - began, time.perf_counter()
            scores = classification_scores(p, labels_test)
            yield {"data": data, "rows": rows, "method": method} | scores | {"seconds": seconds} | details


def main() -> None:
    """Run what is missing."""
    arguments = parser(__doc__)
    arguments.add_argument("--cells", default=CELLS)
    options = arguments.parse_args()
    cell_of = operator.itemgetter("data", "rows", "method")
    done = {cell_of(row) for row in read(OUT)["rows"]}
    for cell in options.cells.split(","):
        data, rows = cell.split(":")
        for methods in METHODS:
            missing = any((data, int(rows), method) not in done for method in methods)
            if not missing or ("softmax" in methods[0] and int(rows) > SOFTMAX_ROWS):
                continue
            for row in run(data, int(rows), methods, options.data_dir):
                save_row(OUT, SETTINGS, row, cell_of)
                print(row, flush=True)


if __name__ == "__main__":
    main()
