"""Detection: scenes are what they say they are, the metric is COCO's, and the network learns in any precision."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from precgui import config
from precgui.engine.models import Detector
from precgui.engine.tasks import detection
from precgui.engine.tasks.detection import average_precision, matches, together
from precgui.events import Evaluated, StepDone
from tests.engine.conftest import Record

Row = tuple[float, ...]


def load(*settings: str) -> config.RunConfig:
    return config.load("detection-quick", ["device=cpu", *settings])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handful of scenes instead of a thousand."""
    monkeypatch.setattr(detection, "_SCENES", (24, 8))


# Average precision


def problem() -> tuple[list[Row], list[Row]]:
    """Objects (image, class, box) and detections (the same and a score) from a generator of plain integers."""
    state = 12345

    def draw(below: int) -> int:
        nonlocal state
        state = (1103515245 * state + 12345) % 2**31
        return (state >> 8) % below

    objects: list[Row] = []
    found: list[Row] = []
    for image in range(40):
        for _ in range(1 + draw(4)):
            label = draw(5)
            x, y = draw(60), draw(60)
            width, height = 8 + draw(20), 8 + draw(20)
            objects.append((image, label, x, y, x + width, y + height))
            for _ in range(draw(3)):
                dx, dy = draw(9) - 4, draw(9) - 4
                told = label if draw(4) else draw(5)
                box = (x + dx, y + dy, x + dx + width, y + dy + height)
                found.append((image, told, *box, (1 + draw(997)) / 1000))
        for _ in range(draw(2)):
            x, y = draw(60), draw(60)
            found.append((image, draw(5), x, y, x + 10, y + 10, (1 + draw(997)) / 1000))
    return objects, found


def scored(objects: list[Row], found: list[Row], images: int) -> list[tuple[Tensor, Tensor]]:
    parts = []
    for image in range(images):
        true = torch.tensor([row[1:] for row in objects if row[0] == image]).view(-1, 5)
        told = torch.tensor([row[1:] for row in found if row[0] == image]).view(-1, 6)
        rows = matches(told[:, 1:5], told[:, 0].long(), told[:, 5], true[:, 1:], true[:, 0].long())
        parts.append((rows, torch.bincount(true[:, 0].long(), minlength=5)))
    return parts


def test_that_the_average_precision_is_that_of_pycocotools() -> None:
    objects, found = problem()
    assert (len(objects), len(found)) == (105, 136)
    parts = scored(objects, found, 40)
    # COCOeval of pycocotools 2.0 with iouThrs [0.5] on the same boxes: all classes, then each.
    assert together(parts) == pytest.approx(0.2924645546270072, abs=1e-12)
    rows = torch.cat([rows for rows, _ in parts])
    counts = torch.stack([count for _, count in parts]).sum(0)
    by_class = [average_precision(rows, counts * (torch.arange(5) == n)) for n in range(5)]
    assert by_class == pytest.approx(
        [0.37639085337105144, 0.13201320132013192, 0.283838089691322, 0.28233185387504245, 0.3877487748774881],
        abs=1e-12,
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([(0, 1, 0, 0, 10, 10, 0.9)], 1.0),
        ([], 0.0),
        ([(0, 2, 0, 0, 10, 10, 0.9)], 0.0),  # of another class
        ([(0, 1, 0, 0, 10, 4, 0.9)], 0.0),  # overlaps by 0.4
        ([(0, 1, 0, 0, 10, 5, 0.9)], 1.0),  # by one half exactly
        ([(0, 1, 50, 50, 60, 60, 0.9), (0, 1, 0, 0, 10, 10, 0.8)], 0.5),  # a false alarm first
        ([(0, 1, 0, 0, 10, 10, 0.9), (0, 1, 0, 0, 10, 10, 0.8)], 1.0),  # found twice: the second one comes too late
    ],
)
def test_that_hand_worked_cases_come_out(found: list[Row], expected: float) -> None:
    assert together(scored([(0, 1, 0, 0, 10, 10)], found, 1)) == pytest.approx(expected)


def test_that_without_objects_there_is_no_average_precision() -> None:
    assert math.isnan(together(scored([], [(0, 1, 0, 0, 10, 10, 0.9)], 1)))


