"""Grids: planned without repetition, resumable, never mixed up; and what is read off them."""

import dataclasses
import json
import re

import numpy as np
import pytest
import xarray as xr

from widebnn.data import load_dataset
from widebnn.errors import WidebnnError
from widebnn.experiments import EXPERIMENTS, SCALES, Cell, Scale, plan, run_cell, run_grid
from widebnn.experiments.analysis import compare, summarise_cell
from widebnn.experiments.cells import cell_of, sampler_options
from widebnn.experiments.grid import cell_path, duration, load_cell, write_config
from widebnn.experiments.published import published_numbers
from widebnn.experiments.report import claims, write_report

pytestmark = pytest.mark.xdist_group("grid")  # one worker, which makes the fixture once
TINY = Scale(8, 4, (16,), (0.3,), 40, 10, 4, (16,), (20, 40), (), 10)
SAMPLERS = ("pcn", "marginal_pcn", "hilbert_hmc")
DATASET = load_dataset("digits", TINY.n_train, TINY.n_test)
CONFIG = {"data": "digits", "n_train": 8, "n_test": 4, "scale": "tiny", "seed": 0}


def test_every_cell_is_planned_once():
    for scale in SCALES.values():
        cells = plan(EXPERIMENTS, scale)
        assert len({cell.name for cell in cells}) == len(cells)
        assert [cell.work for cell in cells] == sorted(cell.work for cell in cells)
        one = plan(["acceptance"], scale, samplers=["pcn"], widths=[64], step_sizes=[0.1])
        assert [cell.name for cell in one] == ["pcn-b0.1-w64-d1"]
    assert plan(["acceptance", "ess", "traces"], SCALES["paper"]) == plan(["ess"], SCALES["paper"])


def test_the_paper_scale_is_the_papers():
    cells = {cell.name: cell for cell in plan(["ess", "rhat"], SCALES["paper"])}
    cell = cells["pcn-b0.1-w8192-d1"]
    assert (cell.steps, cell.burn_in, cell.thin) == (1_000_000, 20_000, 25)
    assert cells["pcnl-b0.1-w4096-d1-3chains"].chains == 3


def test_published_refreshment():
    cell = Cell("underdamped", 0.1, 8, 1, 10, 0, 1)
    name, options = sampler_options(cell)
    assert name == "underdamped"
    keep = np.exp(-options["friction"] * 0.1)
    np.testing.assert_allclose(keep**2, 0.99, rtol=1e-12)


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """All experiments, tiny, for some samplers."""
    folder = tmp_path_factory.mktemp("grid")
    cells = plan(EXPERIMENTS, TINY, SAMPLERS)
    results = run_grid(cells, DATASET, folder, say=lambda text: None)
    return folder, cells, results


@pytest.mark.ambient
def test_a_cell_of_the_published_pcnl():
    stored = run_cell(Cell("pcnl_published", 0.3, 16, 1, 20, 5, 5), DATASET)
    assert stored["predictions"].shape == (1, 4, 100)
    assert np.isfinite(stored["predictions"]).all()


@pytest.mark.ambient
def test_a_finished_grid_is_not_run_again(grid):
    folder, cells, results = grid
    before = {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()}
    assert len(before) == len(cells)
    said = []
    again = run_grid(cells, DATASET, folder, say=said.append)
    assert {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()} == before
    assert said == [f"{len(cells)} of {len(cells)} cells are there already."]
    for name, stored in results.items():
        xr.testing.assert_identical(again[name], stored)


@pytest.mark.ambient
def test_a_lost_or_damaged_cell_comes_back_the_same(grid):
    folder, cells, results = grid
    lost, damaged = (next(cell for cell in cells if cell.sampler == name) for name in SAMPLERS[:2])
    cell_path(folder, lost).unlink()
    path = cell_path(folder, damaged)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    again = run_grid([lost, damaged], DATASET, folder, say=lambda text: None)
    for cell in (lost, damaged):
        for name in ("weights", "predictions", "lp"):
            np.testing.assert_array_equal(again[cell.name][name], results[cell.name][name])


