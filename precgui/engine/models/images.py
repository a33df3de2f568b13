"""Networks that classify images, built for the size and number of channels of the data."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from torch import Tensor, nn

from precgui.engine.errors import EngineError
from precgui.engine.models.transformer import Block
from precgui.sentences import Sentence

_CNN_WIDTH = {"small": 16, "medium": 48, "large": 128}
_MLP_WIDTH = {"small": 128, "medium": 512, "large": 2048}
_RESNET_BLOCKS_WIDTH = {"small": (1, 16), "medium": (3, 32), "large": (9, 64)}
_VIT_DEPTH_WIDTH_HEADS = {"small": (4, 64, 4), "medium": (8, 256, 8), "large": (12, 768, 12)}


@dataclass(frozen=True)
class ImageShape:
    """Input shape [batch, channels, pixels, pixels]; output: logits [batch, classes]."""

    channels: int
    pixels: int
    classes: int


class Cnn(nn.Module):
    """Three convolutions with batch norm and a linear layer."""

    def __init__(self, size: str, shape: ImageShape) -> None:
        super().__init__()
        width = _CNN_WIDTH[size]
        self.features = nn.Sequential(
            *_layer(shape.channels, width),
            *_layer(width, 2 * width),
            nn.MaxPool2d(2),
            *_layer(2 * width, 2 * width),
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(2 * width * (shape.pixels // 4) ** 2, shape.classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images).flatten(1))
        return logits


class Mlp(nn.Sequential):
    """Two hidden layers on the pixels in a row."""

    def __init__(self, size: str, shape: ImageShape) -> None:
        width = _MLP_WIDTH[size]
        super().__init__(
            nn.Flatten(),
            nn.Linear(shape.channels * shape.pixels**2, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, shape.classes),
        )


class ResNet(nn.Module):
    """The residual network for small images of He et al. 2016, section 4.2: three stages, each half as wide in pixels.

    small is ResNet-8 with 16 channels, medium ResNet-20 with 32, large ResNet-56 with 64.
    """

    def __init__(self, size: str, shape: ImageShape) -> None:
        super().__init__()
        blocks, width = _RESNET_BLOCKS_WIDTH[size]
        self.stem = nn.Sequential(*_layer(shape.channels, width))
        stages = [_stage(width, width, blocks, 1), _stage(width, 2 * width, blocks, 2)]
        self.stages = nn.Sequential(*stages, _stage(2 * width, 4 * width, blocks, 2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(4 * width, shape.classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.pool(self.stages(self.stem(images))).flatten(1))
        return logits


class ViT(nn.Module):
    """A vision transformer (Dosovitskiy et al. 2021) that averages over the patches; about 8 x 8 of them."""

    def __init__(self, size: str, shape: ImageShape) -> None:
        super().__init__()
        depth, width, heads = _VIT_DEPTH_WIDTH_HEADS[size]
        patch = max(2, shape.pixels // 8)
        self.patches = nn.Conv2d(shape.channels, width, patch, stride=patch)
        self.position = nn.Embedding((shape.pixels // patch) ** 2, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=False) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, shape.classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.position.weight
        logits: Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return logits


class ResizedInput(nn.Module):
    """A network made for large colour images, fed with small or grey ones: enlarged, and grey repeated three times."""

    def __init__(self, network: nn.Module, pixels: int) -> None:
        super().__init__()
        self.network, self.pixels = network, pixels

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        if images.shape[-1] < self.pixels:
            images = nn.functional.interpolate(images, size=(self.pixels, self.pixels), mode="bilinear")
        logits: Tensor = self.network(images)
        return logits


def _layer(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()


def _stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    from torchvision.models.resnet import BasicBlock, conv1x1  # not at import: a run of text needs no torchvision

    shortcut = None
    if stride != 1 or inputs != outputs:
        shortcut = nn.Sequential(conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))
    first = BasicBlock(inputs, outputs, stride, shortcut)
    return nn.Sequential(first, *(BasicBlock(outputs, outputs) for _ in range(blocks - 1)))


def _small_stem(name: str, shape: ImageShape) -> nn.Module:
    """torchvision's ResNet with the stem for images of 32 pixels: 3x3 without stride, no pooling (He et al. 2016)."""
    from torchvision import models

    network: Any = models.get_model(name, weights=None, num_classes=shape.classes)
    if shape.pixels <= 64:
        network.conv1 = nn.Conv2d(shape.channels, 64, 3, padding=1, bias=False)
        network.maxpool = nn.Identity()
    elif shape.channels != 3:
        network.conv1 = nn.Conv2d(shape.channels, 64, 7, stride=2, padding=3, bias=False)
    return network  # type: ignore[no-any-return]


_LEAST_PIXELS = {"inception_v3": 128, "alexnet": 64}  # others run on 32 pixels and more
_OPTIONS: dict[str, Callable[[int], Any]] = {
    "image_size": lambda pixels: pixels,  # vision transformers
    "input_size": lambda pixels: (pixels, pixels),  # MaxViT
    "aux_logits": lambda _: False,  # GoogLeNet and Inception return a second result while they train
    "init_weights": lambda _: True,
}


def _from_torchvision(name: str, shape: ImageShape) -> nn.Module:
    """Any classification model of torchvision by its name there, without trained weights. Raises EngineError."""
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        close = get_close_matches(name, dict.fromkeys([*OWN, *known]), 4) or ["densenet121", "efficientnet_b0"]
        raise EngineError(
            Sentence(
                "model.name: {name!r} is not a model for images; precgui has {own}, torchvision among others {close}",
                name=name,
                own=", ".join(OWN),
                close=", ".join(close),
            )
        )
    pixels = max(shape.pixels, _LEAST_PIXELS.get(name, 32))
    builder = models.get_model_builder(name)
    if name.startswith("maxvit"):
        pixels = max(pixels, 224)
    takes = _parameters(builder)
    options = {key: value(pixels) for key, value in _OPTIONS.items() if key in takes}
    return ResizedInput(builder(weights=None, num_classes=shape.classes, **options), pixels)


def _parameters(builder: Callable[..., nn.Module]) -> set[str]:
    """The options of a builder, also those that only the class behind it takes."""
    module = inspect.getmodule(builder)
    classes = {"vit": "VisionTransformer", "max": "MaxVit", "goo": "GoogLeNet", "inc": "Inception3"}
    created = getattr(module, classes.get(builder.__name__[:3], ""), None)
    return set(inspect.signature(created).parameters) if created is not None else set()


OWN: dict[str, Callable[[str, ImageShape], nn.Module]] = {
    "cnn": Cnn,
    "mlp": Mlp,
    "resnet": ResNet,
    "resnet18": lambda _, shape: _small_stem("resnet18", shape),
    "resnet50": lambda _, shape: _small_stem("resnet50", shape),
    "vit": ViT,
}


def image_model(name: str, size: str, shape: ImageShape) -> nn.Module:
    """The network called `name` for images of that shape: one of `OWN` or of torchvision. Raises EngineError."""
    return OWN[name](size, shape) if name in OWN else _from_torchvision(name, shape)
