"""Downloads, with the network replaced at the level of https connections."""

import email.message
import gzip
import hashlib
import io
import os
import tarfile
import urllib.error
import urllib.request
import urllib.response

import numpy as np
import pytest

from hostile_archives import ENTRIES as HOSTILE
from hostile_archives import ONE, entry, good_entries, pack, tars
from widebnn.data import download, downloads, load_dataset
from widebnn.data.cifar10 import BINARY
from widebnn.data.mnist import FILES
from widebnn.errors import WidebnnError

NAMES = [*BINARY.train, *BINARY.test]


@pytest.fixture(autouse=True)
def internet(monkeypatch):
    """What each address answers (bytes, an address to go to instead, or an error) and the addresses asked so far."""
    answers, asked = {}, []

    def answer(_, request):
        asked.append(request.full_url)
        found = answers.get(request.full_url, urllib.error.URLError("no network"))
        if isinstance(found, Exception):
            raise found
        headers = email.message.Message()
        if isinstance(found, str):
            headers["Location"] = found
        content = found if isinstance(found, bytes) else b""
        response = urllib.response.addinfourl(
            io.BytesIO(content), headers, request.full_url, 302 if isinstance(found, str) else 200
        )
        response.msg = ""
        return response

    monkeypatch.setattr(urllib.request.HTTPSHandler, "https_open", answer)
    monkeypatch.setattr(urllib.request.HTTPHandler, "http_open", lambda *_: pytest.fail("http was used"))
    return answers, asked


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def archive(internet, monkeypatch, small):
    """Entries of a good archive by file name, and a function that puts an archive on the network as the right one."""
    entries = good_entries()

    def publish(*entries):
        packed = pack(*entries)
        internet[0][downloads.CIFAR10_URL] = packed
        monkeypatch.setattr(downloads, "CIFAR10_MD5", hashlib.md5(packed).hexdigest())

    return entries, publish


@pytest.fixture
def mnist(internet, monkeypatch):
    header = bytes([0, 0, 8])
    images = header + b"\3\0\0\0\2\0\0\0\x1c\0\0\0\x1c" + bytes(range(49)) * 32
    labels = header + b"\1\0\0\0\2\7\1"
    for name, content in zip(FILES, (images, labels) * 2, strict=True):
        packed = gzip.compress(content)
        internet[0][f"{downloads.MNIST_URL}{name}.gz"] = packed
        monkeypatch.setitem(downloads.MNIST_MD5, name, hashlib.md5(packed).hexdigest())


def test_cifar10_is_fetched_once_and_can_be_loaded(archive, internet, tmp_path):
    entries, publish = archive
    extra = entry(f"{BINARY.folder}/readme.html", b"hello"), entry(BINARY.folder, type=tarfile.DIRTYPE)
    publish(*extra, *entries.values())
    folder = tmp_path / "new" / "data"
    assert download("cifar10", str(folder)) == folder
    assert files(folder) == sorted([BINARY.folder, *(f"{BINARY.folder}/{name}" for name in NAMES)])
    for name, (_, content) in entries.items():
        assert (folder / BINARY.folder / name).read_bytes() == content
    assert len(load_dataset("cifar10", data_dir=folder).x_train) == 15
    download("cifar10", folder)
    assert internet[1] == [downloads.CIFAR10_URL]


def test_cifar10_is_completed(archive, tmp_path):
    entries, publish = archive
    publish(*entries.values())
    download("cifar10", tmp_path)
    (tmp_path / BINARY.folder / "test_batch.bin").unlink()
    (tmp_path / BINARY.folder / "data_batch_1.bin").write_bytes(b"half")
    download("cifar10", tmp_path)
    load_dataset("cifar10", data_dir=tmp_path)


def test_mnist_is_fetched_once_and_can_be_loaded(mnist, internet, tmp_path):
    assert download("mnist", tmp_path) == tmp_path
    assert files(tmp_path) == sorted(f"{name}.gz" for name in FILES)
    np.testing.assert_array_equal(load_dataset("mnist", data_dir=tmp_path).labels_train, [7, 1])
    download("mnist", tmp_path)
    assert len(internet[1]) == 4
    (tmp_path / f"{FILES[1]}.gz").write_bytes(b"damaged")
    (tmp_path / f"{FILES[0]}.gz").unlink()
    (tmp_path / FILES[0]).write_bytes(b"my own")
    download("mnist", tmp_path)
    assert internet[1][4:] == [f"{downloads.MNIST_URL}{FILES[1]}.gz"]


def test_addresses_and_checksums_are_complete():
    addresses = [downloads.CIFAR10_URL, downloads.MNIST_URL]
    assert all(address.startswith("https://") for address in addresses)
    assert all(len(bytes.fromhex(md5)) == 16 for md5 in (downloads.CIFAR10_MD5, *downloads.MNIST_MD5.values()))


