"""A network that finds objects: torchvision's FCOS on a backbone for the size of the scenes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_STRIDES = {"small": (4, 8), "medium": (8, 16, 32, 64, 128), "large": (8, 16, 32, 64, 128)}
_LAYERS_OF_HEAD = {"small": 2, "medium": 4, "large": 4}
_RESNET = {"medium": "resnet18", "large": "resnet50"}
_WIDTH = 64  # of the small backbone; the others have the 256 of torchvision


class Detector(nn.Module):
    """FCOS (Tian et al. 2019), which says at each place of each level which class is there and how far its edges are.

    Images [batch, 1, pixels, pixels] to the outputs of its head by name: `cls_logits` [batch, places, classes],
    `bbox_regression` [batch, places, 4] and `bbox_ctrness` [batch, places, 1]. What they mean say `losses` and
    `detections`, which hold no weights.
    """

    def __init__(self, size: str, pixels: int, classes: int) -> None:
        from torchvision.models.detection import FCOS
        from torchvision.models.detection.anchor_utils import AnchorGenerator
        from torchvision.models.detection.fcos import FCOSHead

        super().__init__()
        self.pixels, self.strides = pixels, _STRIDES[size]
        backbone: Any = SmallPyramid() if size == "small" else _resnet_pyramid(_RESNET[size])
        # Half a stride: digits are smaller beside their scenes than the objects of photographs.
        anchors = AnchorGenerator(tuple((stride // 2,) for stride in self.strides), ((1.0,),) * len(self.strides))
        self.network = FCOS(
            backbone,
            classes,
            anchor_generator=anchors,
            head=FCOSHead(backbone.out_channels, 1, classes, _LAYERS_OF_HEAD[size]),
            center_sampling_radius=3.0,
            score_thresh=0.05,
        )

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = self.network.head(list(self.network.backbone(images).values()))
        return outputs

    def losses(self, outputs: dict[str, Tensor], targets: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """The loss of the classes, of the edges and of the centres; a target has `boxes` [n, 4] and `labels` [n]."""
        anchors = [self._places(outputs)] * len(targets)
        losses: dict[str, Tensor] = self.network.compute_loss(targets, outputs, anchors, self._places_by_level())
        return losses

    def detections(self, outputs: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """For each image `boxes` [n, 4] in pixels, `labels` [n] and `scores` [n], the best first."""
        counts = self._places_by_level()
        levels = {name: list(output.split(counts, 1)) for name, output in outputs.items()}
        images = len(outputs["cls_logits"])
        anchors = [list(self._places(outputs).split(counts))] * images
        results: list[dict[str, Tensor]] = self.network.postprocess_detections(
            levels, anchors, [(self.pixels, self.pixels)] * images
        )
        return results

    def _places_by_level(self) -> list[int]:
        return [(self.pixels // stride) ** 2 for stride in self.strides]

    def _places(self, outputs: dict[str, Tensor]) -> Tensor:
        """The anchors of an image [places, 4], as exact as the outputs."""
        from torchvision.models.detection.image_list import ImageList

        scene = ImageList(torch.empty(1, 1, self.pixels, self.pixels), [(self.pixels, self.pixels)])
        maps = [torch.empty(1, 1, self.pixels // stride, self.pixels // stride) for stride in self.strides]
        anchors: Tensor = self.network.anchor_generator(scene, maps)[0]
        return anchors.to(outputs["cls_logits"])


class SmallPyramid(nn.Module):
    """Three stages of convolutions and a feature pyramid over the last two, at a fourth and an eighth of the pixels."""

    out_channels = _WIDTH

    def __init__(self) -> None:
        from torchvision.ops import FeaturePyramidNetwork

        super().__init__()
        self.stem = nn.Sequential(*_halving(1, 16), *_halving(16, 32))
        self.deep = nn.Sequential(*_halving(32, 64))
        self.pyramid = FeaturePyramidNetwork([32, 64], self.out_channels)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        fine = self.stem(images)
        levels: dict[str, Tensor] = self.pyramid({"fine": fine, "coarse": self.deep(fine)})
        return levels


def _halving(inputs: int, outputs: int) -> list[nn.Module]:
    """Two convolutions; the second one with stride two."""
    return [
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
    ]  # fmt: skip


def _resnet_pyramid(name: str) -> nn.Module:
    """A ResNet with a feature pyramid over its last three stages and two levels more, for grey images."""
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
    from torchvision.ops.feature_pyramid_network import LastLevelP6P7

    backbone: Any = resnet_fpn_backbone(
        backbone_name=name,
        weights=None,
        norm_layer=nn.BatchNorm2d,
        trainable_layers=5,
        returned_layers=[2, 3, 4],
        extra_blocks=LastLevelP6P7(256, 256),
    )
    backbone.body.conv1 = nn.Conv2d(1, 64, 7, stride=2, padding=3, bias=False)
    return backbone  # type: ignore[no-any-return]
