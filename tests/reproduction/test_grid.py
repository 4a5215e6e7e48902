"""Grids: planned without repetition, resumable, never mixed up; and what is read off them.

Most tests look at what `reproduce all --scale smoke` wrote: with some cells, and, among the long tests, with all.
"""

import concurrent.futures
import dataclasses
import itertools
import json
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from killing import Killed, kill_after, loop, save_often
from problems import autoregression
from widebnn import cli
from widebnn.data import load_dataset
from widebnn.errors import DamageWarning, WidebnnError
from widebnn.reproduction import EXPERIMENTS, SCALES, Cell, plan, run_cell, run_grid
from widebnn.reproduction.analysis import cell_table, compare, pooled_ess, summarise_cells
from widebnn.reproduction.cells import data_checksum, sampler_options
from widebnn.reproduction.claims import claims
from widebnn.reproduction.diagnostics import published_ess
from widebnn.reproduction.engines import Engine
from widebnn.reproduction.grid import with_data
from widebnn.reproduction.published import published_numbers
from widebnn.reproduction.sweeps import load, path_of
from widebnn.runs.command import begin, begun

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.xdist_group("grid")  # one worker, which makes the fixture once
SMOKE = SCALES["smoke"]
DATASET = load_dataset("digits", SMOKE.n_train, SMOKE.n_test)
CONFIG = {"data": "digits", "n_train": SMOKE.n_train, "n_test": SMOKE.n_test, "scale": "smoke", "seed": 0}
CONFIG["data_checksum"] = data_checksum(DATASET)
OTHER_DATASET = dataclasses.replace(DATASET, y_train=DATASET.y_train[::-1])
COMMAND = "reproduce all --scale smoke --out"
SOME = {"samplers": ("pcn", "hilbert_hmc"), "widths": (64,)}


def run_command(folder, *options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["widebnn", *COMMAND.split(), str(folder), *options])
        patch.setattr(warnings, "showwarning", warnings.showwarning)
        with pytest.raises(SystemExit) as stop:
            cli.main()
    assert stop.value.code in (0, None)


def test_the_guide_has_the_command():
    assert f"widebnn {COMMAND} runs/smoke\n" in (ROOT / "docs" / "guides" / "runs.md").read_text()


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
    name, options = sampler_options(cells["underdamped-b0.1-w8192-d1"])
    assert name == "underdamped"
    np.testing.assert_allclose(np.exp(-options["friction"] * 0.1) ** 2, 0.99, rtol=1e-12)  # of the momentum is kept


def test_wide_networks_get_fewer_steps():
    scale = dataclasses.replace(SMOKE, steps=1000, thin=10, full_steps_to=128)
    assert [scale.steps_at(width) for width in (64, 128, 2048)] == [1000, 1000, 120]


@pytest.mark.long
@pytest.mark.ambient
def test_cells_of_one_kind_start_at_the_same_positions_in_the_posterior(monkeypatch):
    starts = []

    def sample(*arguments, initial=None, **options):
        starts.append(initial)
        return loop.sample(*arguments, initial=initial, **options)

    monkeypatch.setattr("widebnn.reproduction.cells.sample", sample)
    cell = Cell("pcn", 0.1, 16, 1, 20, 0, 10, start="posterior")
    far, near = (run_cell(each, DATASET) for each in (dataclasses.replace(cell, start="prior"), cell))
    run_cell(dataclasses.replace(cell, step_size=0.2), DATASET)
    assert starts[:2] == [None, None] and starts[2] is starts[3] and len(starts) == 4
    assert near["lp"].min() > far["lp"].max()


@pytest.fixture(scope="module", params=[SOME, pytest.param({}, marks=pytest.mark.long)], ids=["some", "all"])
def smoke(request, tmp_path_factory):
    """A folder of the guide's command, its cells and their results."""
    folder = tmp_path_factory.mktemp("reproduce") / "smoke"
    options = [(f"--{name}", ",".join(map(str, values))) for name, values in request.param.items()]
    run_command(folder, *itertools.chain(*options))
    cells = list(with_data(plan(EXPERIMENTS, SMOKE, **request.param), DATASET).values())
    return folder, cells, {cell.name: load(folder, cell.name, cell) for cell in cells}


