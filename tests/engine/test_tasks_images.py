"""Data sets of images on disk: read as they are, and missing in words."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from PIL import Image

from precgui import config
from precgui.engine import tasks
from precgui.engine.errors import EngineError
from precgui.engine.tasks.images import digits
from precgui.events import Evaluated
from tests.engine.conftest import Record


def load(*settings: str) -> config.RunConfig:
    return config.load("digits-quick", ["device=cpu", *settings])


def write_idx(path: Path, values: Any) -> None:
    """The format of the MNIST files: two zeros, type 8 (bytes), number of dimensions, their sizes, the bytes."""
    array = np.asarray(values, np.uint8)
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape)
    path.write_bytes(head + array.tobytes())


@pytest.fixture(scope="module")
def enlarged() -> tuple[torch.Tensor, torch.Tensor]:
    """The bundled digits as bytes [1797, 28, 28]."""
    images, labels = digits()
    return torch.nn.functional.interpolate(images, size=28)[:, 0].mul(255).to(torch.uint8), labels


@pytest.fixture
def mnist(tmp_path: Path, enlarged: tuple[torch.Tensor, torch.Tensor]) -> Path:
    """A folder as torchvision's MNIST has it after a download."""
    images, labels = enlarged
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name, part in (("train", slice(0, 1200)), ("t10k", slice(1200, None))):
        write_idx(folder / f"{name}-images-idx3-ubyte", images[part])
        write_idx(folder / f"{name}-labels-idx1-ubyte", labels[part])
    return tmp_path


@pytest.fixture
def folders(tmp_path: Path, enlarged: tuple[torch.Tensor, torch.Tensor]) -> Path:
    """Zeros and ones as PNG files, a folder for each."""
    for image, label in zip(*enlarged, strict=True):
        if int(label) < 2:
            place = tmp_path / ("nought", "one")[int(label)]
            place.mkdir(exist_ok=True)
            Image.fromarray(image.numpy()).save(place / f"{len(list(place.iterdir()))}.png")
    return tmp_path


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refused(*_: object, **__: object) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", refused)
    yield


def test_that_mnist_on_disk_is_learned(record: Record, mnist: Path) -> None:
    events = record(
        "record.tensors=false",
        "task=mnist",
        f"data.path={mnist}",
        "train.epochs=5",
        "data.download=false",
        "model.name=mlp",
    )
    assert [event for event in events if isinstance(event, Evaluated)][-1].accuracy > 0.85


def test_that_images_come_scaled_with_the_labels_of_their_files(
    mnist: Path, enlarged: tuple[torch.Tensor, torch.Tensor]
) -> None:
    images, labels = next(iter(tasks.make(load("task=mnist", f"data.path={mnist}")).validation_batches()))
    assert images.shape[1:] == (1, 28, 28)
    assert float(images.min()) == -1.0
    assert float(images.max()) == 1.0
    assert torch.equal(labels, enlarged[1][1200:1712])
    torch.testing.assert_close(images[:, 0], enlarged[0][1200:1712].float() / 127.5 - 1)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "cifar100"])
@pytest.mark.usefixtures("offline")
def test_that_offline_the_folder_and_the_cure_are_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        EngineError, match=r"is not in .*data and cannot be fetched \(.*\); connect to the network, or copy"
    ):
        tasks.make(load(f"task={name}", f"data.path={tmp_path / 'data'}"))
    with pytest.raises(EngineError, match=r"cannot be fetched .*; set data\.download = true"):
        tasks.make(load(f"task={name}", f"data.path={tmp_path / 'data'}", "data.download=false"))


def test_that_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match=r"MNIST is not in .*file/data"):
        tasks.make(load("task=mnist", f"data.path={tmp_path / 'file' / 'data'}"))


def test_that_a_folder_of_images_is_learned(record: Record, folders: Path) -> None:
    events = record(
        "record.tensors=false", "task=image-folder", f"data.path={folders}", "data.pixels=16", "model.name=cnn",
        "data.batch_size=16", "train.epochs=1",
    )  # fmt: skip
    assert [event for event in events if isinstance(event, Evaluated)][-1].accuracy > 0.9


def test_that_folders_for_training_and_validation_are_taken_as_they_are(folders: Path, tmp_path: Path) -> None:
    root = tmp_path / "parted"
    for part in ("train", "val"):
        (root / part).mkdir(parents=True)
    for name in ("nought", "one"):
        (root / "val" / name).mkdir()
        first = next((folders / name).iterdir())
        (root / "val" / name / "a.png").write_bytes(first.read_bytes())
        (folders / name).rename(root / "train" / name)
    task = tasks.make(load("task=image-folder", f"data.path={root}", "data.pixels=16"))
    assert task.facts["validation_samples"] == 2
    assert task.facts["class_names"] == ["nought", "one"]


@pytest.mark.parametrize(
    ("settings", "sentence"), [([], "needs data.path"), (["data.path={}"], "one folder of images")]
)
def test_that_a_folder_without_images_is_named(tmp_path: Path, settings: list[str], sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        tasks.make(load("task=image-folder", *(setting.format(tmp_path) for setting in settings)))
