"""What is read off finished cells: one row of numbers per cell, R-hat against steps, distances from the limits."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import xarray as xr

from widebnn.data import Dataset
from widebnn.diagnostics import ess, published_ess, published_rhat
from widebnn.experiments.cells import NOISE, Cell, cell_of
from widebnn.experiments.published import published_numbers
from widebnn.networks import dense
from widebnn.networks.nngp import gp_posterior

STATISTICS = ("weights", "predictions")


def summarise_cell(stored: xr.Dataset) -> dict[str, Any]:
    """Acceptance, effective samples by the paper's definition and by ArviZ's, and speed.

    ``ess`` is per stored draw, as in the paper's figures (which say per step); ``ess_per_step``, ``ess_per_gradient``
    and ``ess_per_second`` are what they say. Of the 100 projections the mean, the smallest and the largest.
    """
    cell = cell_of(stored)
    draws = cell.chains * stored.sizes["draw"]
    row: dict[str, Any] = {
        "cell": cell.name,
        "sampler": cell.sampler,
        "step_size": cell.step_size,
        "width": cell.width,
        "depth": cell.depth,
        "chains": cell.chains,
        "steps": cell.steps,
        "thin": cell.thin,
        "acceptance": float(stored["acceptance_rate"].mean()),
        "ms_per_step": float(stored.attrs["ms_per_step"]),
        "gradients_per_step": float(stored.attrs["gradients_per_step"]),
        "dimension": int(stored.attrs["dimension"]),
    }
    if cell.is_reference:
        row["jeffreys"] = float(stored["lp"].mean()) - float(stored.attrs["prior_log_likelihood"])
    with warnings.catch_warnings():
        # A chain that never moved is an outcome here, shown as nothing effective.
        warnings.filterwarnings("ignore", message=".*is not defined.*")
        for name in STATISTICS:
            values = stored[name].values
            sizes = np.nan_to_num(published_ess(values) / draws)
            modern = np.nan_to_num(ess(values) / draws)
            row[name] = {
                "ess": float(sizes.mean()),
                "ess_min": float(sizes.min()),
                "ess_max": float(sizes.max()),
                "bulk_ess": float(modern.mean()),
                "ess_per_step": float(sizes.mean()) / cell.thin,
                "ess_per_second": float(sizes.mean()) / cell.thin / row["ms_per_step"] * 1000,
            }
            if row["gradients_per_step"]:
                row[name]["ess_per_gradient"] = row[name]["ess_per_step"] / row["gradients_per_step"]
    return row


def rhat_against_steps(stored: xr.Dataset, at_steps: tuple[int, ...]) -> dict[str, list[float]]:
    """Mean and standard deviation of the paper's R-hat over all projections, after each number of steps."""
    cell = cell_of(stored)
    both = np.concatenate([stored[name].values for name in STATISTICS], axis=2)
    found: dict[str, list[float]] = {"steps": [], "mean": [], "std": []}
    for steps in at_steps:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*is not defined.*")
            values = published_rhat(both[:, : steps // cell.thin])
        finite = values[np.isfinite(values)]
        found["steps"].append(steps)
        found["mean"].append(float(finite.mean()) if finite.size else float("nan"))
        found["std"].append(float(finite.std()) if finite.size else float("nan"))
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


def compare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every published number beside ours. The published LMC is compared with both of ours."""
    ours = {(row["sampler"], row["step_size"], row["width"]): row for row in rows if row["depth"] == 1}
    compared = []
    for number in published_numbers():
        names = ("lmc", "underdamped") if number.sampler == "lmc" else (number.sampler,)
        if number.sampler == "pcnl":
            names = ("pcnl", "pcnl_published")
        for name in names:
            row = ours.get((name, number.step_size, number.width))
            if row is not None and row["chains"] == 1:
                value = row["acceptance"] if number.quantity == "acceptance" else row[number.quantity]["ess"]
                compared.append({**number._asdict(), "ours_sampler": name, "ours": value})
    return compared


def find(rows: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    """The rows with these values, by width."""
    matching = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return sorted(matching, key=lambda row: row["width"])


def is_main(cell: Cell) -> bool:
    """Part of figures 1 and 2: one chain, one hidden layer."""
    return cell.chains == 1 and cell.depth == 1