def test_another_cell_under_the_same_name_is_not_taken(grid):
    folder, cells, _ = grid
    assert load_cell(folder, cells[0]) is not None
    assert load_cell(folder, dataclasses.replace(cells[0], steps=cells[0].steps * 2)) is None


def test_cells_are_stored_whole(grid):
    _, cells, results = grid
    for cell in cells:
        stored = results[cell.name]
        assert cell_of(stored) == cell
        draws = cell.steps // cell.thin
        assert stored["weights"].shape == (cell.chains, draws, 100)
        assert stored["predictions"].shape == (cell.chains, draws, 100)
        assert np.isfinite(stored["lp"]).all()
        row = summarise_cell(stored)
        assert 0 <= row["acceptance"] <= 1
        assert row["weights"]["ess_min"] <= row["weights"]["ess"] <= row["weights"]["ess_max"]
        np.testing.assert_allclose(row["weights"]["ess"], cell.thin * row["weights"]["ess_per_step"])


def test_the_whole_chain_counts_all_weights(grid):
    _, _, results = grid
    assert results["pcn-b0.3-w16-d1"].attrs["dimension"] == 65 * 16 + 17 * 10
    assert results["marginal_pcn-b0.3-w16-d1"].attrs["dimension"] == (8 + 4) * 16


def test_report(grid):
    folder, _, results = grid
    summary = write_report(folder, results, DATASET, TINY, CONFIG)
    page = (folder / "report.html").read_text()
    assert not re.search(r'(src|href)="?(?!data:)[a-z]+:', page), "the page must need nothing from outside"
    assert page.count("<img") == page.count("data:image/png;base64,") >= 5
    assert json.loads((folder / "summary.json").read_text())["config"] == CONFIG
    for name in ("acceptance", "ess", "rhat", "traces-0.3", "speed", "distance"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert summary["compared"] == [], "digits are not the paper's data"
    assert {row["cell"] for row in summary["rhat"]} == {name for name in results if "chains" in name}


def test_published_numbers_find_their_cells():
    """Each published number is compared with the cell of the same sampler, step size and width."""
    rows = [
        {
            "sampler": number.sampler,
            "step_size": number.step_size,
            "width": number.width,
            "depth": 1,
            "chains": 1,
            "acceptance": 0.5,
            "weights": {"ess": 0.1},
            "predictions": {"ess": 0.2},
        }
        for number in published_numbers()
    ]
    found = compare(rows)
    assert len(found) == len(published_numbers()) == 25 + 60
    assert {row["ours"] for row in found if row["quantity"] == "predictions"} == {0.2}


def test_claims_are_judged_by_the_numbers():
    def row(sampler, width, acceptance, ess):
        statistic = {"ess": ess}
        return {
            "sampler": sampler, "step_size": 0.1, "width": width, "depth": 1, "chains": 1,
            "acceptance": acceptance, "weights": statistic, "predictions": statistic,
        }  # fmt: skip

    rising = [row("pcn", width, rate, rate) for width, rate in ((64, 0.1), (128, 0.4), (256, 0.8))]
    falling = [row("lmc", width, rate, rate) for width, rate in ((64, 0.9), (128, 0.5), (256, 0.1))]
    assert {claim["verdict"] for claim in claims(rising + falling)} == {"confirmed"}
    swapped = [{**r, "sampler": "lmc" if r["sampler"] == "pcn" else "pcn"} for r in rising + falling]
    assert {claim["verdict"] for claim in claims(swapped)} == {"not confirmed"}


def test_a_folder_holds_one_configuration(tmp_path):
    write_config(tmp_path, CONFIG)
    write_config(tmp_path, CONFIG)
    with pytest.raises(WidebnnError, match="holds a run with seed = 0"):
        write_config(tmp_path, CONFIG | {"seed": 1})
    (tmp_path / "config.toml").write_text("seed = = 3")
    with pytest.raises(WidebnnError, match="damaged"):
        write_config(tmp_path, CONFIG)


@pytest.mark.parametrize(("seconds", "text"), [(5, "5 s"), (65, "1 min 05 s"), (3700, "1 h 01 min")])
def test_durations(seconds, text):
    assert duration(seconds) == text
