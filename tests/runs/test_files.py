"""Files are replaced atomically and never written through links; records are verified; a lock keeps others out."""

import hashlib
import io
import json
import os
import stat
import zipfile

import numpy as np
import pytest

from widebnn.errors import WidebnnError
from widebnn.runs import files
from widebnn.runs.files import (
    DamageError,
    locked,
    make_folder,
    output,
    read_record,
    replacing,
    write_bytes,
    write_record,
)

pytestmark = pytest.mark.ambient
ARRAYS = {
    "x": np.arange(6.0).reshape(2, 3),
    "transposed": np.arange(6, dtype=np.int32).reshape(2, 3).T,
    "empty": np.zeros((1, 3, 0)),
    "number": np.array(3, np.uint8),
    "header": np.array([True, False]),
    "file": np.arange(3, dtype=np.float16)[::-1],
}


def with_write_bytes(path):
    write_bytes(path, b"new")


def with_replacing(path):
    with replacing(path) as temporary:
        temporary.write_bytes(b"new")


def with_write_record(path):
    write_record(path, {"kind": "new"}, {"x": np.zeros(3)})


WAYS = pytest.mark.parametrize("write", [with_write_bytes, with_replacing, with_write_record])


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="asks /proc which file a descriptor is of")
@WAYS
def test_a_file_is_on_disk_before_it_gets_its_name(tmp_path, monkeypatch, write):
    """fsync of the contents, rename, fsync of the folder: leaving out any of them can lose both versions."""
    calls, real_fsync, real_replace = [], os.fsync, os.replace

    def fsync(descriptor):
        calls.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        real_fsync(descriptor)

    def replace(source, destination):
        calls.append(("replace", str(source), str(destination)))
        real_replace(source, destination)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    path = tmp_path / "file"
    path.write_bytes(b"old")
    write(path)
    (first, written), (second, source, destination), (third, folder) = calls
    assert (first, second, third) == ("fsync", "replace", "fsync")
    assert written == source != destination == str(path) and folder == str(tmp_path)
    assert path.read_bytes() != b"old" and list(tmp_path.iterdir()) == [path]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


@WAYS
def test_the_old_file_stays_when_writing_fails(tmp_path, monkeypatch, write):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(path)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


@WAYS
def test_a_link_is_replaced_and_not_followed(tmp_path, write):
    precious, path = tmp_path / "precious", tmp_path / "file"
    precious.write_bytes(b"mine")
    path.symlink_to(precious)
    write(path)
    assert precious.read_bytes() == b"mine" and not path.is_symlink()


def test_a_temporary_name_that_is_taken_is_not_written_through(tmp_path, monkeypatch):
    """Even somebody who guesses the random name gains nothing."""
    precious = tmp_path / "precious"
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: "0" * 2 * size)
    for name in (f".file-{'0' * 16}.tmp", f".{'0' * 16}.tmp"):
        (tmp_path / name).symlink_to(precious)
    with pytest.raises(FileExistsError):
        write_bytes(tmp_path / "file", b"new")
    with pytest.raises(WidebnnError, match="cannot be written"):
        make_folder(tmp_path)
    assert not precious.exists()


@pytest.mark.parametrize("place", ["file/below", "/proc/self", "/proc/none"])
def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path, place):
    (tmp_path / "file").touch()
    folder = tmp_path / place
    pattern = rf"{folder}(/lock)? cannot be written \([A-Z][a-z ]+\); choose another folder or make room\."
    with pytest.raises(WidebnnError, match=pattern):
        make_folder(folder)
    with pytest.raises(WidebnnError, match=pattern), locked(folder):
        pass
    with pytest.raises(WidebnnError, match=rf"{folder}/x cannot be written"), output(folder / "x"):
        write_bytes(folder / "x", b"")


def test_a_lock_keeps_others_out_and_is_given_back(tmp_path):
    for _ in range(2):
        with (
            locked(tmp_path / "new"),
            pytest.raises(WidebnnError, match="in use by another process"),
            locked(tmp_path / "new"),
        ):
            pass


