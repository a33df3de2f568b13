"""Formats for the layers of a trained model."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from precgui import config
from precgui.engine.assignment.search import Assignment, assign, assigned_config
from precgui.engine.assignment.sensitivity import measure_sensitivity
from precgui.engine.errors import EngineError, Stopped
from precgui.engine.precisions.low import AnyFormat
from precgui.formats.registry import bits_per_value

MLP = config.load("digits-quick", ["model.name=mlp", "train.max_steps=60", "device=cpu", "threads=1"])


@pytest.fixture(scope="module")
def within_five_bits() -> Assignment:
    return assign(MLP, ["int2", "e4m3fn"], bits=5.0)


def test_that_a_plan_keeps_the_budget_and_costs_less_than_the_narrow_format_everywhere(
    within_five_bits: Assignment,
) -> None:
    best = within_five_bits.best
    assert best.bits <= 5 and set(best.layers.values()) == {"int2", "e4m3fn"}
    assert within_five_bits.uniform["e4m3fn"].rise <= best.rise < within_five_bits.uniform["int2"].rise
    assert best.rise == min(plan.rise for plan in within_five_bits.candidates)


def test_that_the_narrowest_plan_within_a_rise_of_the_loss_has_fewer_bits_than_the_widest_format() -> None:
    uniform = assign(MLP, ["int2", "e4m3fn"], bits=8.0).uniform
    most = uniform["int2"].rise / 2
    found = assign(MLP, ["int2", "e4m3fn"], rise=most).best
    assert found.rise <= most and 2 < found.bits < 8


def test_that_an_ample_budget_takes_the_widest_format_where_the_others_do_harm() -> None:
    assert set(assign(MLP, ["int2", "bf16"], bits=16).best.layers.values()) == {"bf16"}


def test_that_the_layer_on_which_the_loss_depends_most_is_scored_highest() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    with torch.no_grad():
        model[1].weight.mul_(1e4)
        model[2].weight.mul_(1e-4)
    x, y = torch.randn(32, 8), torch.randn(32, 8)
    precision = AnyFormat(assigned_config(MLP, {}), torch.device("cpu"))
    layers = dict(model.named_children())
    losses = [lambda: (nn.functional.mse_loss(model(x), y), 32)]
    result = measure_sensitivity(model, layers, losses, {"e2m1": precision.arithmetic_in("e2m1")})
    scores = {name: row["e2m1"] for name, row in result.weights.items()}
    by_hand = {}
    model.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    for name, layer in layers.items():
        weight = layer.weight.detach()
        error = precision.arithmetic_in("e2m1")("").weight(weight, 1) - weight
        by_hand[name] = float((layer.weight.grad.square() * error.square()).sum()) * 16
    assert scores == pytest.approx(by_hand)
    assert max(scores, key=lambda name: scores[name]) == max(by_hand, key=lambda name: by_hand[name])


def test_that_blocks_of_a_transposed_convolution_lie_along_its_input_channels() -> None:
    torch.manual_seed(0)
    model = nn.ConvTranspose2d(32, 3, 2)
    precision = AnyFormat(assigned_config(MLP, {}), torch.device("cpu"))
    x = torch.randn(4, 32, 3, 3)
    losses = [lambda: (model(x).square().mean(), 4)]
    result = measure_sensitivity(model, {"up": model}, losses, {"mxfp4": precision.arithmetic_in("mxfp4")})
    model(x).square().mean().backward()
    weight = model.weight.detach()
    error = precision.arithmetic_in("mxfp4")("").weight(weight, 0) - weight
    assert result.weights["up"]["mxfp4"] == pytest.approx(
        float((model.weight.grad.square() * error.square()).sum()) * 2
    )


def test_that_a_plan_is_a_config_that_trains() -> None:
    made = assigned_config(MLP, {"0": "int2"})
    assert (made.precision, made.precision_options.layers) == ("emulated:fp32", {"0": "int2"})
    assert made.precision_options.gradients == "fp32"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"bits": 1.0}, "1 bits a weight are too few; the narrowest format has 2; raise the budget"),
        ({"rise": -1.0}, "the held-out loss rises by more than -1; allow a larger rise"),
    ],
)
def test_that_an_impossible_budget_is_refused(options: dict[str, float], sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        assign(MLP, ["int2", "e4m3fn"], **options)


def test_that_it_stops_when_asked_to() -> None:
    asked = itertools.chain([False] * 5, itertools.repeat(True))
    with pytest.raises(Stopped):
        assign(MLP, ["int2"], bits=2, stopped=lambda: next(asked))


def test_that_the_bits_of_blocks_count_their_scale() -> None:
    assert [bits_per_value(name) for name in ("e4m3fn", "mxfp4", "nvfp4", "fp32")] == [8, 4.25, 4.5, 32]
