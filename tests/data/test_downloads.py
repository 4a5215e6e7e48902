"""Downloads from a server on this machine, in place of the official ones."""

import gc
import gzip
import hashlib
import http.server
import io
import tarfile
import threading
import warnings

import numpy as np
import pytest

from widebnn.data import download, images, load_dataset
from widebnn.data.images import CIFAR10_FOLDER, MNIST_FILES, OFFICIAL, RECORD
from widebnn.errors import WidebnnError

NAMES = OFFICIAL
ARCHIVE = "cifar-10-binary.tar.gz"


@pytest.fixture
def server(monkeypatch):
    """What is served by name, and the names asked so far."""
    served, asked = {}, []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path[1:]
            asked.append(name)
            self.send_response(200 if name in served else 404)
            self.send_header("Content-Length", str(len(served.get(name, b""))))
            self.end_headers()
            self.wfile.write(served.get(name, b""))

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, args=[0.01], daemon=True).start()
        address = f"http://127.0.0.1:{running.server_port}/"
        monkeypatch.setattr(images, "CIFAR10_URL", f"{address}{ARCHIVE}")
        monkeypatch.setattr(images, "MNIST_URL", address)
        monkeypatch.setattr(images, "PER_FILE", 3)
        yield served, asked
        running.shutdown()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # pooch leaves refused responses to the garbage collector
        gc.collect()


@pytest.fixture
def publish(server, monkeypatch):
    """Serves a file as the known one."""

    def publish(name, content):
        server[0][name] = content
        monkeypatch.setitem(images.SHA256, name, hashlib.sha256(content).hexdigest())

    return publish


@pytest.fixture
def archive(publish):
    content = {name: bytes([i, *bytes(RECORD - 1)]) * 3 for i, name in enumerate([*NAMES, "readme.html", "../evil"])}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, data in content.items():
            entry = tarfile.TarInfo(f"{CIFAR10_FOLDER}/{name}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    publish(ARCHIVE, packed.getvalue())
    return content


@pytest.fixture
def mnist(publish):
    header = bytes([0, 0, 8])
    pictures = header + b"\3\0\0\0\2\0\0\0\x1c\0\0\0\x1c" + bytes(range(49)) * 32
    labels = header + b"\1\0\0\0\2\7\1"
    for name, content in zip(MNIST_FILES, (pictures, labels) * 2, strict=True):
        publish(f"{name}.gz", gzip.compress(content))


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_the_official_addresses_are_https_with_known_checksums():
    assert images.CIFAR10_URL.startswith("https://") and images.MNIST_URL.startswith("https://")
    assert set(images.SHA256) == {images.CIFAR10_URL.rpartition("/")[2], *(f"{name}.gz" for name in MNIST_FILES)}
    assert all(len(bytes.fromhex(checksum)) == 32 for checksum in images.SHA256.values())


def test_cifar10_is_fetched_once_and_can_be_loaded(archive, server, tmp_path):
    folder = tmp_path / "new" / "data"
    assert download("cifar10", str(folder)) == folder
    assert files(folder) == sorted([CIFAR10_FOLDER, *(f"{CIFAR10_FOLDER}/{name}" for name in NAMES)])
    for name in NAMES:
        assert (folder / CIFAR10_FOLDER / name).read_bytes() == archive[name]
    assert len(load_dataset("cifar10", data_dir=folder).x_train) == 15
    download("cifar10", folder)
    assert server[1] == [ARCHIVE]


def test_cifar10_is_completed_from_what_is_there(archive, server, tmp_path):
    """Also from the archive that was left when it was interrupted while unpacking."""
    download("cifar10", tmp_path)
    damaged = tmp_path / CIFAR10_FOLDER / "data_batch_1.bin"
    (tmp_path / CIFAR10_FOLDER / "test_batch.bin").unlink()
    damaged.write_bytes(b"half")
    download("cifar10", tmp_path)
    assert len(load_dataset("cifar10", data_dir=tmp_path).x_test) == 3 and len(server[1]) == 2
    damaged.write_bytes(b"half")
    (tmp_path / ARCHIVE).write_bytes(server[0][ARCHIVE])
    download("cifar10", tmp_path)
    assert damaged.read_bytes() == archive["data_batch_1.bin"]
    assert len(server[1]) == 2 and not (tmp_path / ARCHIVE).exists()


def test_mnist_is_fetched_once_and_can_be_loaded(mnist, server, tmp_path):
    assert download("mnist", tmp_path) == tmp_path
    assert files(tmp_path) == sorted(f"{name}.gz" for name in MNIST_FILES)
    np.testing.assert_array_equal(load_dataset("mnist", data_dir=tmp_path).labels_train, [7, 1])
    download("mnist", tmp_path)
    assert len(server[1]) == 4
    (tmp_path / f"{MNIST_FILES[1]}.gz").write_bytes(b"corrupted")
    (tmp_path / f"{MNIST_FILES[0]}.gz").unlink()
    (tmp_path / MNIST_FILES[0]).touch()  # unpacked by hand, not looked at
    download("mnist", tmp_path)
    assert server[1][4:] == [f"{MNIST_FILES[1]}.gz"]


def test_what_is_not_the_known_file_is_deleted(archive, mnist, server, tmp_path):
    server[0][ARCHIVE] += b"x"
    server[0][f"{MNIST_FILES[0]}.gz"] = b"something else"
    with pytest.raises(WidebnnError, match=r"cifar-10-binary.tar.gz cannot be fetched \(SHA256.*; try again, .*unpack"):
        download("cifar10", tmp_path)
    with pytest.raises(WidebnnError, match=r"cannot be fetched \(SHA256 hash of downloaded file .* known hash"):
        download("mnist", tmp_path)
    assert files(tmp_path) == []


def test_without_network_one_sentence_says_what_to_put_where(server, tmp_path, monkeypatch):
    monkeypatch.setattr(images, "CIFAR10_URL", f"http://127.0.0.1:9/{ARCHIVE}")
    with pytest.raises(WidebnnError) as info:
        download("cifar10", tmp_path)
    assert f"{images.CIFAR10_URL} cannot be fetched" in str(info.value)
    assert f"or unpack it into {tmp_path}." in str(info.value)
    with pytest.raises(WidebnnError, match="404") as info:
        download("mnist", tmp_path)
    assert f"or put it into {tmp_path}." in str(info.value)
    assert "\n" not in str(info.value) and files(tmp_path) == []


def test_bad_arguments_are_refused(tmp_path):
    with pytest.raises(WidebnnError, match=r"name must be one of cifar10, mnist; got 'digits'"):
        download("digits", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(WidebnnError, match=r"cannot be written \(.*\); choose another folder"):
        download("mnist", tmp_path / "file")
