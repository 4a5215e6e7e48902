"""Numbers of finished cells: one row per cell, R-hat against steps, distances from the limits."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import xarray as xr

from widebnn.data import Dataset
from widebnn.diagnostics import ess, rhat
from widebnn.limits import gp_posterior
from widebnn.networks import dense
from widebnn.reproduction.cells import NOISE, cell_of
from widebnn.reproduction.diagnostics import published_ess, published_rhat
from widebnn.reproduction.published import published_numbers

Row = dict[str, Any]

STATISTICS = ("weights", "predictions")
DIED_OUT = 0.05
"""Pooled autocorrelations below this are noise."""


def summarise_cell(stored: xr.Dataset) -> Row:
    """Acceptance, effective samples by the paper's definition and by ArviZ's, and speed.

    ``ess`` is per stored draw, as in the paper's figures (which say per step), and so are ``bulk_ess`` and
    ``tail_ess``: means over the 100 projections.
    """
    cell = cell_of(stored)
    draws = cell.chains * stored.sizes["draw"]
    kept = ("sampler", "step_size", "width", "depth", "chains", "steps", "thin")
    row: Row = {
        "cell": cell.name,
        **{name: getattr(cell, name) for name in kept},
        "acceptance": float(stored["acceptance_rate"].mean()),
        "ms_per_step": float(stored.attrs["ms_per_step"]),
        "gradients_per_step": float(stored.attrs["gradients_per_step"]),
        "dimension": int(stored.attrs["dimension"]),
    }
    if cell.is_reference:
        row["jeffreys"] = float(stored["lp"].mean()) - float(stored.attrs["prior_log_likelihood"])
    for name in STATISTICS:
        values = stored[name].values
        # A chain that never moved is an outcome here: no effective samples.
        sizes = np.nan_to_num(published_ess(values) / draws)
        row[name] = {"ess": float(sizes.mean()), "ess_min": float(sizes.min()), "ess_max": float(sizes.max())}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*is not defined.*")
            for kind in ("bulk", "tail"):
                row[name][f"{kind}_ess"] = float(np.nan_to_num(ess(values, method=kind) / draws).mean())
        _add_rates(row, name)
    return row


def _add_rates(row: Row, statistic: str) -> None:
    """Effective samples per step, per gradient and per second, from the best value per stored draw."""
    per_step = best_ess(row, statistic) / row["thin"]
    row[statistic]["ess_per_step"] = per_step
    row[statistic]["ess_per_second"] = per_step / row["ms_per_step"] * 1000
    if row["gradients_per_step"]:
        row[statistic]["ess_per_gradient"] = per_step / row["gradients_per_step"]


def pooled_ess(values: np.ndarray, mean: np.ndarray, std: np.ndarray) -> float:
    """Effective samples per stored draw of chains that are too short for the paper's definition.

    A slow chain's own mean follows it, so a short run looks better than it is. Here autocorrelations are taken about
    a known mean and pooled over all statistics. They are summed up to a quarter of the chain or to where they have
    died out; where they have not, the rest is taken to decay at the average rate so far.
    ``values`` has shape (chains, draws, statistics); ``mean`` and ``std`` are those of each statistic, from a sampler
    that mixes fast. NaN if the chains never moved.
    """
    deviations = (values - mean) / std
    draws = values.shape[1]
    last = max(1, draws // 4)
    r = np.array([np.mean(deviations[:, : draws - lag] * deviations[:, lag:]) for lag in range(last + 1)])
    # The same points at both ends: else the change of the variance along a slow chain is taken for decay.
    scale = [np.mean(deviations[:, : draws - lag] ** 2 + deviations[:, lag:] ** 2) / 2 for lag in range(last + 1)]
    r = r / np.array(scale)
    if not np.isfinite(r).all() or r[1] >= 1:
        return float("nan")
    died = np.flatnonzero(r < DIED_OUT)
    if len(died):
        return float(1 / (1 + 2 * r[1 : died[0]].sum()))
    rate = r[last] ** (1 / last)
    return float(1 / (1 + 2 * (r[1:].sum() + r[last] * rate / (1 - rate))))


def add_pooled_ess(rows: list[Row], results: list[xr.Dataset]) -> None:
    """Add the pooled number to every row with the distribution and statistics of a reference cell of its width."""
    reference = {cell_of(stored).width: stored for stored in results if cell_of(stored).is_reference}
    for row, stored in zip(rows, results, strict=True):
        known = reference.get(row["width"])
        if known is None or row["depth"] != 1 or row["sampler"] == "pcnl_published":
            continue
        for name in STATISTICS if row["sampler"] != "marginal_pcn" else ("predictions",):
            mean, std = known[name].values.mean(axis=(0, 1)), known[name].values.std(axis=(0, 1))
            row[name]["ess_pooled"] = pooled_ess(stored[name].values, mean, std)
            _add_rates(row, name)


def rhat_against_steps(stored: xr.Dataset, at_steps: tuple[int, ...]) -> Row:
    """Mean and standard deviation over all projections of the paper's R-hat, after several numbers of steps.

    ``rank_rhat`` is the mean of ArviZ's rank-normalised split R-hat of all steps.
    """
    cell = cell_of(stored)
    both = np.concatenate([stored[name].values for name in STATISTICS], axis=2)
    found: Row = {name: getattr(cell, name) for name in ("sampler", "step_size", "width")}
    found |= {"cell": cell.name, "rank_rhat": float(np.mean(rhat(both))), "steps": list(at_steps)}
    found |= {"mean": [], "std": []}
    for steps in at_steps:
        values = published_rhat(both[:, : steps // cell.thin])
        finite = values[np.isfinite(values)]
        for name in ("mean", "std"):
            found[name].append(float(getattr(finite, name)()) if finite.size else float("nan"))
    return found


def distance_from_limit(stored: xr.Dataset, dataset: Dataset) -> dict[str, float]:
    """Root mean square difference of the predictive mean from the infinite-width posterior's, over its spread."""
    cell = cell_of(stored)
    f = stored["f_test"].values
    inputs = dataset.x_test[: f.shape[2]]
    network = dense(dataset.x_train.shape[1], [cell.width] * cell.depth)
    limit = gp_posterior(network, dataset.x_train, dataset.y_train, NOISE, inputs)
    flat = f.reshape(-1, *f.shape[2:])
    spread = np.sqrt(np.mean(np.asarray(limit.variance)))
    mean = np.sqrt(np.mean((flat.mean(axis=0) - np.asarray(limit.mean)) ** 2)) / spread
    ratio = float(np.sqrt(np.mean(flat.var(axis=0))) / spread)
    return {"mean": float(mean), "std_ratio": ratio}


