"""Downloads from a server of the test's own: whole, with progress, or refused in words with nothing left behind."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle  # noqa: TID251 - the files of CIFAR are pickles
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from precgui import config
from precgui.engine import tasks
from precgui.engine.errors import EngineError
from precgui.engine.tasks import download
from precgui.engine.train import train
from precgui.events import Event, Incident, RunEnded
from tests.engine.tasks.test_images import write_idx


class Server:
    """Serves `files` by name; `cut` of them ends each answer before its end."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.cut = 0
        files, asked, outer = self.files, self.asked, self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rpartition("/")[2]
                asked.append(name)
                if name not in files or "/gone/" in self.path:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(files[name])))
                self.end_headers()
                self.wfile.write(files[name][: len(files[name]) - outer.cut])

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made = Server()
    yield made
    made.close()


@pytest.fixture
def mnist(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """MNIST of 20 and 10 images on the server, whose first mirror is gone."""
    draw = np.random.default_rng(0)
    resources = []
    for name, count in (("train", 20), ("t10k", 10)):
        for part, values in (
            ("images-idx3", draw.integers(0, 256, (count, 28, 28))),
            ("labels-idx1", draw.integers(0, 10, count)),
        ):
            file = f"{name}-{part}-ubyte"
            write_idx(tmp_path / file, values)
            server.files[f"{file}.gz"] = gzip.compress((tmp_path / file).read_bytes())
            resources.append((f"{file}.gz", hashlib.md5(server.files[f"{file}.gz"]).hexdigest()))
    monkeypatch.setattr("torchvision.datasets.MNIST.resources", resources)
    monkeypatch.setattr("torchvision.datasets.MNIST.mirrors", [f"{server.address}gone/", server.address])
    return server


def load(folder: Path, name: str = "mnist", *more: str) -> config.RunConfig:
    return config.load("digits-quick", ["device=cpu", f"task={name}", f"data.path={folder}", *more])


def left_over(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


def test_that_a_data_set_is_fetched_once_with_progress(
    mnist: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_CHUNK_BYTES", 4096)
    monkeypatch.setattr(download, "_PROGRESS_INTERVAL_S", 0.0)
    told: list[str] = []
    folder = tmp_path / "data"
    task = tasks.make(load(folder), told.append)
    assert task.facts["training_samples"] == 20
    assert told[0] == "MNIST: fetching train-images-idx3-ubyte.gz, 0.0 of 0.0 MB"
    assert told[-1].endswith("done")
    assert len(told) > 8
    assert sorted(set(mnist.asked)) == sorted(mnist.files)
    assert len(mnist.asked) == 8, "each once where it is gone, once where it is"
    assert left_over(folder) == []
    mnist.asked.clear()
    again = tasks.make(load(folder), told.append)
    images, labels = next(iter(again.validation_batches()))
    assert (list(images.shape), len(labels)) == ([10, 1, 28, 28], 10)
    assert mnist.asked == []


def test_that_cifar_is_fetched_and_unpacked(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def batch(count: int) -> bytes:
        pixels = np.arange(count * 3072, dtype=np.uint8).reshape(count, 3072)
        return pickle.dumps({"data": pixels, "labels": [n % 10 for n in range(count)]})

    contents = {"data_batch_1": batch(6), "test_batch": batch(4), "batches.meta": pickle.dumps({"label_names": ["a"]})}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    server.files["cifar.tar.gz"] = buffer.getvalue()
    sums = {name: hashlib.md5(content).hexdigest() for name, content in contents.items()}
    for name, value in {
        "url": f"{server.address}cifar.tar.gz", "filename": "cifar.tar.gz",
        "tgz_md5": hashlib.md5(buffer.getvalue()).hexdigest(),
        "train_list": [["data_batch_1", sums["data_batch_1"]]], "test_list": [["test_batch", sums["test_batch"]]],
        "meta": {"filename": "batches.meta", "key": "label_names", "md5": sums["batches.meta"]},
    }.items():  # fmt: skip
        monkeypatch.setattr(f"torchvision.datasets.CIFAR10.{name}", value)
    for _ in range(2):
        task = tasks.make(load(tmp_path / "data", "cifar10", "data.batch_size=8"))
        images, labels = next(iter(task.train_batches()))
        assert (list(images.shape), sorted(labels.tolist())) == ([6, 3, 32, 32], list(range(6)))
        assert images.dtype == torch.float32
    assert server.asked == ["cifar.tar.gz"]


def test_that_a_wrong_checksum_is_told_and_the_file_thrown_away(mnist: Server, tmp_path: Path) -> None:
    name = next(iter(mnist.files))
    mnist.files[name] += b"x"
    folder = tmp_path / "data"
    with pytest.raises(EngineError, match=rf"MNIST is not in .* cannot be fetched \(.*{name} gave another file"):
        tasks.make(load(folder))
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_that_a_broken_connection_is_told_and_leaves_nothing(mnist: Server, tmp_path: Path) -> None:
    mnist.cut = 10
    with pytest.raises(EngineError, match=r"MNIST is not in .*cannot be fetched .*; connect to the network, or copy"):
        tasks.make(load(tmp_path / "data"))
    assert left_over(tmp_path) == []


def test_that_a_full_disk_is_not_called_a_lost_connection(
    mnist: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> str:
        raise OSError(28, "No space left on device", "a file")

    monkeypatch.setattr(download, "_copied", full)
    with pytest.raises(EngineError, match=r"MNIST cannot be kept in .* \(No space left on device\); choose another"):
        tasks.make(load(tmp_path / "data"))


def test_that_a_run_tells_of_the_download_and_can_be_stopped_in_it(mnist: Server, tmp_path: Path) -> None:
    events: list[Event] = []
    folder = tmp_path / "data"
    train(load(folder), events.append, lambda: len(events) > 1)
    assert [type(event) for event in events] == [Incident, Incident, RunEnded]
    assert isinstance(events[0], Incident)
    assert (events[0].kind, events[0].step) == ("note", 0)
    assert "MNIST: fetching train-images" in events[0].message
    assert isinstance(events[-1], RunEnded)
    assert (events[-1].status, events[-1].message) == ("stopped", "stopped before the first step")
    assert left_over(folder) == []