@pytest.mark.ambient
def test_a_finished_grid_is_not_run_again(smoke, capsys):
    folder, cells, results = smoke

    def times():
        return {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir() if path.name != "lock"}

    before = times()
    assert {path.suffix for path in before} == {".nc", ".sha256"} and len(before) == 2 * len(cells)
    again = run_grid(cells, DATASET, folder)
    assert times() == before
    assert capsys.readouterr().err == f"{len(cells)} of {len(cells)} cells are finished already.\n"
    for name, stored in results.items():
        xr.testing.assert_identical(again[name], stored)


def runs_again(cell, folder, results):
    """Run a cell, and compare it with what it was before."""
    again = run_grid([cell], DATASET, folder, progress=False)
    for name in ("weights", "predictions", "lp"):
        np.testing.assert_array_equal(again[cell.name][name], results[cell.name][name])


@pytest.mark.long
@pytest.mark.ambient
def test_a_damaged_cell_comes_back_the_same(smoke):
    folder, cells, results = smoke
    cell = next(cell for cell in cells if cell.sampler == "pcn")
    path = path_of(folder, cell.name)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.warns(DamageWarning, match=rf"corrupted .{path.name}.: .* is recomputed"):
        runs_again(cell, folder, results)


def run_here(function, *arguments):
    """Run a job in this process, where a test can reach it."""
    future = concurrent.futures.Future()
    future.set_result(function(*arguments))
    return future


@pytest.mark.long
@pytest.mark.ambient
def test_a_killed_cell_resumes(smoke, monkeypatch):
    folder, cells, results = smoke
    cell = next(cell for cell in cells if cell.sampler == "pcn")
    path_of(folder, cell.name).unlink()
    save_often(monkeypatch)
    monkeypatch.setitem(loop.sample.__kwdefaults__, "checkpoint_seconds", 0.0)
    kill_after(monkeypatch, 4)
    with pytest.raises(Killed):
        run_grid([cell], DATASET, folder, progress=False, engine=Engine(run_here, lambda: None))
    running = path_of(folder, cell.name).with_suffix(".run")
    assert list(running.glob("checkpoint-*")) and not path_of(folder, cell.name).exists()
    kill_after(monkeypatch, None)
    runs_again(cell, folder, results)
    assert not running.exists()


def test_a_finished_cell_is_matched_by_its_settings_and_its_data(smoke):
    folder, (cell, *_), _ = smoke
    (other_data,) = with_data([cell], OTHER_DATASET).values()
    assert load(folder, cell.name, cell) is not None
    assert load(folder, cell.name, dataclasses.replace(cell, steps=cell.steps * 2)) is None
    assert load(folder, cell.name, other_data) is None


def test_cells_are_stored_whole(smoke):
    _, cells, results = smoke
    for cell in cells:
        stored = results[cell.name]
        assert stored.attrs["job"] == repr(cell)
        draws = cell.steps // cell.thin
        assert stored["weights"].shape == (cell.chains, draws, 100)
        assert stored["predictions"].shape == (cell.chains, draws, 100)
        assert np.isfinite(stored["lp"]).all()
        (row,) = summarise_cells({cell: stored}, DATASET, SMOKE.rhat_steps)
        assert 0 <= row["acceptance"] <= 1 and row["ms_per_step"] > 0
        assert row["weights"]["ess_min"] <= row["weights"]["ess"] <= row["weights"]["ess_max"]
        np.testing.assert_allclose(row["weights"]["best"], cell.thin * row["weights"]["ess_per_step"])


def test_the_whole_chain_counts_all_weights(smoke):
    _, _, results = smoke
    assert results["pcn-b0.1-w64-d1"].attrs["dimension"] == 65 * 64 + 65 * 10
    if "marginal_pcn-b0.1-w64-d1" in results:
        assert results["marginal_pcn-b0.1-w64-d1"].attrs["dimension"] == (16 + 8) * 64


