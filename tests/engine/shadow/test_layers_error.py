"""The error of each layer in several precisions."""

from __future__ import annotations

import math

import pytest
import torch

from precgui import config
from precgui.engine.errors import EngineError, Stopped
from precgui.engine.shadow.layers import Distance, LayerErrors, layer_errors
from precgui.engine.snapshot.replay import train_to_snapshot

BASE = ["device=cpu", "threads=1", "data.batch_size=16", "model.name=mlp"]


@pytest.fixture(scope="module")
def compared() -> LayerErrors:
    chosen = config.load("digits-quick", BASE)
    return layer_errors(chosen, train_to_snapshot(chosen, 3, lambda: False), ["fp32", "bf16-amp", "fp16-amp", "fp8"])


def test_that_each_layer_is_farther_from_fp64_in_fewer_bits(compared: LayerErrors) -> None:
    assert compared.step == 3 and compared.precisions == ["fp32", "bf16-amp", "fp16-amp", "fp8"]
    weighted = [layer for layer, kind in compared.kinds.items() if kind == "Linear"]
    for table in (compared.forward, compared.gradient):
        for layer in weighted:
            rows = {name: distance.to_json()["relative_l2"] for name, distance in table[layer].items()}
            assert 0 < rows["fp32"] < 1e-5 < rows["fp16-amp"] < rows["bf16-amp"] < rows["fp8"] < 1


def test_that_the_distance_of_the_first_layer_is_the_one_by_hand() -> None:
    chosen = config.load("digits-quick", BASE)
    before = train_to_snapshot(chosen, 2, lambda: False)
    result = layer_errors(chosen, before, ["bf16-amp"])
    layer = next(name for name, kind in result.kinds.items() if kind == "Linear")
    weight, bias = before.weights[f"{layer}.weight"], before.weights[f"{layer}.bias"]
    inputs = before.batches[0][0].flatten(1)
    exact = torch.nn.functional.linear(inputs.double(), weight.double(), bias.double())
    with torch.autocast("cpu", torch.bfloat16):
        low = torch.nn.functional.linear(inputs, weight, bias)
    expected = float((low.double() - exact).norm() / exact.norm())
    assert result.forward[layer]["bf16-amp"].to_json()["relative_l2"] == pytest.approx(expected)


def test_that_a_distance_gives_its_three_measures() -> None:
    distance = Distance()
    distance.add(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert distance.to_json() == {
        "relative_l2": 1.0, "cosine": pytest.approx(math.sqrt(0.5)), "sqnr_db": pytest.approx(0.0)
    }  # fmt: skip
    distance.add(torch.tensor([math.inf]), torch.ones(1, dtype=torch.float64))
    assert distance.to_json() == {"relative_l2": None, "cosine": None, "sqnr_db": None}


def test_that_a_scale_at_which_gradients_overflow_is_halved() -> None:
    chosen = config.load("digits-quick", [*BASE, "precision=fp16-amp", "scaling.initial_scale=16777216"])
    result = layer_errors(chosen, train_to_snapshot(chosen, 1, lambda: False), ["fp16-amp"])
    assert result.scales["fp16-amp"] < 2**24
    assert all(distance["fp16-amp"].to_json()["relative_l2"] for distance in result.gradient.values())


def test_that_weights_of_a_quantised_run_are_refused() -> None:
    chosen = config.load("digits-quick", [*BASE, "precision=int8-qat"])
    with pytest.raises(EngineError, match="take a run that is not quantised"):
        layer_errors(chosen, train_to_snapshot(chosen, 1, lambda: False), ["fp32"])


def test_that_it_stops_when_asked_to() -> None:
    chosen = config.load("digits-quick", BASE)
    with pytest.raises(Stopped):
        layer_errors(chosen, train_to_snapshot(chosen, 1, lambda: False), ["fp32"], lambda: True)
