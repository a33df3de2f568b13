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
from precgui.config.names import IMAGE_TASKS
from precgui.engine import tasks
from precgui.engine.errors import EngineError
from precgui.engine.tasks import TASKS, download
from precgui.engine.tasks.images import augmented, digits
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

    monkeypatch.setattr(download, "urlopen", refused)
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
    with pytest.raises(EngineError, match=r"is not in .*, or not whole; set data\.download = true, or copy"):
        tasks.make(load(f"task={name}", f"data.path={tmp_path / 'data'}", "data.download=false"))


def test_that_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match=r"MNIST cannot be kept in .*file/data \(Not a directory\); choose another"):
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


# Augmentation


@pytest.mark.parametrize(("pixels", "border"), [(8, 1), (32, 4)])
def test_that_an_augmented_image_is_a_crop_of_the_padded_one(pixels: int, border: int) -> None:
    images = torch.rand(64, 3, pixels, pixels, generator=torch.Generator().manual_seed(0)) + 1
    changed = augmented(images, torch.Generator().manual_seed(1), mirror=True)
    assert changed.shape == images.shape
    padded = torch.nn.functional.pad(images, [border] * 4)
    seen = set()
    for image, got in zip(padded, changed, strict=True):
        crops = {
            (top, left, mirrored): (image.flip(2) if mirrored else image)[:, top : top + pixels, left : left + pixels]
            for top in range(2 * border + 1) for left in range(2 * border + 1) for mirrored in (False, True)
        }  # fmt: skip
        seen.add(next(place for place, crop in crops.items() if torch.equal(crop, got)))
    assert {mirrored for *_, mirrored in seen} == {False, True}
    assert {top for top, *_ in seen} == set(range(2 * border + 1))


def test_that_augmentation_is_off_unless_asked_for_and_spares_validation() -> None:
    plain, other = (tasks.make(load(*more)) for more in ((), ("data.augment=true",)))
    for a, b in zip(plain.validation_batches(), other.validation_batches(), strict=True):
        assert torch.equal(a[0], b[0])
    (images, labels), (changed, same) = (next(iter(task.train_batches())) for task in (plain, other))
    assert torch.equal(labels, same)
    assert not torch.equal(images, changed)
    ink, left = (each.sum((1, 2, 3)) for each in (images, changed))
    assert bool((left <= ink + 1e-3).all()), "what is moved out of the picture is lost, and nothing is added"


@pytest.mark.parametrize("workers", [0, 1])
def test_that_augmentation_repeats_with_its_seed_whoever_loads(workers: int) -> None:
    def epochs(*more: str) -> list[torch.Tensor]:
        task = tasks.make(load("data.augment=true", "data.batch_size=512", *more))
        return [images for _ in range(2) for images, _ in task.train_batches()]

    first, again = epochs(), epochs(f"data.workers={workers}")
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], epochs("seed=1")[0])
    assert not torch.equal(first[0], first[3]), "each epoch is another one"


def test_that_digits_are_not_mirrored_and_clothes_are() -> None:
    assert [TASKS[name].mirrored for name in IMAGE_TASKS] == [False, False, True, True, True, True]  # type: ignore[attr-defined]


# Images as people have them


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Every kind of picture that can be read: grey, palette, transparent, 16 bits, one pixel, a long strip, CMYK."""
    pictures = {
        "grey.png": Image.new("L", (20, 30), 128), "palette.png": Image.new("P", (9, 9)),
        "clear.png": Image.new("RGBA", (40, 20), (255, 0, 0, 0)), "deep.png": Image.new("I;16", (16, 16), 40000),
        "dot.bmp": Image.new("RGB", (1, 1), (1, 2, 3)), "strip.png": Image.new("RGB", (20000, 1)),
        "print.jpg": Image.new("CMYK", (16, 16)), "bit.png": Image.new("1", (8, 64), 1),
    }  # fmt: skip
    for n, (name, picture) in enumerate(pictures.items()):
        place = tmp_path / ("a", "b")[n % 2]
        place.mkdir(exist_ok=True)
        picture.save(place / name)
    return tmp_path


def test_that_pictures_of_all_kinds_become_squares_of_three_channels(odd: Path) -> None:
    task = tasks.make(load("task=image-folder", f"data.path={odd}", "data.pixels=16", "data.batch_size=8"))
    batches = [*task.train_batches(), *task.validation_batches()]
    images = torch.cat([images for images, _ in batches])
    assert images.shape == (8, 3, 16, 16)
    assert bool(images.isfinite().all())
    assert float(images.min()) >= -1
    assert float(images.max()) <= 1


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("text.png", b"not a picture", r"text\.png is no image; repair it or take it away$"),
        ("empty.jpg", b"", r"empty\.jpg is no image"),
        ("cut.png", None, r"cut\.png cannot be read \(.*\); repair it or take it away$"),
    ],
)
def test_that_a_broken_picture_is_named(
    odd: Path, name: str, content: bytes | None, sentence: str, workers: int
) -> None:
    if content is None:
        Image.effect_noise((64, 64), 50).save(odd / "a" / name)
        content = (odd / "a" / name).read_bytes()[:-1000]
    for n in range(20):  # some of them fall to the training set
        (odd / "a" / f"{n}-{name}").write_bytes(content)
    (odd / "a" / name).unlink(missing_ok=True)
    task = tasks.make(load("task=image-folder", f"data.path={odd}", f"data.workers={workers}"))
    with pytest.raises(EngineError, match=sentence):
        list(task.train_batches())


def test_that_a_single_class_is_refused(tmp_path: Path) -> None:
    (tmp_path / "only").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "only" / "a.png")
    with pytest.raises(EngineError, match="holds one class only, only; it must hold two at least"):
        tasks.make(load("task=image-folder", f"data.path={tmp_path}"))
