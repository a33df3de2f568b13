"""Average precision of detections as COCO defines it, at one overlap."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

OVERLAP = 0.5  # intersection over union from which a box counts as found
_RECALLS = 101  # points at which precision is read, from 0 to 1


def matches(boxes: Tensor, labels: Tensor, scores: Tensor, true_boxes: Tensor, true_labels: Tensor) -> Tensor:
    """Rows [n, 3] of class, score and 1 where the detection found an object of its class, of one image.

    The best detections choose first; each takes the object that it covers best of those that are left.
    """
    from torchvision.ops import box_iou

    order = scores.argsort(descending=True, stable=True)
    overlaps = box_iou(boxes[order], true_boxes.to(boxes)) * (labels[order, None] == true_labels)
    found = torch.zeros(len(order), dtype=torch.float64)
    free = overlaps.double().cpu()
    for n, row in enumerate(free):
        if len(row) and float(row.max()) >= OVERLAP:
            found[n] = 1.0
            free[:, int(row.argmax())] = 0.0
    return torch.stack((labels[order].double().cpu(), scores[order].double().cpu(), found), 1)


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
    found = rows[rows[:, 1].argsort(descending=True, stable=True), 2].cumsum(0)
    precision = found / torch.arange(1, len(found) + 1, dtype=torch.float64)
    best = precision.flip(0).cummax(0).values.flip(0)
    wanted = torch.linspace(0, 1, _RECALLS, dtype=torch.float64)
    places = torch.searchsorted(found / objects, wanted)
    reached = places < len(best)
    return float(best[places[reached]].sum() / _RECALLS)


def together(parts: Sequence[tuple[Tensor, Tensor]]) -> float:
    """The average precision of batches: (rows, objects) each."""
    rows, objects = zip(*parts, strict=True)
    return average_precision(torch.cat(rows), torch.stack(objects).sum(0))