def test_a_lock_is_not_taken_through_a_link(tmp_path):
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WidebnnError, match="cannot be written"), locked(tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_of_a_folder_that_was_removed_is_no_lock(tmp_path, monkeypatch):
    def flock(lock, how):
        (tmp_path / "lock").unlink()
        (tmp_path / "lock").touch()

    monkeypatch.setattr(files.fcntl, "flock", flock)
    with pytest.raises(WidebnnError, match="in use by another process"), locked(tmp_path):
        pass


def test_a_record_is_read_back_and_numpy_reads_it_too(tmp_path):
    header = {"kind": "test", "number": 0.1, "list": [None, "a"]}
    checksum = write_record(tmp_path / "record", header, ARRAYS)
    record = read_record(tmp_path / "record", "test")
    assert record.header == header and record.checksum == checksum == write_record(tmp_path / "b", header, ARRAYS)
    assert (tmp_path / "record").read_bytes() == (tmp_path / "b").read_bytes()
    with np.load(tmp_path / "record", allow_pickle=False) as archive:
        assert json.loads(archive["header.json"]) == header
        for name, array in ARRAYS.items():
            for found in (record.arrays[name], archive[name]):
                assert (found.dtype, found.shape) == (array.dtype, array.shape)
                np.testing.assert_array_equal(found, array)
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        write_record(tmp_path / "record", header, {"x": np.array([{}])})


def npy(array=(0.0, 1.0), **changes):
    """A .npy file whose header says what it likes."""
    stream, array = io.BytesIO(), np.asarray(array)
    entries = np.lib.format.header_data_from_array_1_0(array) | changes
    np.lib.format.write_array_header_1_0(stream, entries)
    return stream.getvalue() + array.tobytes()


HOSTILE = {
    "no zip": (b"nonsense", "not a zip file"),
    "no header": ({"x.npy": npy()}, "header.json is not a file in the archive"),
    "another kind": ({"header.json": b'{"kind": "other"}'}, "not a record of kind test"),
    "not a dictionary": ({"header.json": b"[1]"}, ""),
    "NaN": ({"header.json": b'{"kind": "test", "a": NaN}'}, "JSON compliant"),
    "infinity": ({"header.json": b'{"kind": "test", "a": 1e999}'}, "JSON compliant"),
    "nested": ({"header.json": b"[" * 100_000}, "recursion"),
    "many digits": ({"header.json": b'{"kind": "test", "a": ' + b"9" * 9999 + b"}"}, "digits"),
    "larger than it is": ({"x.npy": npy(shape=(2**50,))}, ""),
    "overflow": ({"x.npy": npy(shape=(2**62, 2**62))}, ""),
    "negative": ({"x.npy": npy(shape=(-2, -1))}, ""),
    "objects": ({"x.npy": npy(descr="|O")}, "Object arrays cannot be loaded"),
    "no array": ({"x.npy": b"x"}, "not an array"),
}


def seal(path, members, compression=zipfile.ZIP_STORED):
    """Write a record with a correct checksum and any contents."""
    data = io.BytesIO(members if isinstance(members, bytes) else b"")
    if isinstance(members, dict):
        with zipfile.ZipFile(data, "w", compression) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    path.write_bytes(data.getvalue() + hashlib.sha256(data.getvalue()).hexdigest().encode())


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_contents_with_a_correct_checksum_are_refused(tmp_path, name):
    members, message = HOSTILE[name]
    if isinstance(members, dict) and name != "no header":
        members = {"header.json": b'{"kind": "test"}', **members}
    seal(tmp_path / "record", members)
    with pytest.raises(DamageError, match=rf"record has a correct checksum and invalid contents .*{message}"):
        read_record(tmp_path / "record", "test")


def test_what_takes_more_memory_than_the_file_is_refused(tmp_path):
    seal(tmp_path / "record", {"header.json": b'{"kind": "test"}', "x.npy": bytes(10**6)}, zipfile.ZIP_DEFLATED)
    with pytest.raises(DamageError, match="compressed"):
        read_record(tmp_path / "record", "test")
    seal(tmp_path / "record", {"header.json": b'{"kind": "test"}', "x.npy": npy(np.zeros(10**4))})
    data = (tmp_path / "record").read_bytes()[:-64]
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        start, end = archive.start_dir, data.rfind(b"PK\5\6")
    entry = data[data.rfind(b"PK\1\2") : end]
    count = (int.from_bytes(data[end + 10 : end + 12], "little") + 9).to_bytes(2, "little")
    size = (end - start + 9 * len(entry)).to_bytes(4, "little")
    repeated = data[:end] + entry * 9 + data[end : end + 8] + count * 2 + size + data[end + 16 :]
    with zipfile.ZipFile(io.BytesIO(repeated)) as archive:
        assert len(archive.infolist()) == 11
    seal(tmp_path / "record", repeated)
    with pytest.raises(DamageError, match="claims to be larger than it is"):
        read_record(tmp_path / "record", "test")


def test_corrupted_and_missing_records_are_named(tmp_path):
    path = tmp_path / "record"
    with pytest.raises(DamageError, match="record is missing"):
        read_record(path, "test")
    write_record(path, {"kind": "test"}, ARRAYS)
    whole = path.read_bytes()
    for broken in (whole[:-1], whole[:50], b"", bytes([whole[0] ^ 1]) + whole[1:], whole[:-1] + b"g"):
        path.write_bytes(broken)
        with pytest.raises(DamageError, match="the checksum of record is wrong"):
            read_record(path, "test")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DamageError, match="record is not a file"):
        read_record(path, "test")
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        read_record(path, "test")
