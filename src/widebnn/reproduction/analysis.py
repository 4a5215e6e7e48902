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


def summarise_cells(results: list[xr.Dataset]) -> list[Row]:
    """Acceptance, speed and effective samples by the paper's definition and by ArviZ's, a row for each cell.

    ``ess``, ``bulk_ess`` and ``tail_ess`` are per stored draw, as in the paper's figures (which say per step), means
    over the 100 projections. Where a reference cell has the same distribution there is ``ess_pooled`` too.
    """
    reference = {cell_of(stored).width: stored for stored in results if cell_of(stored).is_reference}
    rows = []
    for stored in results:
        cell = cell_of(stored)
        kept = ("sampler", "step_size", "width", "depth", "chains", "steps", "thin")
        row: Row = {"cell": cell.name} | {name: getattr(cell, name) for name in kept}
        row["acceptance"] = float(stored["acceptance_rate"].mean())
        row |= {name: float(stored.attrs[name]) for name in ("ms_per_step", "gradients_per_step")}
        row["dimension"] = int(stored.attrs["dimension"])
        if cell.is_reference:
            row["jeffreys"] = float(stored["lp"].mean()) - float(stored.attrs["prior_log_likelihood"])
        comparable = cell.depth == 1 and cell.sampler != "pcnl_published"
        for name in STATISTICS:
            row[name] = _effective(stored[name].values)
            # The positions of the marginal chain are not weights.
            if comparable and cell.width in reference and (name, cell.sampler) != ("weights", "marginal_pcn"):
                known = reference[cell.width][name].values
                mean, std = known.mean(axis=(0, 1)), known.std(axis=(0, 1))
                row[name]["ess_pooled"] = pooled_ess(stored[name].values, mean, std)
            per_step = best_ess(row, name) / cell.thin
            row[name] |= {"ess_per_step": per_step, "ess_per_second": per_step / row["ms_per_step"] * 1000}
            if row["gradients_per_step"]:
                row[name]["ess_per_gradient"] = per_step / row["gradients_per_step"]
        rows.append(row)
    return rows


def _effective(values: np.ndarray) -> Row:
    """Effective samples per stored draw, none of a chain that never moved."""
    draws = values.shape[0] * values.shape[1]
    sizes = np.nan_to_num(published_ess(values) / draws)
    row = {"ess": float(sizes.mean()), "ess_min": float(sizes.min()), "ess_max": float(sizes.max())}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is not defined.*")
        for kind in ("bulk", "tail"):
            row[f"{kind}_ess"] = float(np.nan_to_num(ess(values, method=kind) / draws).mean())
    return row


def pooled_ess(values: np.ndarray, mean: np.ndarray, std: np.ndarray) -> float:
    """Effective samples per stored draw of chains that are too short for the paper's definition.

    A slow chain's own mean follows it, so a short run looks better than it is. Here autocorrelations are taken about
    a known mean and pooled over all statistics. They are summed up to a quarter of the chain or to where they have
    died out (0.05); where they have not, the rest is taken to decay at the average rate so far.

    Args:
        values: Array of shape (chains, draws, statistics).
        mean: Of each statistic, from a sampler that mixes fast.
        std: Likewise.

    Returns:
        The number; NaN if the chains never moved.
    """
    deviations = (values - mean) / std
    draws = values.shape[1]
    last = max(1, draws // 4)
    r = np.empty(last + 1)
    for lag in range(last + 1):
        early, late = deviations[:, : draws - lag], deviations[:, lag:]
        # The same points at both ends: else the change of the variance along a slow chain is taken for decay.
        r[lag] = np.mean(early * late) / (np.mean(early**2 + late**2) / 2)
    if not np.isfinite(r).all() or r[1] >= 1:
        return float("nan")
    died = np.flatnonzero(r < 0.05)
    if len(died):
        return float(1 / (1 + 2 * r[1 : died[0]].sum()))
    rate = r[last] ** (1 / last)
    return float(1 / (1 + 2 * (r[1:].sum() + r[last] * rate / (1 - rate))))


def rhat_against_steps(stored: xr.Dataset, at_steps: tuple[int, ...]) -> Row:
    """Mean and standard deviation over all projections of the paper's R-hat, after several numbers of steps.

    ``rank_rhat`` is the mean of ArviZ's rank-normalised split R-hat of all steps.
    """
    cell = cell_of(stored)
    both = np.concatenate([stored[name].values for name in STATISTICS], axis=2)
    found: Row = {name: getattr(cell, name) for name in ("sampler", "step_size", "width")} | {"cell": cell.name}
    found |= {"rank_rhat": float(np.mean(rhat(both))), "steps": list(at_steps), "mean": [], "std": []}
    for steps in at_steps:
        values = published_rhat(both[:, : steps // cell.thin])
        finite = values[np.isfinite(values)]
        for name in ("mean", "std"):
            found[name].append(float(getattr(finite, name)()) if finite.size else float("nan"))
    return found


def distance_from_limit(stored: xr.Dataset, dataset: Dataset) -> dict[str, float]:
    """Root mean square difference of the predictive mean from the infinite-width posterior's, over its spread."""
    cell, f = cell_of(stored), stored["f_test"].values
    network = dense(dataset.x_train.shape[1], [cell.width] * cell.depth)
    limit = gp_posterior(network, dataset.x_train, dataset.y_train, NOISE, dataset.x_test[: f.shape[2]])
    spread = np.sqrt(np.mean(np.asarray(limit.variance)))
    difference = f.mean(axis=(0, 1)) - np.asarray(limit.mean)
    ratio = np.sqrt(np.mean(f.var(axis=(0, 1)))) / spread
    return {"mean": float(np.sqrt(np.mean(difference**2)) / spread), "std_ratio": float(ratio)}


def best_ess(row: Row, statistic: str) -> float:
    """Effective samples per stored draw: pooled where there is a reference, else by the paper's definition."""
    pooled = row[statistic].get("ess_pooled")
    return row[statistic]["ess"] if pooled is None or np.isnan(pooled) else pooled


def compare(rows: list[Row], rhat_rows: list[Row]) -> list[Row]:
    """Put every published number beside ours; the published LMC and pCNL are each compared with both of ours."""
    both = {"lmc": ("lmc", "underdamped"), "pcnl": ("pcnl", "pcnl_published")}
    compared = []
    for number in published_numbers():
        quantity, where = number["quantity"], {name: number[name] for name in ("step_size", "width")}
        for name in both.get(number["sampler"], (number["sampler"],)):
            known = rhat_rows if quantity == "rhat" else filter(is_main, rows)
            for row in find(known, sampler=name, **where)[-1:]:
                found = {"ours_sampler": name}
                if quantity == "rhat":
                    found |= {"ours": row["mean"][-1], "steps": row["steps"][-1]}
                elif quantity == "acceptance":
                    found |= {"ours": row["acceptance"]}
                else:
                    found |= {"ours": row[quantity]["ess"], "pooled": row[quantity].get("ess_pooled")}
                compared.append(number | found)
    return compared


def find(rows: Any, **wanted: Any) -> list[Row]:
    """Return the rows with these values, by width."""
    matching = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return sorted(matching, key=lambda row: row["width"])


def is_main(row: Row) -> bool:
    """Part of figures 1 and 2: one chain, one hidden layer, a given step size."""
    return row["chains"] == 1 and row["depth"] == 1 and row["step_size"] is not None
