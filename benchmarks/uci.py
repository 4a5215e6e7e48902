"""Test error, likelihood and calibration on UCI tables, beside a Gaussian process, a deep ensemble and the limit.

python benchmarks/uci.py --data-dir DIR [--tables yacht,energy] [--repeats 0-9] [--methods widebnn,nngp,gp,ensemble]

Every repeat has its own split, 90 % training and 10 % test rows, drawn with the repeat's number as seed. Results go to
benchmarks/results/uci.json one by one; what is there, by the present version of the method, is not run again, so that
the command can be interrupted, or run for several tables at once.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
import operator
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.special import ndtr
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from common import RESULTS, SHARED_DATA, Progress, parser, read, save_row
from widebnn.diagnostics.calibration import regression_scores
from widebnn.estimators import WideBNNRegressor
from widebnn.estimators.transform import TargetScale

OUT = RESULTS / "uci.json"
DISTINCT = "-distinct"
"""Ends the name of a table without the copies of its rows, which are in training and test set otherwise."""
TABLES = ("yacht", "energy", "concrete", "wine-quality-red", f"wine-quality-red{DISTINCT}", "power-plant")
GP_ROWS = 1000
"""Hyperparameters of scikit-learn's process are fitted to at most this many rows, and all rows are conditioned on."""
VERSIONS = {"widebnn": 4, "nngp": 4, "gp": 1, "ensemble": 1}
"""Raised when a method changes so that its results do."""


Split = collections.namedtuple("Split", "x y x_test y_test")
"""Inputs standardised by the training rows; targets in the units of the table."""
Predictive = collections.namedtuple("Predictive", "mean log_density below details")
"""What a method predicts for the test rows, in the units of the table."""


def load_split(name: str, repeat: int, data_dir: Path) -> Split:
    """The last column is the target."""
    table = np.loadtxt(data_dir / f"{name.removesuffix(DISTINCT)}.csv", delimiter=",", skiprows=1)
    if name.endswith(DISTINCT):
        table = np.unique(table, axis=0)
    order = np.random.default_rng(repeat).permutation(len(table))
    test, train = np.split(order, [round(0.1 * len(table))])
    x, y = table[:, :-1], table[:, -1]
    centre, scale = x[train].mean(axis=0), x[train].std(axis=0)
    x = (x - centre) / np.where(scale > 0, scale, 1.0)
    return Split(x[train], y[train], x[test], y[test])


def mixture(scale: TargetScale, means: np.ndarray, std: np.ndarray, y: np.ndarray, **details: Any) -> Predictive:
    """Equally likely normal distributions along the first axis, on the scale of standardised targets."""
    z = (scale.forward(y) - means) / std
    logs = norm.logpdf(z) - np.log(std) + scale.log_derivative(y)
    density = np.logaddexp.reduce(logs) - np.log(len(logs))
    return Predictive(scale.moments(means, std)[0].mean(axis=0), density, ndtr(z).mean(axis=0), details)


def run_network(split: Split, seed: int, width: float = 256) -> Predictive:
    """The estimator with its defaults; of infinite width, the limit with normal noise."""
    model = WideBNNRegressor(width, random_state=seed).fit(split.x, split.y)
    names = ("ess", "rhat", "steps", "acceptance_rate", "gradients", "slowest", "loo", "limit_loo")
    found = {name: model.diagnostics_[name] for name in names if name in model.diagnostics_}
    found |= {"noise": float(model.noise_[0]), "width": str(width), "bent": model.y_bend_ is not None}
    found |= {"heavy": model.hyperparameters_.row_noise is not None}
    x, y = split.x_test, split.y_test
    return Predictive(model.predict(x), model.log_density(x, y), model.cdf(x, y), found)


def run_gp(split: Split, seed: int) -> Predictive:
    """scikit-learn's, with a squared exponential kernel, one length scale per input, and noise."""
    scale = TargetScale.of(split.y, None)
    y, ones = scale.forward(split.y), np.ones(split.x.shape[1])
    kernel = ConstantKernel(1.0, (1e-3, 1e3)) * RBF(ones, (1e-2, 1e3)) + WhiteKernel(0.1, (1e-6, 10.0))
    rows = np.random.default_rng(seed).permutation(len(split.x))[:GP_ROWS]
    model = GaussianProcessRegressor(kernel, random_state=seed, n_restarts_optimizer=1).fit(split.x[rows], y[rows])
    if len(rows) < len(split.x):
        model = GaussianProcessRegressor(model.kernel_, optimizer=None).fit(split.x, y)
    mean, std = model.predict(split.x_test, return_std=True)
    return mixture(scale, mean[None], std[None], split.y_test)