@pytest.mark.parametrize("content", [b"", b"something else", b"x" * 3_000_000])
def test_a_wrong_checksum_leaves_nothing(internet, tmp_path, monkeypatch, content):
    monkeypatch.setattr(downloads, "MAX_BYTES", 1_000_000)
    monkeypatch.setattr(tarfile, "open", lambda *_: pytest.fail("unpacked before it was checked"))
    internet[0][downloads.CIFAR10_URL] = content
    message = r"must have the MD5 c32a1d4ab5d03f1284b67883e8d87530; what came has \w{32} .* and was deleted"
    with pytest.raises(WidebnnError, match=message) as error:
        download("cifar10", tmp_path)
    assert f"({min(len(content), 16 * 65536)} bytes)" in str(error.value)
    assert files(tmp_path) == []


def test_an_mnist_file_with_a_wrong_checksum_is_not_kept(mnist, internet, tmp_path):
    internet[0][f"{downloads.MNIST_URL}{FILES[1]}.gz"] += b"x"
    with pytest.raises(WidebnnError, match=rf"{FILES[1]}\.gz must have the MD5"):
        download("mnist", tmp_path)
    assert files(tmp_path) == [f"{FILES[0]}.gz"]


@pytest.mark.parametrize("error", [urllib.error.URLError("no network"), TimeoutError("timed out"), ConnectionError()])
def test_without_network_one_sentence_says_what_to_put_where(internet, tmp_path, error):
    internet[0][downloads.CIFAR10_URL] = error
    with pytest.raises(WidebnnError) as info:
        download("cifar10", tmp_path)
    assert f"; unpack {downloads.CIFAR10_URL} in {tmp_path}, which makes {tmp_path / BINARY.folder}." in str(info.value)
    with pytest.raises(WidebnnError) as info:
        download("mnist", tmp_path)
    assert f"; put {downloads.MNIST_URL}{FILES[0]}.gz into {tmp_path}." in str(info.value)
    assert "\n" not in str(info.value) and files(tmp_path) == []


@pytest.mark.parametrize("address", ["http://example.org/x", "ftp://example.org/x", "file:///etc/passwd"])
def test_redirects_away_from_https_are_refused(internet, tmp_path, address):
    internet[0][downloads.CIFAR10_URL] = address
    with pytest.raises(WidebnnError, match=r"cannot be fetched \(.*(without https|not allowed).*\); unpack"):
        download("cifar10", tmp_path)
    assert internet[1] == [downloads.CIFAR10_URL] and files(tmp_path) == []


def test_redirects_to_https_are_followed(archive, internet, tmp_path):
    entries, publish = archive
    publish(*entries.values())
    answers, _ = internet
    answers["https://example.org/x"] = answers[downloads.CIFAR10_URL]
    answers[downloads.CIFAR10_URL] = "https://example.org/x"
    download("cifar10", tmp_path)
    load_dataset("cifar10", data_dir=tmp_path)


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archives_write_nothing(archive, tmp_path, case):
    entries, publish = archive
    hostile, message = HOSTILE[case]
    del entries["data_batch_1.bin"]
    publish(hostile, *entries.values())
    with pytest.raises(WidebnnError, match=message):
        download("cifar10", tmp_path / "data")
    assert files(tmp_path) == ["data"]


WHOLE = {name: archive for name, archive in tars().items() if name not in HOSTILE}


@pytest.mark.parametrize("case", WHOLE)
def test_archives_that_lie_are_refused(internet, monkeypatch, small, tmp_path, case):
    content = WHOLE[case]
    internet[0][downloads.CIFAR10_URL] = content
    monkeypatch.setattr(downloads, "CIFAR10_MD5", hashlib.md5(content).hexdigest())
    with pytest.raises(WidebnnError, match=r"cannot be unpacked|lacks data_batch|must be a file"):
        download("cifar10", tmp_path / "data")
    assert files(tmp_path) == ["data"]


def test_the_first_of_two_files_of_one_name_counts(archive, tmp_path):
    entries, publish = archive
    publish(*entries.values(), entry(ONE, b"again"), entry("../evil", b"x"), entry(f"{BINARY.folder}/evil", b"x"))
    download("cifar10", tmp_path / "data")
    assert (tmp_path / "data" / ONE).read_bytes() == entries["data_batch_1.bin"][1]
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize(
    "content",
    [b"no archive", gzip.compress(b"no archive"), gzip.compress(bytes(5000))[:-9]],
    ids=["text", "packed text", "cut short"],
)
def test_what_is_no_archive_is_refused(internet, tmp_path, monkeypatch, content):
    internet[0][downloads.CIFAR10_URL] = content
    monkeypatch.setattr(downloads, "CIFAR10_MD5", hashlib.md5(content).hexdigest())
    with pytest.raises(WidebnnError, match=r"cifar10\.tar\.gz (cannot be unpacked|lacks data_batch_1\.bin)"):
        download("cifar10", tmp_path)
    assert files(tmp_path) == []


def test_bad_arguments_are_refused(tmp_path):
    with pytest.raises(WidebnnError, match=r"name must be one of cifar10, mnist; got 'digits'"):
        download("digits", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(WidebnnError, match=r"data_dir must be a .*folder.* is not \(.*\).* choose another"):
        download("mnist", tmp_path / "file")
    if os.geteuid():
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(WidebnnError, match=r"data_dir must be a .*folder"):
            download("mnist", tmp_path / "locked")
