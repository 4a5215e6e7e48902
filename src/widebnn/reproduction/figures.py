"""The paper's figures, and some beyond it. Colours are Okabe and Ito's, told apart with any colour vision."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from widebnn.reproduction.analysis import STATISTICS, best_ess, find, is_main
from widebnn.reproduction.cells import LABELS, cell_of
from widebnn.reproduction.diagnostics import principal_traces
from widebnn.reproduction.published import VALUES, WIDTHS

Row = dict[str, Any]

STYLES = {
    "pcn": ("#0072B2", "s"),
    "pcnl": ("#009E73", "^"),
    "lmc": ("#D55E00", "o"),
    "underdamped": ("#CC79A7", "v"),
    "marginal_pcn": ("#56B4E9", "D"),
    "pcnl_published": ("#777777", "X"),
    "hilbert_hmc": ("#000000", "*"),
    "elliptical_slice": ("#E69F00", "P"),
}
SHORT = {
    "lmc": "LMC\n(as printed)",
    "underdamped": "LMC\n(as coded)",
    "marginal_pcn": "pCN, marginal-\nconditional",
    "pcnl_published": "pCNL, published\npotential",
}
"""Labels for narrow places, where they differ."""
PUBLISHED_AS = {"lmc": "lmc", "underdamped": "lmc", "pcn": "pcn", "pcnl": "pcnl", "pcnl_published": "pcnl"}
FLOOR = 1e-4
"""Smallest number of effective samples that is shown on a logarithmic axis."""


def draw_figures(rows: list[Row], results: list[xr.Dataset], rhat: list[Row], published: bool) -> dict[str, Figure]:
    """Draw every figure that the finished cells allow; ``published`` adds the paper's numbers."""
    drawn: dict[str, Figure] = {}
    main = [row for row in rows if is_main(row)]
    if main:
        drawn["acceptance"] = acceptance_figure(main, published)
        drawn["ess"] = ess_figure(main, published)
    if rhat:
        drawn["rhat"] = rhat_figure(rhat)
    single = [s for s in results if cell_of(s).chains == 1 and cell_of(s).depth == 1]
    for size in sorted({row["step_size"] for row in main}, reverse=True):
        drawn[f"traces-{size:g}"] = traces_figure(single, size)
    if any(row["sampler"] in ("hilbert_hmc", "elliptical_slice") for row in rows):
        drawn["speed"] = speed_figure(rows)
    if any(row.get("limit") for row in rows):
        drawn["distance"] = distance_figure(rows)
    return drawn


def _plain(value: float, _: Any = None) -> str:
    """Numbers as people write them, where powers of ten would be fewer than the labels needed."""
    return f"{value:g}"


