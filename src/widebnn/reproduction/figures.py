"""The paper's figures, and some beyond it. Colours are Okabe and Ito's, told apart with any colour vision."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from widebnn.figures import size_axis
from widebnn.reproduction.analysis import STATISTICS, main_cells
from widebnn.reproduction.cells import LABELS, Cell
from widebnn.reproduction.diagnostics import principal_traces
from widebnn.reproduction.published import VALUES, WIDTHS

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
FLOOR = 1e-4
"""Smallest number of effective samples that is shown on a logarithmic axis."""


def draw_figures(cells: pd.DataFrame, results: Mapping[Cell, xr.Dataset], published: bool) -> dict[str, Figure]:
    """Draw every figure that the finished cells (``cell_table``) allow; ``published`` adds the paper's numbers."""
    drawn: dict[str, Figure] = {}
    main, chains = main_cells(cells), cells[cells["chains"] > 1]
    single = cells[(cells["chains"] == 1) & (cells["depth"] == 1)]
    sizes = sorted(main["step_size"].unique(), reverse=True)
    if sizes:
        drawn["acceptance"] = _width_figure(main, sizes, ("acceptance",), published)
        drawn["ess"] = _width_figure(main, sizes, STATISTICS, published)
    if len(chains):
        drawn["rhat"] = _rhat_figure(chains)
    for size in sizes:
        drawn[f"traces-{size:g}"] = _traces_figure(results, size)
    if single["sampler"].isin(["hilbert_hmc", "elliptical_slice"]).any():
        drawn["speed"] = _speed_figure(single)
    if "limit.mean" in cells:
        drawn["distance"] = _distance_figure(cells.dropna(subset="limit.mean"))
    return drawn


