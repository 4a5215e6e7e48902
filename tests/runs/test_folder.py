"""The folder of a run: corruption anywhere is found and recomputed, what is not a run is left alone."""

import shutil
import warnings

import numpy as np
import pytest

from widebnn.errors import DamageWarning, WidebnnError
from widebnn.runs.folder import open_run

pytestmark = pytest.mark.ambient
CHECKPOINTS, FIRST = 40, 10
"""A chunk of three draws comes before each checkpoint from the tenth on."""
DRAWS = 3 * (CHECKPOINTS - FIRST)


def write_run(folder):
    """A run, or the rest of one; the checkpoint it resumed from and the draws that it found."""
    draws = {"f": np.zeros((1, DRAWS), int), "none": np.zeros((1, DRAWS, 0))}
    with open_run(folder, {"seed": 1}) as run:
        done, state = run.restore(draws, {"k": np.array(0), "u": np.zeros(5)}) or (0, {"k": np.array(0)})
        found, first = draws["f"][0, :done].tolist(), int(state["k"])
        for k in range(first, CHECKPOINTS):
            start = 3 * (k - FIRST)
            if start >= 0:
                run.append(start, {"f": np.arange(start, start + 3)[None], "none": np.zeros((1, 3, 0))})
            run.save({"k": np.array(k + 1), "u": np.full(5, k / 3)})
    return first, found


def corrupt(path, how, rng):
    data = bytearray(path.read_bytes())
    place = int(rng.integers(len(data)))
    if how == "remove":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[:place])
    else:
        data[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)


def test_corruption_anywhere_is_found_and_recomputed(tmp_path):
    rng, good = np.random.default_rng(0), tmp_path / "good"
    assert write_run(good) == (0, [])
    names = sorted(path.name for path in good.iterdir() if path.name != "lock")
    newest = max(name for name in names if "checkpoint" in name)
    for i in range(60):
        how = ("flip", "cut", "remove")[i % 3]
        folder, name = shutil.copytree(good, tmp_path / str(i)), names[rng.integers(len(names))]
        corrupt(folder / name, how, rng)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            first, found = write_run(folder)
        # It resumed from a good state with all draws before it, and ended as if nothing had happened.
        assert found == list(range(max(0, 3 * (first - FIRST))))
        for other in (name for name in names if "checkpoint" not in name or name == newest):
            assert (folder / other).read_bytes() == (good / other).read_bytes()
        if how != "remove" or "checkpoint" not in name:  # an older checkpoint is not needed
            assert any("was corrupted" in str(w.message) and w.category is DamageWarning for w in said), name
        if "draws" in name:  # the last checkpoint before it, of those that are kept
            lost = FIRST + int(name.split("-")[1])
            assert lost - (CHECKPOINTS - lost) * 2 - 2 <= first <= lost


def test_checkpoints_are_few_and_files_that_were_being_written_are_removed(tmp_path):
    write_run(tmp_path)
    (tmp_path / ".draws-000030-0123.tmp").touch()
    assert write_run(tmp_path)[0] == CHECKPOINTS
    assert len(list(tmp_path.glob("draws-*"))) == CHECKPOINTS - FIRST
    assert len(list(tmp_path.glob("checkpoint-*"))) <= 2 * np.log2(CHECKPOINTS) + 2
    assert not list(tmp_path.glob(".*"))


def test_swapped_and_foreign_chunks_are_found(tmp_path):
    write_run(tmp_path)
    a, b = tmp_path / "draws-000003", tmp_path / "draws-000004"
    a.write_bytes(b.read_bytes())
    with pytest.warns(DamageWarning, match=r"draws before checkpoint-\d+ are missing"):
        assert write_run(tmp_path)[0] <= FIRST + 3
    with open_run(tmp_path, {"seed": 1}) as run, pytest.warns(DamageWarning, match="draws-000000 has other arrays"):
        run.restore(
            {"f": np.zeros((2, DRAWS), int), "none": np.zeros((2, DRAWS, 0))}, {"k": np.array(0), "u": np.zeros(5)}
        )


def test_other_runs_are_refused_and_nothing_is_removed(tmp_path):
    write_run(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    draws = {"f": np.zeros((1, DRAWS), int), "none": np.zeros((1, DRAWS, 0))}
    with open_run(tmp_path, {}) as run, pytest.raises(WidebnnError, match=r"states .* are those of another sampler"):
        run.restore(draws, {"k": np.array(0)})
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_folder_that_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".mine.tmp").touch()
    with pytest.raises(WidebnnError, match="is not the folder of a run"), open_run(tmp_path, {}):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", ".mine.tmp", "lock"}
    with pytest.raises(WidebnnError, match="must be a folder"), open_run(tmp_path / "notes.txt", {}):
        pass