def _width_axis(axis: Axes, widths: list[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(widths, [str(width) for width in widths])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("width (hidden units)")
    axis.grid(color="#dddddd", linewidth=0.8)
    axis.set_axisbelow(True)


def _line(axis: Axes, rows: list[Row], values: list[float], sampler: str, **style: Any) -> None:
    colour, marker = STYLES[sampler]
    widths = [row["width"] for row in rows]
    axis.plot(widths, values, color=colour, marker=marker, markersize=6, linewidth=1.8, label=LABELS[sampler], **style)


def _published(axis: Axes, quantity: str, step_size: float, samplers: Iterable[str], floor: float) -> None:
    """Published values as hollow markers."""
    for sampler in sorted({PUBLISHED_AS[name] for name in samplers if name in PUBLISHED_AS}):
        if values := VALUES.get((quantity, sampler, step_size)):
            colour, marker = STYLES[sampler]
            axis.plot(
                WIDTHS[quantity], np.maximum(values, floor), linestyle="none", marker=marker, markersize=10,
                markerfacecolor="none", markeredgecolor=colour, label=f"{LABELS[sampler].split(' (')[0]}, published",
            )  # fmt: skip


def _legend(figure: Figure, axes: Any) -> None:
    """One legend for all panels, below them."""
    columns = max(1, int(figure.get_figwidth() / 2.7))
    entries: dict[str, Any] = {}
    for axis in np.ravel(axes):
        entries |= {name: handle for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns, frameon=False)


def acceptance_figure(main: list[Row], published: bool) -> Figure:
    """Figure 1: acceptance rate against width, one panel per step size."""
    sizes = sorted({row["step_size"] for row in main}, reverse=True)
    figure = Figure(figsize=(max(8.4, 4.2 * len(sizes) + 0.6), 4.8), layout="constrained")
    axes = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    for axis, size in zip(axes, sizes, strict=True):
        samplers = [name for name in STYLES if find(main, sampler=name, step_size=size)]
        for sampler in samplers:
            here = find(main, sampler=sampler, step_size=size)
            _line(axis, here, [row["acceptance"] for row in here], sampler)
        if published:
            _published(axis, "acceptance", size, samplers, 0.0)
        _width_axis(axis, sorted({row["width"] for row in main}))
        axis.set(title=f"step size {size:g}", ylim=(-0.03, 1.03))
    axes[0].set_ylabel("acceptance rate")
    _legend(figure, axes)
    return figure


def ess_figure(main: list[Row], published: bool) -> Figure:
    """Figure 2: effective samples per stored draw; dotted, by the paper's own definition."""
    sizes = sorted({row["step_size"] for row in main}, reverse=True)
    figure = Figure(figsize=(max(8.4, 4.2 * len(sizes) + 0.6), 8.4), layout="constrained")
    axes = figure.subplots(2, len(sizes), sharey="row", squeeze=False)
    for line, statistic in zip(axes, STATISTICS, strict=True):
        for axis, size in zip(line, sizes, strict=True):
            samplers = [name for name in STYLES if find(main, sampler=name, step_size=size)]
            for sampler in samplers:
                here = find(main, sampler=sampler, step_size=size)
                _line(axis, here, [max(best_ess(row, statistic), FLOOR) for row in here], sampler)
                own = np.maximum([row[statistic]["ess"] for row in here], FLOOR)
                axis.plot([row["width"] for row in here], own, color=STYLES[sampler][0], linewidth=0.9, linestyle=":")
            if published:
                _published(axis, statistic, size, samplers, FLOOR)
            _width_axis(axis, sorted({row["width"] for row in main}))
            axis.set_yscale("log")
            axis.set_title(f"{statistic}, step size {size:g}")
        line[0].set_ylabel("effective samples per stored draw")
    _legend(figure, axes)
    return figure


def rhat_figure(rows: list[Row]) -> Figure:
    """R-hat of three chains against the number of steps, one panel per width."""
    widths = sorted({row["width"] for row in rows})
    figure = Figure(figsize=(max(8.4, 3.6 * len(widths) + 0.6), 4.4), layout="constrained")
    axes = figure.subplots(1, len(widths), sharey=True, squeeze=False)[0]
    for axis, width in zip(axes, widths, strict=True):
        for row in find(rows, width=width):
            colour, marker = STYLES[row["sampler"]]
            mean, std = np.array(row["mean"]), np.array(row["std"])
            axis.fill_between(row["steps"], np.maximum(mean - std, 1.0), mean + std, color=colour, alpha=0.15, lw=0)
            axis.plot(row["steps"], mean, color=colour, marker=marker, label=LABELS[row["sampler"]])
        axis.axhline(1.2, color="#444444", linestyle="--", linewidth=1, label="1.2")
        axis.set(title=f"width {width}", xlabel="steps")
        axis.set_yscale("log")
        axis.grid(color="#dddddd", linewidth=0.8)
    axes[0].set_ylabel("R-hat (ratio of variances)")
    _legend(figure, axes)
    return figure


def traces_figure(results: list[xr.Dataset], step_size: float) -> Figure:
    """The first two principal components of the iterates against the step, samplers x widths."""
    cells = {(cell_of(s).sampler, cell_of(s).width): s for s in results if cell_of(s).step_size == step_size}
    samplers = [name for name in STYLES if any(key[0] == name for key in cells)]
    widths = sorted({width for _, width in cells})
    figure = Figure(figsize=(2.7 * len(widths) + 0.8, 1.9 * len(samplers) + 0.8), layout="constrained")
    axes = figure.subplots(len(samplers), len(widths), sharex="col", squeeze=False)
    for row, sampler in enumerate(samplers):
        for column, width in enumerate(widths):
            axis = axes[row, column]
            stored = cells.get((sampler, width))
            if stored is not None:
                with warnings.catch_warnings():
                    # A chain that never moved has an empty panel.
                    warnings.filterwarnings("ignore", message="principal components need")
                    traces = principal_traces(stored["weights"].values[0])
                if not np.nan_to_num(np.ptp(traces)):
                    axis.text(0.5, 0.5, "never moved", transform=axis.transAxes, ha="center", color="#666666")
                for component, colour in enumerate(("#0072B2", "#D55E00")):
                    label = f"component {component + 1}"
                    axis.plot(stored["draw"], traces[:, component], color=colour, linewidth=0.7, label=label)
            if row == 0:
                axis.set_title(f"width {width}", fontsize=10)
            if row == len(samplers) - 1:
                axis.set_xlabel("step")
        axes[row, 0].set_ylabel(SHORT.get(sampler, LABELS[sampler]), fontsize=9)
    figure.suptitle(f"Principal components of the iterates, step size {step_size:g}")
    _legend(figure, axes)
    return figure


def speed_figure(rows: list[Row]) -> Figure:
    """Beyond the paper: effective samples per second, the best step size of each sampler."""
    main = [row for row in rows if row["chains"] == 1 and row["depth"] == 1]
    widths = sorted({row["width"] for row in main})
    figure = Figure(figsize=(10, 4.8), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, statistic in zip(axes, STATISTICS, strict=True):
        for sampler in STYLES:
            groups = (find(main, sampler=sampler, width=width) for width in widths)
            best = [max(here, key=lambda row: row[statistic]["ess_per_second"]) for here in groups if here]
            if best:
                _line(axis, best, [max(row[statistic]["ess_per_second"], FLOOR) for row in best], sampler)
        axis.set_yscale("log")
        axis.set_title(f"{statistic}, best step size of each sampler")
        _width_axis(axis, widths)
    axes[0].set_ylabel("effective samples per second (mean of 100 projections)")
    _legend(figure, axes)
    return figure


def distance_figure(rows: list[Row]) -> Figure:
    """Beyond the paper: how far the posterior is from N(0, I) and from the infinite-width posterior."""
    chosen = [row for row in rows if row.get("limit") is not None]
    widths = sorted({row["width"] for row in chosen})
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    axes = figure.subplots(1, 2)
    for sampler in STYLES:
        here = find(chosen, sampler=sampler)
        if here:
            _line(axes[0], here, [row["jeffreys"] for row in here], sampler)
            _line(axes[1], here, [row["limit"]["mean"] for row in here], sampler)
            errors = [1 / np.sqrt(row["steps"] / row["thin"]) for row in here]
            label = "Monte Carlo error of as many independent draws"
            axes[1].plot([row["width"] for row in here], errors, color="#777777", linestyle="--", label=label)
    for axis in axes:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(_plain)
        low, high = axis.get_ylim()
        if high < 10 * low:  # with no power of ten in sight, label the ticks between
            axis.yaxis.set_minor_formatter(_plain)
        _width_axis(axis, widths)
    axes[0].set(title="from N(0, I)", ylabel="Jeffreys divergence (nats)")
    axes[1].set(title="from the infinite-width posterior", ylabel="RMS difference of means / spread")
    _legend(figure, axes)
    return figure