def test_report(smoke):
    folder, cells, results = smoke
    summary = json.loads((folder / "summary.json").read_text())
    page = (folder / "report.html").read_text()
    assert not re.search(r'(src|href)="?(?!data:)[a-z]+:', page), "the page must need nothing from outside"
    figures = ("acceptance", "ess", "rhat", "traces-0.1", "speed", "distance")
    assert page.count("<img") == page.count("data:image/png;base64,") == len(figures)
    for name in figures:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert summary["config"] == CONFIG and begun(folder) == ("reproduce", CONFIG)
    assert summary["compared"] == [], "digits are not the paper's data"
    several = {row["cell"] for row in summary["cells"] if "rhat" in row}
    assert several == {name for name in results if "chains" in name}
    assert bool(summary["claims"]) == (len({cell.width for cell in cells}) > 1), "claims compare widths"
    rows = {row["cell"]: row for row in summary["cells"]}
    assert set(rows) == set(results)
    assert all(row["weights"]["tail_ess"] >= 0 for row in rows.values())
    far, *near = (rows[name]["jeffreys"] for name in sorted(rows, reverse=True) if name.startswith("hilbert_hmc"))
    assert far > 0 and all(far > one > 0 for one in near)


@pytest.mark.parametrize("correlation", [0.5, 0.9, 0.97, 0.998])
def test_pooled_ess_of_short_slow_chains(correlation):
    """Forty draws of 100 autoregressions of known effective sample size, which the paper's estimate cannot show."""
    rng, values = np.random.default_rng(1), autoregression(correlation, 40, 100)[None]
    exact = (1 - correlation) / (1 + correlation)
    shift, scale = rng.normal(size=100), rng.uniform(1, 3, size=100)
    found = pooled_ess(shift + scale * values, shift, scale)
    assert 0.7 < found / exact < 1.4
    if correlation > 0.9:
        assert (published_ess(values) / 40).mean() > 3 * exact
    assert np.isnan(pooled_ess(np.ones((1, 40, 3)), np.zeros(3), np.ones(3))), "a chain that never moved"


def test_published_numbers_find_their_cells():
    """Each published number is compared with the cell of the same sampler, step size and width."""
    numbers = published_numbers()
    values = {"depth": 1, "steps": 9, "acceptance": 0.5, "weights": {"ess": 0.1}, "predictions": {"ess": 0.2}}
    cells = {(n["sampler"], n["step_size"], n["width"]): n | values | {"chains": 1} for n in numbers}
    several = {"chains": 3, "rhat": {"mean": [3.0, 1.5], "steps": [10, 20]}}
    found = compare(cell_table([*cells.values(), *(n | values | several for n in numbers if n["quantity"] == "rhat")]))
    assert len(found) == len(numbers) == 25 + 60 + 6
    assert {row["ours"] for row in found if row["quantity"] == "predictions"} == {0.2}
    assert {(row["ours"], row["steps"]) for row in found if row["quantity"] == "rhat"} == {(1.5, 20)}


def test_claims_are_judged_by_the_numbers():
    def row(sampler, width, acceptance, ess):
        values = {"acceptance": acceptance, "weights": {"best": ess}, "predictions": {"best": ess}}
        return {"sampler": sampler, "step_size": 0.1, "width": width, "depth": 1, "chains": 1} | values

    rising = [row("pcn", width, rate, rate) for width, rate in ((64, 0.1), (128, 0.4), (256, 0.8))]
    falling = [row("lmc", width, rate, rate) for width, rate in ((64, 0.9), (128, 0.5), (256, 0.1))]
    assert {claim["verdict"] for claim in claims(cell_table(rising + falling))} == {"confirmed"}
    swapped = [{**r, "sampler": "lmc" if r["sampler"] == "pcn" else "pcn"} for r in rising + falling]
    assert {claim["verdict"] for claim in claims(cell_table(swapped))} == {"not confirmed"}


def test_a_folder_holds_one_configuration(tmp_path):
    assert not begin(tmp_path, "reproduce", CONFIG)
    (tmp_path / "cells").mkdir()
    assert begin(tmp_path, "reproduce", CONFIG)
    with pytest.raises(WidebnnError, match="holds a run with seed 0"):
        begin(tmp_path, "reproduce", CONFIG | {"seed": 1})
    with pytest.raises(WidebnnError, match=r"holds a run with data_checksum .*the same settings and data"):
        begin(tmp_path, "reproduce", CONFIG | {"data_checksum": data_checksum(OTHER_DATASET)})
