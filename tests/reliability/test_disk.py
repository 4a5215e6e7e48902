"""Full, failing and read-only disks are named in one sentence, and lose nothing.

One system call of a stored run fails (opening, syncing, renaming, removing; no space, read-only, input/output error,
quota), another one each time; then the fault is taken away. Some failures are real: a limit on the size of files, a
small file system that is full, and one that is read-only. The error must be one sentence with the system's reason, and
the same call must then end with the same bits and files.
"""

import contextlib
import errno
import os
import subprocess
from collections import Counter

import numpy as np
import pytest
from trial import counts, files_of, intercepted, other_kinds, run, size

import widebnn

resource = pytest.importorskip("resource")
pytestmark = [pytest.mark.long, pytest.mark.ambient, pytest.mark.xdist_group("disk")]
SHORT = {"steps": 120, "burn_in": 40}
ERRORS = (errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT)


@pytest.fixture(scope="module")
def good(compiled, tmp_path_factory):
    """A run that nothing happens to: its folder and its digest."""
    folder = tmp_path_factory.mktemp("good") / "run"
    return folder, run(store=folder, **SHORT)


def trouble(folder, good, fault, number):
    """A run under a fault, then without it: what goes wrong."""
    said = None
    with fault:
        try:
            run(store=folder, **SHORT)
        except widebnn.WidebnnError as error:
            said = str(error)
    found = [] if said and os.strerror(number) in said and "\n" not in said else [f"it says {said}"]
    found += ["other bits afterwards"] * (run(store=folder, **SHORT) != good[1])
    return found + other_kinds(folder, good[0])


def failing(nth, number, happened):
    """The n-th call fails."""

    def strike(name, go, argument):
        happened.append(name)
        if len(happened) == nth:
            raise OSError(number, os.strerror(number), str(argument))
        return go()

    return strike


def test_failing_calls_are_named_and_lose_nothing(tmp_path, good, record):
    rng, calls, tally, problems = np.random.default_rng(0), [], Counter(), []
    with intercepted(tmp_path / "whole", failing(-1, 0, calls)):
        assert run(store=tmp_path / "whole", **SHORT) == good[1]
    for i in range(size(20, 200)):
        folder, number, nth, happened = tmp_path / str(i), ERRORS[i % 4], int(rng.integers(len(calls))), []
        found = trouble(folder, good, intercepted(folder, failing(nth + 1, number, happened)), number)
        tally[calls[nth]] += 1
        problems += [f"{calls[nth]} fails: {text}" for text in found]
    what = "system calls that fail; not named, other bits or files afterwards"
    record(what, f"{counts(tally)}; {problems[:3] or 0}", "0", not problems)


@contextlib.contextmanager
def limited(largest):
    """No file that this process writes may be larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_files_larger_than_the_system_allows(tmp_path, good, record):
    largest, rng = max(path.stat().st_size for path in files_of(good[0])), np.random.default_rng(1)
    limits = rng.integers(1, largest, size(5, 50))
    found = [trouble(tmp_path / str(i), good, limited(int(n)), errno.EFBIG) for i, n in enumerate(limits)]
    problems = [text for texts in found for text in texts]
    record(f"{len(limits)} limits on the size of files; not named, other bits", problems[:3] or 0, "0", not problems)


@contextlib.contextmanager
def remounted(disk, broken, usual):
    """A disk with other options for a while."""
    for options in (broken, usual):
        subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)
        if options == broken:
            yield


@pytest.mark.parametrize(("broken", "number"), [("size=96k", errno.ENOSPC), ("ro", errno.EROFS)])
def test_a_disk_that_is_full_or_read_only(broken, number, tmp_path, good, record):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        run(store=disk / "run", **SHORT | {"steps": 40})
        found = trouble(disk / "run", good, remounted(disk, broken, "rw,size=8m"), number)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    record(f"a disk that is {os.strerror(number).lower()}: not named, other bits", found or 0, "0", not found)
