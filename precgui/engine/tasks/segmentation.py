"""Segmentation of scenes made from the bundled digits: which pixel belongs to which digit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from precgui.engine.models.unet import UNet
from precgui.engine.tasks.base import DatasetTask, InMemory, split
from precgui.engine.tasks.images import VALIDATION_SHARE, digits
from precgui.events import Metric
from precgui.sentences import L_

if TYPE_CHECKING:
    from precgui.config import RunConfig

PIXELS = 32
CLASSES = 11  # the background and ten digits
_SCENES = (1024, 256)  # to train and to validate
_DIGITS_PER_SCENE = 3


def scenes(images: Tensor, labels: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """`count` scenes [count, 1, 32, 32] of digits at twice their size on a noisy ground; and the class of each pixel.

    Classes are 0 for the ground and 1 to 10 for the digits 0 to 9. Later digits cover earlier ones.
    """
    draw = torch.Generator().manual_seed(seed)
    large = nn.functional.interpolate(images, scale_factor=2.0, mode="bilinear")
    scene = torch.rand(count, 1, PIXELS, PIXELS, generator=draw) * 0.3
    classes = torch.zeros(count, PIXELS, PIXELS, dtype=torch.long)
    which = torch.randint(len(images), (count, _DIGITS_PER_SCENE), generator=draw)
    corners = torch.randint(PIXELS - 16 + 1, (count, _DIGITS_PER_SCENE, 2), generator=draw).tolist()
    for n in range(count):
        for digit, (top, left) in zip(which[n].tolist(), corners[n], strict=True):
            here = (slice(top, top + 16), slice(left, left + 16))
            ink = large[digit, 0] > 0.4
            scene[n, 0][here] = torch.where(ink, large[digit, 0], scene[n, 0][here])
            classes[n][here] = torch.where(ink, labels[digit] + 1, classes[n][here])
    return scene, classes


class Segmentation(DatasetTask):
    """Scenes for training and for validation are made from different digits. `outputs` are [batch, 11, 32, 32]."""

    metric = Metric(
        "iou", L_("Mean IoU"), L_("intersection over union of found and true pixels, mean over the classes")
    )

    def __init__(self, config: RunConfig) -> None:
        images, labels = digits()
        parts = split(len(labels), VALIDATION_SHARE, config.seed)
        sets = [
            InMemory(*scenes(images[part], labels[part], count, config.seed + n))
            for n, (part, count) in enumerate(zip(parts, _SCENES, strict=True))
        ]
        super().__init__(config, sets[0], sets[1], _SCENES[0])
        self.facts: Mapping[str, Any] = {
            "training_samples": _SCENES[0], "validation_samples": _SCENES[1], "pixels": PIXELS, "classes": CLASSES,
        }  # fmt: skip

    def model(self) -> nn.Module:
        return UNet(self.config.model.size, CLASSES)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of a pixel."""
        return nn.functional.cross_entropy(outputs, targets)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Intersection and union in pixels, by class: [2, 11]."""
        pairs = targets.flatten() * CLASSES + outputs.argmax(1).flatten()
        table = torch.bincount(pairs, minlength=CLASSES**2).view(CLASSES, CLASSES)
        common = table.diagonal()
        return torch.stack((common, table.sum(0) + table.sum(1) - common))
