"""Detection in scenes made from the bundled digits: which digits are there, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from precgui.engine.models.detection import Detector
from precgui.engine.tasks.base import DatasetTask, InMemory, split
from precgui.engine.tasks.images import VALIDATION_SHARE, digits
from precgui.events import Metric
from precgui.sentences import L_

if TYPE_CHECKING:
    from precgui.config import RunConfig

OVERLAP = 0.5  # intersection over union from which a box counts as found
_RECALLS = 101  # points at which precision is read, from 0 to 1


def matches(boxes: Tensor, labels: Tensor, scores: Tensor, true_boxes: Tensor, true_labels: Tensor) -> Tensor:
    """Rows [n, 3] of class, score and 1 where the detection found an object of its class, of one image.

    The best detections choose first; each takes the object that it covers best of those that are left.
    """
    from torchvision.ops import box_iou

    order = scores.argsort(descending=True, stable=True)
    overlaps = box_iou(boxes[order], true_boxes.to(boxes)) * (labels[order, None] == true_labels)
    result = torch.zeros(len(order), dtype=torch.float64)
    free = overlaps.cpu().double()
    for n, row in enumerate(free):
        if len(row) and float(row.max()) >= OVERLAP:
            result[n] = 1.0
            free[:, int(row.argmax())] = 0.0
    return torch.stack((labels[order].cpu().double(), scores[order].cpu().double(), result), 1)


def average_precision(rows: Tensor, objects: Tensor) -> float:
    """The mean over the classes that have objects; NaN without any.

    `rows` [n, 3] are those of `matches` of all images, `objects` [classes] how many there are of each class.
    """
    classes = [number for number, count in enumerate(objects.tolist()) if count]
    areas = [_area(rows[rows[:, 0] == number], int(objects[number])) for number in classes]
    return sum(areas) / len(areas) if areas else float("nan")


def _area(rows: Tensor, objects: int) -> float:
    """The area under the curve of precision over recall, each point raised to the highest one with more recall."""
    if not len(rows):
        return 0.0
    result = rows[rows[:, 1].argsort(descending=True, stable=True), 2].cumsum(0)
    precision = result / torch.arange(1, len(result) + 1, dtype=torch.float64)
    best = precision.flip(0).cummax(0).values.flip(0)
    requested = torch.linspace(0, 1, _RECALLS, dtype=torch.float64)
    places = torch.searchsorted(result / objects, requested)
    reached = places < len(best)
    return float(best[places[reached]].sum() / _RECALLS)


def together(parts: Sequence[tuple[Tensor, Tensor]]) -> float:
    """The average precision of batches: (rows, objects) each."""
    rows, objects = zip(*parts, strict=True)
    return average_precision(torch.cat(rows), torch.stack(objects).sum(0))


CLASSES = 10
_SCENES = (1024, 256)  # to train and to validate
_PIXELS = {"small": 64, "medium": 128, "large": 256}
_MOST_DIGITS = {"small": 4, "medium": 6, "large": 10}
_SMALLEST, _LARGEST = 0.2, 0.5  # edge of a digit, in edges of the scene
_ABSENT = -1.0
_INK = 0.4  # brighter than the noise of the ground
_TRIES = 20


def scenes(images: Tensor, labels: Tensor, count: int, pixels: int, most: int, seed: int) -> tuple[Tensor, Tensor]:
    """`count` scenes [count, 1, pixels, pixels] of 1 to `most` digits of many sizes, and what is in them.

    The second tensor is [count, most, 5]: the digit, or -1 where there are fewer, and its box as left, top, right and
    bottom in pixels, tight around the ink. Digits do not overlap.
    """
    draw = torch.Generator().manual_seed(seed)
    scene = torch.rand(count, 1, pixels, pixels, generator=draw) * 0.3
    objects = torch.full((count, most, 5), _ABSENT)
    requested = torch.randint(1, most + 1, (count,), generator=draw).tolist()
    for n in range(count):
        taken = torch.zeros(pixels, pixels, dtype=torch.bool)
        for place in range(requested[n]):
            spot = _free_spot(taken, pixels, draw)
            if spot is None:
                break
            (top, left), edge = spot
            which = int(torch.randint(len(images), (), generator=draw))
            large = nn.functional.interpolate(images[which : which + 1], size=(edge, edge), mode="bilinear")[0, 0]
            here = (slice(top, top + edge), slice(left, left + edge))
            taken[here] = True
            ink = large > _INK
            scene[n, 0][here] = torch.where(ink, large, scene[n, 0][here])
            objects[n, place] = torch.cat((labels[which : which + 1].float(), _box(ink, top, left)))
    return scene, objects


def _free_spot(taken: Tensor, pixels: int, draw: torch.Generator) -> tuple[list[int], int] | None:
    """A corner and an edge of a square in which nothing is yet, or None where none was found soon."""
    for _ in range(_TRIES):
        edge = int(torch.randint(int(_SMALLEST * pixels), int(_LARGEST * pixels) + 1, (), generator=draw))
        corner: list[int] = torch.randint(pixels - edge + 1, (2,), generator=draw).tolist()
        if not bool(taken[corner[0] : corner[0] + edge, corner[1] : corner[1] + edge].any()):
            return corner, edge
    return None


def _box(ink: Tensor, top: int, left: int) -> Tensor:
    rows, columns = ink.any(1).nonzero(), ink.any(0).nonzero()
    edges = (left + columns[0], top + rows[0], left + columns[-1] + 1, top + rows[-1] + 1)
    return torch.cat(edges).float()


class Detection(DatasetTask):
    """Scenes for training and for validation are made from different digits. `outputs` are those of a `Detector`."""

    metric = Metric(
        "ap50", L_("AP50"), L_("average precision of boxes that overlap by half at least, mean over the classes")
    )

    def __init__(self, config: RunConfig) -> None:
        images, labels = digits()
        size = config.model.size
        self._pixels = _PIXELS[size]
        parts = split(len(labels), VALIDATION_SHARE, config.seed)
        sets = [
            InMemory(*scenes(images[part], labels[part], count, self._pixels, _MOST_DIGITS[size], config.seed + n))
            for n, (part, count) in enumerate(zip(parts, _SCENES, strict=True))
        ]
        super().__init__(config, sets[0], sets[1], _SCENES[0])
        self._reader: Detector | None = None
        self.facts: Mapping[str, Any] = {
            "training_samples": _SCENES[0], "validation_samples": _SCENES[1], "pixels": self._pixels,
            "classes": CLASSES, "validation_objects": int((sets[1].targets[..., 0] >= 0).sum()),
        }  # fmt: skip

    def model(self) -> nn.Module:
        detector = Detector(self.config.model.size, self._pixels, CLASSES)
        self._reader = self._reader or detector
        return detector

    def loss(self, outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        """Focal loss of the classes, loss of the generalised overlap of the boxes, cross entropy of the centres."""
        assert self._reader is not None
        losses = self._reader.losses(outputs, [_listed(each) for each in targets])
        return torch.stack(list(losses.values())).sum()

    def score(self, outputs: dict[str, Tensor], targets: Tensor) -> tuple[Tensor, Tensor]:
        """The detections, and how many objects of each class there are: see `average_precision`."""
        assert self._reader is not None
        rows = []
        for result, each in zip(self._reader.detections(outputs), targets, strict=True):
            true = _listed(each)
            rows.append(matches(result["boxes"], result["labels"], result["scores"], true["boxes"], true["labels"]))
        labels = targets[..., 0]
        return torch.cat(rows), torch.bincount(labels[labels >= 0].long(), minlength=CLASSES).cpu()

    def result(self, scores: Sequence[Any]) -> float:
        return together(scores)


def _listed(objects: Tensor) -> dict[str, Tensor]:
    """The objects of one scene [most, 5] as torchvision has them."""
    present = objects[objects[:, 0] >= 0]
    return {"labels": present[:, 0].long(), "boxes": present[:, 1:]}
