"""Networks for images: right shapes at every size, the published numbers of parameters, and gradients everywhere."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from precgui.config import MODELS
from precgui.engine.errors import EngineError
from precgui.engine.models import Gpt, ImageShape, Lstm, UNet, image_model

GREY, COLOUR = ImageShape(1, 8, 10), ImageShape(3, 32, 100)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", ["cnn", "mlp", "resnet", "resnet18", "resnet50", "vit", "mobilenet_v3_small"])
@pytest.mark.parametrize("shape", [GREY, ImageShape(1, 28, 10), COLOUR])
def test_that_a_network_fits_its_images_and_learns_with_every_weight(name: str, shape: ImageShape) -> None:
    model = image_model(name, "small", shape)
    logits = model(torch.randn(2, shape.channels, shape.pixels, shape.pixels))
    assert logits.shape == (2, shape.classes)
    logits.square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("name", ["cnn", "mlp", "resnet", "vit"])
def test_that_sizes_grow(name: str) -> None:
    sizes = [count(image_model(name, size, COLOUR)) for size in ("small", "medium", "large")]
    assert sizes[0] * 3 < sizes[1]
    assert sizes[1] * 3 < sizes[2]


def test_that_resnets_have_the_published_numbers_of_parameters() -> None:
    from torchvision.models import resnet18

    cifar = image_model("resnet18", "small", ImageShape(3, 32, 10))
    assert count(cifar) == 11_173_962  # the widely used ResNet-18 for CIFAR-10
    assert count(image_model("resnet18", "small", ImageShape(3, 224, 1000))) == count(resnet18()) == 11_689_512


def test_that_the_stem_for_small_images_keeps_their_size() -> None:
    features: list[torch.Size] = []
    model = image_model("resnet18", "small", COLOUR)
    model.get_submodule("layer1").register_forward_hook(lambda *args: features.append(args[2].shape))
    model(torch.randn(1, 3, 32, 32))
    assert features == [(1, 64, 32, 32)]


@pytest.mark.parametrize("name", ["squeezenet1_1", "shufflenet_v2_x0_5", "googlenet", "vit_b_32"])
def test_that_networks_of_torchvision_take_the_digits(name: str) -> None:
    model = image_model(name, "small", GREY).eval()
    with torch.no_grad():
        assert model(torch.randn(2, 1, 8, 8)).shape == (2, 10)


def test_that_a_misspelt_network_is_answered_with_its_neighbours() -> None:
    with pytest.raises(EngineError, match=r"'efficientnet-b0' is not a model for images.*efficientnet_b0"):
        image_model("efficientnet-b0", "small", GREY)


def test_that_the_large_gpt_has_about_100_million_parameters() -> None:
    with torch.device("meta"):
        assert count(Gpt("large", 1024)) == pytest.approx(100e6, rel=0.03)


def test_that_sequences_and_scenes_keep_their_shape() -> None:
    tokens = torch.randint(256, (2, 7))
    assert Gpt("small", 16)(tokens).shape == Lstm("small")(tokens).shape == (2, 7, 256)
    assert UNet("small", 11)(torch.randn(2, 1, 32, 32)).shape == (2, 11, 32, 32)


def test_that_every_model_of_a_form_can_be_built() -> None:
    for name in MODELS["digits"]:
        assert count(image_model(name, "small", GREY)) > 0
