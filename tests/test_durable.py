"""Output files: whole or as they were, never written through a link, one process at a time, one sentence on errors."""

import os
import stat

import numpy as np
import pytest
import xarray

from widebnn import durable
from widebnn.durable import locked, make_folder, output, replacing, write_bytes
from widebnn.errors import WidebnnError

pytestmark = pytest.mark.ambient


@pytest.fixture
def calls(monkeypatch):
    """Which files are synced and renamed, in order."""
    made = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor):
        made.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        real_fsync(descriptor)

    def replace(source, destination):
        made.append(("replace", str(source), str(destination)))
        real_replace(source, destination)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    return made


def with_write_bytes(path):
    write_bytes(path, [b"ne", b"w"])


def with_replacing(path):
    with replacing(path) as temporary:
        temporary.write_bytes(b"new")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="asks /proc which file a descriptor is of")
@pytest.mark.parametrize("write", [with_write_bytes, with_replacing])
def test_a_file_is_on_disk_before_it_gets_its_name(tmp_path, calls, write):
    """fsync of the contents, rename, fsync of the folder: leaving out any of them can lose both versions."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    write(path)
    (first, written), (second, source, destination), (third, folder) = calls
    assert (first, second, third) == ("fsync", "replace", "fsync")
    assert written == source != destination == str(path)
    assert folder == str(tmp_path)
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~_umask()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("write", [with_write_bytes, with_replacing])
def test_the_old_file_stays_when_writing_fails(tmp_path, monkeypatch, write):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(path)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("write", [with_write_bytes, with_replacing])
def test_a_link_is_replaced_and_not_followed(tmp_path, write):
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    path = tmp_path / "file"
    path.symlink_to(precious)
    write(path)
    assert precious.read_bytes() == b"mine" and path.read_bytes() == b"new" and not path.is_symlink()


def test_a_temporary_name_that_is_taken_is_not_written_through(tmp_path, monkeypatch):
    """Even somebody who guesses the random name gains nothing."""
    precious = tmp_path / "precious"
    monkeypatch.setattr(durable.secrets, "token_hex", lambda size: "0" * 2 * size)
    (tmp_path / f".file-{'0' * 16}.tmp").symlink_to(precious)
    with pytest.raises(FileExistsError):
        write_bytes(tmp_path / "file", b"new")
    assert not precious.exists()
    (tmp_path / f".{'0' * 16}.tmp").symlink_to(precious)
    with pytest.raises(WidebnnError, match="cannot be written"):
        make_folder(tmp_path)
    assert not precious.exists()


def test_xarray_writes_where_nobody_else_can(tmp_path):
    with replacing(tmp_path / "draws.nc") as temporary:
        assert stat.S_IMODE(temporary.parent.stat().st_mode) == 0o700
        xarray.Dataset({"a": ("x", np.arange(3))}).to_netcdf(temporary, engine="h5netcdf")
    with xarray.open_dataset(tmp_path / "draws.nc", engine="h5netcdf") as found:
        assert found["a"].values.tolist() == [0, 1, 2]


@pytest.mark.parametrize("place", ["file/below", "/proc/self", "/proc/none"])
def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path, place):
    (tmp_path / "file").touch()
    folder = tmp_path / place
    pattern = rf"{folder} cannot be written \([A-Z][a-z ]+\); choose another folder or make room\."
    with pytest.raises(WidebnnError, match=pattern):
        make_folder(folder)
    with pytest.raises(WidebnnError, match=pattern), locked(folder):
        pass
    with pytest.raises(WidebnnError, match=r"cannot be written \([A-Z][a-z ]+\)"), output(folder / "x"):
        write_bytes(folder / "x", b"")


def test_a_lock_keeps_others_out_and_is_given_back(tmp_path):
    inside = pytest.raises(WidebnnError, match="in use by another process")
    with locked(tmp_path / "new"), inside, locked(tmp_path / "new"):
        pass
    with locked(tmp_path / "new"):
        pass


def test_a_lock_is_not_taken_through_a_link(tmp_path):
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WidebnnError, match="cannot be written"), locked(tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_of_a_folder_that_was_removed_is_no_lock(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with (folder / "lock").open("ab") as lock:
        (folder / "lock").unlink()
        (folder / "lock").touch()
        assert not durable._take(lock, folder / "lock")
