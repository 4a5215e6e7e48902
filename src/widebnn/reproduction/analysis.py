"""Numbers of finished cells, a row for each, and beside the published ones."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from widebnn.data import Dataset
from widebnn.diagnostics import ess, rhat
from widebnn.limits import gp_posterior
from widebnn.networks import dense
from widebnn.reproduction.cells import NOISE, Cell
from widebnn.reproduction.diagnostics import published_ess, published_rhat
from widebnn.reproduction.published import published_numbers

Row = dict[str, Any]
STATISTICS = ("weights", "predictions")


def summarise_cells(results: Mapping[Cell, xr.Dataset], dataset: Dataset, rhat_steps: tuple[int, ...]) -> list[Row]:
    """Acceptance, speed and effective samples by the paper's definition and by ArviZ's, a row for each cell.

    ``ess``, ``bulk_ess`` and ``tail_ess`` are per stored draw, as in the paper's figures (which say per step), means
    over the 100 projections. Where a reference cell has the same distribution there is ``ess_pooled`` too; ``best`` is
    that where it exists, and otherwise ``ess``. Cells of several chains have ``rhat`` after ``rhat_steps`` steps,
    reference cells their distances from N(0, I) and from the infinite-width posterior.
    """
    reference = {cell.width: stored for cell, stored in results.items() if cell.is_reference}
    rows = []
    for cell, stored in results.items():
        kept = ("sampler", "step_size", "width", "depth", "chains", "steps", "thin")
        row: Row = {"cell": cell.name} | {name: getattr(cell, name) for name in kept}
        row["acceptance"] = float(stored["acceptance_rate"].mean())
        row |= {name: float(stored.attrs[name]) for name in ("ms_per_step", "gradients_per_step")}
        row["dimension"] = int(stored.attrs["dimension"])
        comparable = cell.depth == 1 and cell.sampler != "pcnl_published" and cell.width in reference
        for name in STATISTICS:
            # The positions of the marginal chain are not weights.
            has_known = comparable and (name, cell.sampler) != ("weights", "marginal_pcn")
            found = row[name] = _effective(
                stored[name].values, reference[cell.width][name].values if has_known else None
            )
            found["ess_per_step"] = found["best"] / cell.thin
            found["ess_per_second"] = found["ess_per_step"] / row["ms_per_step"] * 1000
            if row["gradients_per_step"]:
                found["ess_per_gradient"] = found["ess_per_step"] / row["gradients_per_step"]
        if cell.chains > 1:
            row["rhat"] = _rhat_against_steps(cell, stored, rhat_steps)
        if cell.is_reference:
            row["jeffreys"] = float(stored["lp"].mean()) - float(stored.attrs["prior_log_likelihood"])
            row["limit"] = _distance_from_limit(cell, stored, dataset)
        rows.append(row)
    return rows


def _effective(values: np.ndarray, known: np.ndarray | None) -> Row:
    """Effective samples per stored draw, none of a chain that never moved; ``known`` are draws that mix fast."""
    draws = values.shape[0] * values.shape[1]
    sizes = np.nan_to_num(published_ess(values) / draws)
    row = {"ess": float(sizes.mean()), "ess_min": float(sizes.min()), "ess_max": float(sizes.max())}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is not defined.*")
        for kind in ("bulk", "tail"):
            row[f"{kind}_ess"] = float(np.nan_to_num(ess(values, method=kind) / draws).mean())
    row["best"] = row["ess"]
    if known is not None:
        row["ess_pooled"] = pooled_ess(values, known.mean(axis=(0, 1)), known.std(axis=(0, 1)))
        row["best"] = row["ess"] if np.isnan(row["ess_pooled"]) else row["ess_pooled"]
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


def _rhat_against_steps(cell: Cell, stored: xr.Dataset, at_steps: tuple[int, ...]) -> Row:
    """Mean and standard deviation over all projections of the paper's R-hat, and the mean of ArviZ's of all steps."""
    both = np.concatenate([stored[name].values for name in STATISTICS], axis=2)
    values = np.array([published_rhat(both[:, : steps // cell.thin]) for steps in at_steps])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # none is defined of chains that never moved
        mean, std = np.nanmean(values, axis=1).tolist(), np.nanstd(values, axis=1).tolist()
    return {"rank_rhat": float(np.mean(rhat(both))), "steps": list(at_steps), "mean": mean, "std": std}


def _distance_from_limit(cell: Cell, stored: xr.Dataset, dataset: Dataset) -> dict[str, float]:
    """Root mean square difference of the predictive mean from the infinite-width posterior's, over its spread."""
    f = stored["f_test"].values
    network = dense(dataset.x_train.shape[1], [cell.width] * cell.depth)
    limit = gp_posterior(network, dataset.x_train, dataset.y_train, NOISE, dataset.x_test[: f.shape[2]])
    spread = np.sqrt(np.mean(np.asarray(limit.variance)))
    difference = f.mean(axis=(0, 1)) - np.asarray(limit.mean)
    ratio = np.sqrt(np.mean(f.var(axis=(0, 1)))) / spread
    return {"mean": float(np.sqrt(np.mean(difference**2)) / spread), "std_ratio": float(ratio)}


def cell_table(rows: list[Row]) -> pd.DataFrame:
    """The rows of ``summarise_cells`` as a table by width, with columns such as ``weights.ess``."""
    return pd.json_normalize(rows).astype({"step_size": float}).sort_values("width", kind="stable")


def main_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells of figures 1 and 2: one chain, one hidden layer, a given step size."""
    return cells[(cells["chains"] == 1) & (cells["depth"] == 1) & cells["step_size"].notna()]


def compare(cells: pd.DataFrame) -> list[Row]:
    """Put every published number beside ours; the published LMC and pCNL are each compared with both of ours."""
    both = {"lmc": ["lmc", "underdamped"], "pcnl": ["pcnl", "pcnl_published"]}
    published = pd.DataFrame(published_numbers())
    published["ours_sampler"] = [both.get(name, [name]) for name in published["sampler"]]
    cells = cells.drop(columns="steps")
    main, chains = main_cells(cells), cells[cells["chains"] > 1]
    ours = [main.assign(quantity="acceptance", ours=main["acceptance"])]
    for name in STATISTICS:
        ours.append(main.assign(quantity=name, ours=main[f"{name}.ess"], pooled=main.get(f"{name}.ess_pooled")))
    if len(chains):
        last = {"ours": chains["rhat.mean"].str[-1], "steps": chains["rhat.steps"].str[-1]}
        ours.append(chains.assign(quantity="rhat", **last))
    keys = ["quantity", "ours_sampler", "step_size", "width"]
    known = pd.concat(ours).rename(columns={"sampler": "ours_sampler"})
    known = known.reindex(columns=[*keys, "ours", "pooled", "steps"])
    return published.explode("ours_sampler").merge(known, on=keys).to_dict("records")
