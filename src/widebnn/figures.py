"""Figures of runs. Colours are Okabe and Ito's, distinguishable with any colour vision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from scipy.stats import beta, binom

from widebnn.data import Dataset
from widebnn.diagnostics.calibration import INTERVALS, Reliability, central_coverage
from widebnn.sampling import Result

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
SHOWN_ROWS = 24


def run_figure(result: Result, dataset: Dataset, summary: dict[str, Any]) -> Figure:
    """Trace of the log-likelihood, predictions at test inputs, and ``pcn_acceptance_by_width`` if there is one."""
    has_test = bool(len(dataset.x_test)) and result.steps > 0
    acceptance: dict[int, float] | None = summary.get("pcn_acceptance_by_width")
    ratios = [1.0] + [1.4] * has_test + [0.9] * (acceptance is not None)
    figure = Figure(figsize=(4.6 * sum(ratios), 4.2), layout="constrained")
    axes = figure.subplots(1, len(ratios), squeeze=False, width_ratios=ratios)[0]
    steps = result.burn_in + result.thin * np.arange(1, result.stats["lp"].shape[1] + 1)
    for chain, trace in enumerate(result.stats["lp"]):
        axes[0].plot(steps, trace, lw=0.8, color=COLOURS[chain % len(COLOURS)], label=f"chain {chain}")
    axes[0].set(xlabel="step", ylabel="log-likelihood", title=f"acceptance {summary['acceptance_rate']:.2f}")
    axes[0].legend(loc="lower right", fontsize=8)
    if has_test:
        draws = {name: values.reshape(-1, *values.shape[2:]) for name, values in result.draws.items()}
        (_regression if dataset.labels_test is None else _classes)(axes[1], draws, dataset)
    if acceptance is not None:  # the paper's theorem in one line: pCN's acceptance tends to 1 with the width
        axes[-1].plot(list(acceptance), list(acceptance.values()), "o-", color=COLOURS[2])
        size_axis(axes[-1], acceptance, log_y=False)
        axes[-1].set(ylabel="acceptance rate of pCN, step size 0.1", ylim=(0, 1), title="wider networks accept more")
    title = f"{dataset.name}, n = {len(dataset.x_train)}, width {summary['width']}, depth {summary['depth']}"
    figure.suptitle(f"{title}: {summary['sampler']}, {summary['coordinates']} coordinates")
    return figure


def size_axis(axis: Axes, sizes: Iterable[int], label: str = "width (hidden units)", log_y: bool = True) -> None:
    """A logarithmic axis of these sizes, with a grid."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(list(sizes), [str(size) for size in sizes])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel(label)
    if log_y:
        axis.set_yscale("log")
    axis.grid(color="#dddddd", linewidth=0.8)
    axis.set_axisbelow(True)


def _intervals(axis: Any, x: Any, draws: np.ndarray, **style: Any) -> tuple[np.ndarray, np.ndarray]:
    """Medians with bars from the 5 % to the 95 % quantile, which are returned."""
    low, middle, high = np.quantile(draws, [0.05, 0.5, 0.95], axis=0)
    axis.errorbar(x, middle, [middle - low, high - middle], **style)
    return low, high


def _regression(axis: Any, draws: dict[str, np.ndarray], dataset: Dataset) -> None:
    """Predicted against observed, with central 90 % intervals of new observations."""
    observed = dataset.to_original_units(dataset.y_test)[:, 0]
    y, style = dataset.to_original_units(draws["y_test"])[..., 0], {"fmt": "o", "ms": 3, "lw": 0.8, "color": COLOURS[0]}
    low, high = _intervals(axis, observed, y, **style, label="90 % interval")
    ends = [min(observed.min(), low.min()), max(observed.max(), high.max())]
    axis.plot(ends, ends, color="0.5", lw=1, label="predicted = observed")
    covered = np.mean((low <= observed) & (observed <= high))
    axis.set(xlabel="observed", ylabel="predicted", title=f"{covered:.0%} of test rows inside their 90 % interval")
    axis.legend(fontsize=8)