def best_ess(row: Row, statistic: str) -> float:
    """Effective samples per stored draw: pooled where there is a reference, else by the paper's definition."""
    pooled = row[statistic].get("ess_pooled")
    return row[statistic]["ess"] if pooled is None or np.isnan(pooled) else pooled


def compare(rows: list[Row], rhat_rows: list[Row]) -> list[Row]:
    """Put every published number beside ours; the published LMC and pCNL are each compared with both of ours."""
    both = {"lmc": ("lmc", "underdamped"), "pcnl": ("pcnl", "pcnl_published")}
    ours = {(row["sampler"], row["step_size"], row["width"]): row for row in rows if is_main(row)}
    ratios = {(row["sampler"], row["step_size"], row["width"]): row for row in rhat_rows}
    compared = []
    for number in published_numbers():
        for name in both.get(number.sampler, (number.sampler,)):
            key = name, number.step_size, number.width
            found = {"ours_sampler": name}
            if number.quantity == "rhat" and key in ratios:
                found |= {"ours": ratios[key]["mean"][-1], "steps": ratios[key]["steps"][-1]}
            elif number.quantity == "acceptance" and key in ours:
                found |= {"ours": ours[key]["acceptance"]}
            elif number.quantity in STATISTICS and key in ours:
                row = ours[key]
                found |= {"ours": row[number.quantity]["ess"], "pooled": row[number.quantity].get("ess_pooled")}
            else:
                continue
            compared.append({**number._asdict(), **found})
    return compared


def find(rows: list[Row], **wanted: Any) -> list[Row]:
    """Return the rows with these values, by width."""
    matching = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return sorted(matching, key=lambda row: row["width"])


def is_main(row: Row) -> bool:
    """Part of figures 1 and 2: one chain, one hidden layer, a given step size."""
    return row["chains"] == 1 and row["depth"] == 1 and row["step_size"] is not None