# Scenes


def test_that_boxes_are_tight_around_digits_that_do_not_overlap() -> None:
    images, labels = torch.ones(10, 1, 8, 8), torch.arange(10)
    scene, objects = detection.scenes(images, labels, 30, 64, 4, seed=0)
    assert scene.shape == (30, 1, 64, 64)
    assert objects.shape == (30, 4, 5)
    for picture, listed in zip(scene[:, 0], objects, strict=True):
        present = listed[listed[:, 0] >= 0]
        assert 1 <= len(present) <= 4
        ink = torch.zeros(64, 64, dtype=torch.int)
        for left, top, right, bottom in present[:, 1:].int().tolist():
            ink[top:bottom, left:right] += 1
        assert torch.equal(ink, (picture > 0.9).int()), "all ink is in boxes, each pixel in one"


def test_that_the_same_seed_gives_the_same_scenes_and_another_one_does_not() -> None:
    images, labels = detection.digits()  # type: ignore[attr-defined]
    first, again, other = (detection.scenes(images, labels, 3, 64, 4, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


# The network


@pytest.mark.parametrize("size", ["small", "medium", "large"])
def test_that_every_size_finds_places_losses_and_boxes(size: str) -> None:
    pixels = detection._PIXELS[size]
    model = Detector(size, pixels, 10).eval()
    with torch.no_grad():
        outputs = model(torch.rand(1, 1, pixels, pixels))
    places = sum((pixels // stride) ** 2 for stride in model.strides)
    assert {name: list(value.shape) for name, value in outputs.items()} == {
        "cls_logits": [1, places, 10], "bbox_regression": [1, places, 4], "bbox_ctrness": [1, places, 1],
    }  # fmt: skip
    target = {"labels": torch.tensor([3]), "boxes": torch.tensor([[4.0, 8.0, 30.0, 40.0]])}
    losses = model.losses(outputs, [target])
    assert losses.keys() == {"classification", "bbox_regression", "bbox_ctrness"}
    assert all(math.isfinite(loss) for loss in losses.values())
    outputs["cls_logits"][0, :, 7] += 9
    found = model.detections(outputs)[0]
    assert set(found["labels"].tolist()) == {7}


def test_that_outputs_read_as_torchvision_reads_them() -> None:
    torch.manual_seed(0)
    model = Detector("small", 64, 10).eval()
    image = torch.rand(1, 1, 64, 64)
    network = model.network
    network.transform.image_mean, network.transform.image_std = [0.0], [1.0]
    network.transform.min_size, network.transform.max_size = (64,), 64
    network.score_thresh = 0.0
    with torch.no_grad():
        ours, theirs = model.detections(model(image))[0], network([image[0]])[0]
    for name in ("boxes", "labels", "scores"):
        torch.testing.assert_close(ours[name], theirs[name])


@pytest.mark.usefixtures("small")
def test_that_digits_are_found(record: Record) -> None:
    """A few steps on a few scenes: the loss falls, and something is found that was not before."""
    events = record(
        "record.tensors=false", "task=detection", "data.batch_size=8", "train.epochs=8", "optimizer.name=adamw",
        "optimizer.lr=2e-3", "optimizer.schedule=constant",
    )  # fmt: skip
    losses = [event.loss for event in events if isinstance(event, StepDone)]
    assert losses[-1] < 0.8 * losses[0]
    found = [event.accuracy for event in events if isinstance(event, Evaluated)]
    assert max(found) > found[0]
    assert 0 <= min(found) <= max(found) <= 1


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("precision", ["fp64", "bf16-amp", "fp16-amp", "fp16-pure", "mxfp8", "int8-qat"])
def test_that_detection_goes_with_any_precision(record: Record, precision: str) -> None:
    events = record(
        "record.tensors=false", "task=detection", "data.batch_size=4", "train.max_steps=2", "train.epochs=1",
        f"precision={precision}", "optimizer.lr=1e-3",
    )  # fmt: skip
    assert all(math.isfinite(event.loss) for event in events if isinstance(event, StepDone))
    assert len([event for event in events if isinstance(event, Evaluated)]) == 1