def _classes(axis: Any, draws: dict[str, np.ndarray], dataset: Dataset) -> None:
    """Output of the true class and of its strongest rival for the first test images."""
    all_labels = np.asarray(dataset.labels_test)
    labels, f = all_labels[:SHOWN_ROWS], draws["f_test"][:, :SHOWN_ROWS]
    rows, mean = np.arange(len(labels)), f.mean(axis=0)
    rivals = np.where(np.arange(mean.shape[1]) == labels[:, None], -np.inf, mean).argmax(axis=1)
    style = {"ms": 4, "lw": 1.2}
    _intervals(axis, rows, f[:, rows, labels], **style, fmt="o", color=COLOURS[0], label="true class")
    _intervals(axis, rows, f[:, rows, rivals], **style, fmt="s", color=COLOURS[1], label="strongest other class")
    accuracy = np.mean(draws["mean_test"].mean(axis=0).argmax(axis=1) == all_labels)
    axis.set_xticks(rows, [dataset.class_names[label] for label in labels], fontsize=8)
    axis.set(xlabel="test image (its class)", ylabel="network output, median and 90 % interval")
    axis.set_title(f"{accuracy:.0%} of {len(all_labels)} test images classified correctly")
    axis.margins(y=0.15)  # room for the legend
    axis.legend(fontsize=8, loc="upper center", ncols=2)


def reliability_figure(bins: Reliability, title: str) -> Figure:
    """Accuracy against confidence in bins of equal width, and how many predictions each bin has.

    Bars are 90 % intervals of the accuracy given the number of predictions in the bin.
    """
    figure = Figure(figsize=(4.8, 6.2), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    used = bins.count > 0
    confidence, accuracy, count = bins.confidence[used], bins.accuracy[used], bins.count[used]
    right = accuracy * count
    low, high = (beta.ppf(level, right + 0.5, count - right + 0.5) for level in (0.05, 0.95))
    errors = [np.maximum(accuracy - low, 0), np.maximum(high - accuracy, 0)]
    _diagonal(top)
    style = {"fmt": "o", "ms": 5, "lw": 1.2, "color": COLOURS[0]}
    top.errorbar(confidence, accuracy, errors, **style, label="predictions, 90 % interval")
    error = np.sum(count * np.abs(confidence - accuracy)) / count.sum()
    top.set(ylabel="share of them that are right", ylim=(-0.02, 1.02))
    top.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    width = 1 / len(bins.count)
    bottom.bar((np.arange(len(bins.count)) + 0.5) * width, bins.count, 0.9 * width, color=COLOURS[5])
    bottom.set(xlabel="probability of the predicted class", ylabel="predictions", xlim=(-0.02, 1.02))
    figure.suptitle(f"{title}\nexpected calibration error {error:.3f}")
    return figure


def coverage_figure(below: Any, title: str) -> Figure:
    """The share of observations inside central intervals against the level of the intervals.

    ``below`` is the predictive probability of less than the observation, for each. The band has the share with
    probability 90 % at each level, were the predictions calibrated and the observations independent.
    """
    figure = Figure(figsize=(4.8, 4.8), layout="constrained")
    axis = figure.subplots()
    rows, levels = len(below), np.linspace(0, 1, 101)
    low, high = (binom.ppf(share, rows, levels) / rows for share in (0.05, 0.95))
    axis.fill_between(levels, low, high, color="0.88", lw=0, label="calibrated, 90 % of the time")
    _diagonal(axis)
    axis.plot(levels, central_coverage(below, levels), color=COLOURS[0], lw=1.8, label="these predictions")
    for level, covered in zip(INTERVALS, central_coverage(below, INTERVALS), strict=True):
        axis.plot(level, covered, "o", color=COLOURS[1], ms=6)
        axis.annotate(f"{covered:.0%}", (level, covered), xytext=(7, -12), textcoords="offset points", color=COLOURS[1])
    axis.set(xlabel="level of the central interval", ylabel=f"share of {rows} observations inside it")
    axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axis.legend(fontsize=8, loc="upper left")
    figure.suptitle(title)
    return figure


def _diagonal(axis: Any) -> None:
    axis.plot([0, 1], [0, 1], color="0.5", lw=1, label="calibrated")
    axis.grid(color="0.92")
    axis.set_axisbelow(True)
