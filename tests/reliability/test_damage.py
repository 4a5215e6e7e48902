"""Corrupted files are detected and recomputed, and nothing is lost that was safe.

One byte is flipped, or one file cut, at a random place of a random file of a stored run and of the folder of a
``widebnn sample`` command. A run must warn of the file and end with the same bits; corruption of the newest file costs
a part of the run only. A command resumes with a warning and the same draws, or refuses in one line.
"""

import shutil
import warnings
from collections import Counter

import numpy as np
import pytest
import xarray
from trial import COMMAND, SETTINGS, Watched, command, files_of, run, size

pytestmark = [pytest.mark.long, pytest.mark.ambient, pytest.mark.xdist_group("damage")]


def damaged_copies(good, count):
    """(copy, damaged file), each file at least once if there are enough."""
    rng, files = np.random.default_rng(2), [path.relative_to(good) for path in files_of(good)]
    for i in range(count):
        copy = shutil.copytree(good, good.parent / str(i))
        path = copy / files[i if i < len(files) else rng.integers(len(files))]
        data, flip = bytearray(path.read_bytes()), rng.random() < 0.5
        place = int(rng.integers(len(data)))
        data[place] ^= int(rng.integers(1, 256))
        path.write_bytes(data if flip else data[:place])
        yield copy, path
        shutil.rmtree(copy)


def test_a_damaged_run_ends_with_the_same_bits(tmp_path, record):
    whole = run(store=tmp_path / "good")
    newest = max(files_of(tmp_path / "good"), key=lambda path: path.stat().st_mtime_ns).name
    shares, problems = [], []
    for copy, path in damaged_copies(tmp_path / "good", size(60, 1000)):
        watched = Watched()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            problems += [f"{path.name}: other bits"] * (run(store=copy, watched=watched) != whole)
        shares.append(sum(watched.chunks) / (SETTINGS["burn_in"] + SETTINGS["steps"]))
        problems += [f"{path.name}: no warning"] * (not any(path.name in str(warning.message) for warning in said))
        problems += [f"{path.name}: {shares[-1]:.0%} again"] * (path.name == newest and shares[-1] > 0.1)
    what = f"{len(shares)} damaged runs: computed again on average; no warning, other bits"
    record(what, f"{np.mean(shares):.0%}; {problems[:3] or 0}", "0", not problems)


def results(folder):
    """What a command found, as other programs read it."""
    with xarray.open_datatree(folder / "draws.nc", engine="h5netcdf") as tree:
        return [tree[name].to_dataset().drop_attrs().load() for name in ("posterior", "sample_stats", "predictions")]


def test_a_damaged_command_is_resumed_or_refused(tmp_path, record):
    assert command(*COMMAND.split(), "--out", tmp_path / "good")[0] == 0
    whole, tally, problems = results(tmp_path / "good"), Counter(), []
    for copy, path in damaged_copies(tmp_path / "good", size(40, 300)):
        code, error = command("resume", copy)
        tally[code] += 1
        if code not in (0, 2) or error.count("error: ") != (code == 2) or str(copy) not in error:
            problems.append(f"{path.name}: {error[-200:]}")
        elif code == 0 and not all(a.identical(b) for a, b in zip(results(copy), whole, strict=True)):
            problems.append(f"{path.name}: other draws")
    figure, right = f"{tally[0]}, {tally[2]}; {problems[:3] or 0}", not problems and tally[0] > tally[2]
    record("damaged folders of commands: resumed, refused; otherwise", figure, "most resumed; 0", right)