def legend(figure: Figure, axes: Any) -> Figure:
    """The figure, with one legend for all panels below them."""
    columns = max(1, int(figure.get_figwidth() / 2.7))
    entries: dict[str, Any] = {}
    for axis in np.ravel(axes):
        entries |= {name: handle for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _panels(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Figure, np.ndarray]:
    figure = Figure(figsize=(max(8.4, width * columns + 0.6), height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def _line(axis: Axes, values: pd.Series, sampler: str, **changed: Any) -> None:
    """Numbers of a sampler by width."""
    colour, marker = STYLES[sampler]
    style: dict[str, Any] = {"marker": marker, "markersize": 6, "linewidth": 1.8, "label": LABELS[sampler]}
    axis.plot(values.index, values, color=colour, **style | changed)


def _published(axis: Axes, quantity: str, samplers: set[str], size: float, floor: float) -> None:
    """Published values as hollow markers."""
    for sampler, ours in {"lmc": {"lmc", "underdamped"}, "pcn": {"pcn"}, "pcnl": {"pcnl", "pcnl_published"}}.items():
        if ours & samplers and (values := VALUES.get((quantity, sampler, size))):
            label = f"{LABELS[sampler].split(' (')[0]}, published"
            shown = pd.Series(values, WIDTHS[quantity]).clip(floor)
            _line(axis, shown, sampler, label=label, linestyle="none", markersize=10, markerfacecolor="none")


def _width_figure(main: pd.DataFrame, sizes: list[float], quantities: tuple[str, ...], published: bool) -> Figure:
    """Figures 1 and 2: acceptance, or effective samples per stored draw, against width, one panel per step size.

    Dotted lines are effective samples by the paper's own definition.
    """
    are_rates = quantities == ("acceptance",)
    floor = 0.0 if are_rates else FLOOR
    figure, axes = _panels(len(quantities), len(sizes), 4.2, 1.2 + 3.6 * len(quantities), sharey="row")
    for line, quantity in zip(axes, quantities, strict=True):
        for axis, size in zip(line, sizes, strict=True):
            here = main[main["step_size"] == size].set_index("width")
            for sampler in STYLES:
                if len(own := here[here["sampler"] == sampler]):
                    _line(axis, own[quantity if are_rates else f"{quantity}.best"].clip(floor), sampler)
                    if not are_rates:
                        shown = own[f"{quantity}.ess"].clip(floor)
                        _line(axis, shown, sampler, marker="", linewidth=0.9, linestyle=":", label="")
            if published:
                _published(axis, quantity, set(here["sampler"]), size, floor)
            size_axis(axis, main["width"].unique(), log_y=not are_rates)
            axis.set_title(f"{quantity}, step size {size:g}")
        line[0].set_ylabel("acceptance rate" if are_rates else "effective samples per stored draw")
    if are_rates:
        axes[0, 0].set_ylim(-0.03, 1.03)
    return legend(figure, axes)


def _rhat_figure(chains: pd.DataFrame) -> Figure:
    """R-hat of three chains against the number of steps, one panel per width."""
    widths = chains.groupby("width")
    figure, axes = _panels(1, len(widths), 3.6, 4.4, sharey=True)
    for axis, (width, here) in zip(axes[0], widths, strict=True):
        for _, row in here.iterrows():
            values = pd.DataFrame({name: row[f"rhat.{name}"] for name in ("mean", "std")}, row["rhat.steps"])
            low, high = (values["mean"] - values["std"]).clip(1.0), values.sum(axis=1)
            axis.fill_between(values.index, low, high, color=STYLES[row["sampler"]][0], alpha=0.15, lw=0)
            _line(axis, values["mean"], row["sampler"])
        axis.axhline(1.2, color="#444444", linestyle="--", linewidth=1, label="1.2")
        axis.set(title=f"width {width}", xlabel="steps", yscale="log")
        axis.grid(color="#dddddd", linewidth=0.8)
    axes[0, 0].set_ylabel("R-hat (ratio of variances)")
    return legend(figure, axes)


def _traces_figure(results: Mapping[Cell, xr.Dataset], step_size: float) -> Figure:
    """The first two principal components of the iterates against the step, samplers x widths."""
    main = [cell for cell in results if (cell.chains, cell.depth, cell.step_size) == (1, 1, step_size)]
    cells = {(cell.sampler, cell.width): results[cell] for cell in main}
    samplers = [name for name in STYLES if any(key[0] == name for key in cells)]
    widths = sorted({width for _, width in cells})
    figure, axes = _panels(len(samplers), len(widths), 2.7, 1.9 * len(samplers) + 0.8, sharex="col")
    for (sampler, width), stored in cells.items():
        axis = axes[samplers.index(sampler), widths.index(width)]
        traces = principal_traces(stored["weights"].values[0])
        if np.isnan(traces).all():
            axis.text(0.5, 0.5, "never moved", transform=axis.transAxes, ha="center", color="#666666")
        for component, colour in enumerate(("#0072B2", "#D55E00")):
            label = f"component {component + 1}"
            axis.plot(stored["draw"], traces[:, component], color=colour, linewidth=0.7, label=label)
    for axis, width in zip(axes[0], widths, strict=True):
        axis.set_title(f"width {width}", fontsize=10)
    for axis, sampler in zip(axes[:, 0], samplers, strict=True):
        axis.set_ylabel(textwrap.fill(LABELS[sampler].removesuffix(" (another distribution)"), 16), fontsize=9)
    figure.supxlabel("step", fontsize=10)
    figure.suptitle(f"Principal components of the iterates, step size {step_size:g}")
    return legend(figure, axes)


def _speed_figure(single: pd.DataFrame) -> Figure:
    """Beyond the paper: effective samples per second, the best step size of each sampler."""
    figure, axes = _panels(1, 2, 4.7, 4.8, sharey=True)
    for axis, statistic in zip(axes[0], STATISTICS, strict=True):
        best = single.groupby(["sampler", "width"])[f"{statistic}.ess_per_second"].max().clip(FLOOR)
        for sampler in STYLES:
            if sampler in best:
                _line(axis, best[sampler], sampler)
        size_axis(axis, single["width"].unique())
        axis.set_title(f"{statistic}, best step size of each sampler")
    axes[0, 0].set_ylabel("effective samples per second (mean of 100 projections)")
    return legend(figure, axes)


def _distance_figure(cells: pd.DataFrame) -> Figure:
    """Beyond the paper: how far the posterior is from N(0, I) and from the infinite-width posterior."""
    cells = cells.set_index("width")
    figure, axes = _panels(1, 2, 4.7, 4.4)
    left, right = axes[0]
    _line(left, cells["jeffreys"], "hilbert_hmc")
    _line(right, cells["limit.mean"], "hilbert_hmc")
    errors = (cells["steps"] / cells["thin"]) ** -0.5
    right.plot(errors, color="#777777", ls="--", label="Monte Carlo error of as many independent draws")
    for axis in (left, right):
        size_axis(axis, cells.index)
        axis.yaxis.set_major_formatter("{x:g}")
        low, high = axis.get_ylim()
        if high < 10 * low:  # with no power of ten in sight, label the ticks between
            axis.yaxis.set_minor_formatter("{x:g}")
    left.set(title="from N(0, I)", ylabel="Jeffreys divergence (nats)")
    right.set(title="from the infinite-width posterior", ylabel="RMS difference of means / spread")
    return legend(figure, axes)