def run_ensemble(split: Split, seed: int, members: int = 5, units: int = 50, updates: int = 20_000) -> Predictive:
    """Networks that predict mean and variance (Lakshminarayanan et al. 2017), each stopped where a tenth held out says.

    Two hidden layers of 50 ReLU units, Adam with rate 0.005, batches of 100 rows, at most 1000 epochs.
    """
    scale = TargetScale.of(split.y, None)
    standard = split._replace(y=scale.forward(split.y))
    epochs = min(1000, updates // max(1, len(split.x) // 111))
    found = [_train(key, standard, units, epochs) for key in jax.random.split(jax.random.key(seed), members)]
    means, stds = (np.stack(part) for part in zip(*found, strict=True))
    return mixture(scale, means, stds, split.y_test, members=members)


def _train(key: jax.Array, split: Split, units: int, epochs: int) -> tuple[np.ndarray, np.ndarray]:
    weights_key, order_key, batch_key = jax.random.split(key, 3)
    order = np.asarray(jax.random.permutation(order_key, len(split.x)))
    held, train = np.split(order, [max(1, len(order) // 10)])
    x, y = jnp.asarray(split.x, jnp.float32), jnp.asarray(split.y, jnp.float32)
    sizes = (x.shape[1], units, units, 2)
    layers = [
        (jnp.sqrt(2 / a) * jax.random.normal(k, (a, b)), jnp.zeros(b))
        for k, a, b in zip(jax.random.split(weights_key, 3), sizes[:-1], sizes[1:], strict=True)
    ]
    batch = min(100, len(train))
    count = len(train) // batch
    optimiser = optax.adam(0.005)

    def predict(layers, x):
        for w, b in layers[:-1]:
            x = jax.nn.relu(x @ w + b)
        mean, raw = (x @ layers[-1][0] + layers[-1][1]).T
        return mean, jax.nn.softplus(raw) + 1e-3

    def loss(layers, x, y):
        mean, std = predict(layers, x)
        return jnp.mean(0.5 * ((y - mean) / std) ** 2 + jnp.log(std))

    def epoch(carry, key):
        layers, state, best, best_loss = carry
        rows = jnp.asarray(train)[jax.random.permutation(key, len(train))[: count * batch]].reshape(count, batch)

        def step(carry, rows):
            layers, state = carry
            updates, state = optimiser.update(jax.grad(loss)(layers, x[rows], y[rows]), state)
            return (optax.apply_updates(layers, updates), state), None

        (layers, state), _ = jax.lax.scan(step, (layers, state), rows)
        now = loss(layers, x[held], y[held])
        best = jax.tree.map(lambda new, old: jnp.where(now < best_loss, new, old), layers, best)
        return (layers, state, best, jnp.minimum(now, best_loss)), None

    @jax.jit
    def fit(layers):
        start = (layers, optimiser.init(layers), layers, jnp.inf)
        return jax.lax.scan(epoch, start, jax.random.split(batch_key, epochs))[0][2]

    mean, std = predict(fit(layers), jnp.asarray(split.x_test, jnp.float32))
    return np.asarray(mean, np.float64), np.asarray(std, np.float64)


LIMIT = functools.partial(run_network, width=math.inf)
METHODS = {"widebnn": run_network, "nngp": LIMIT, "gp": run_gp, "ensemble": run_ensemble}


def run(name: str, method: str, repeat: int, data_dir: Path) -> dict[str, Any]:
    """The row of a method for one split."""
    split = load_split(name, repeat, data_dir)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = METHODS[method](split, repeat)
    seconds = time.perf_counter() - began
    scores = regression_scores(split.y_test, found.mean, found.log_density, found.below)
    cell = {"table": name, "method": method, "repeat": repeat, "version": VERSIONS[method]}
    return cell | {"rows": len(split.x)} | scores | {"seconds": seconds} | found.details


def is_current(row: dict[str, Any]) -> bool:
    """Whether the present version of the method made this row."""
    return row.get("version", 1) == VERSIONS[row["method"]]


def main() -> None:
    """Run what is missing."""
    arguments = parser(__doc__, data_dir=SHARED_DATA / "uci")
    arguments.add_argument("--tables", default=",".join(TABLES))
    arguments.add_argument("--methods", default=",".join(METHODS))
    arguments.add_argument("--repeats", default="0-9", help="the numbers of the splits, such as 0-4")
    options = arguments.parse_args()
    first, _, last = options.repeats.partition("-")
    cell_of = operator.itemgetter("table", "method", "repeat")
    done = {cell_of(row) for row in read(OUT)["rows"] if is_current(row)}
    repeats = range(int(first), int(last or first) + 1)
    cells = itertools.product(repeats, options.tables.split(","), options.methods.split(","))
    missing = [(table, method, repeat) for repeat, table, method in cells if (table, method, repeat) not in done]
    progress = Progress(len(missing))
    for table, method, repeat in missing:
        row = run(table, method, repeat, options.data_dir)
        save_row(OUT, {}, row, cell_of)
        scores = f"rmse {row['rmse']:.3f}, nll {row['nll']:.3f}, 90 % intervals cover {row['coverage_90']:.1%}"
        progress.done(f"{table} {method} {repeat}: {scores}")


if __name__ == "__main__":
    main()
