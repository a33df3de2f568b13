"""The measured effect: paired differences, outputs compared, layers that are known to suffer, keys and values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from precgui.engine.errors import EngineError, Stopped
from precgui.engine.models.transformer import Gpt
from precgui.engine.ptq.effects import EffectMeter
from precgui.engine.ptq.held_out import HeldOut
from precgui.engine.ptq.quantised_layers import KvRounding, QuantisedLayer
from precgui.engine.ptq.ranks import rank_agreement
from precgui.engine.ptq.rounding import coded_rows
from precgui.events import Metric
from precgui.formats.weight_formats import weight_format

CPU = torch.device("cpu")


class Classes:
    """Classes of 64 numbers, as a two-layer model was told to see them."""

    metric, steps_per_epoch, facts = Metric("m", "m", "m"), 1, {}

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets)

    def score(self, outputs: Any, targets: Tensor) -> Any:
        return torch.zeros(2)

    def result(self, scores: Any) -> float:
        return 0.0


class Weighted(Classes):
    """A loss that is no mean over samples."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="sum") / 7


class Distances(Classes):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().mean()


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(0)
    yield


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5))


def batches(model: nn.Module, count: int = 3) -> list[tuple[Tensor, Tensor]]:
    inputs = [torch.randn(16, 64) for _ in range(count)]
    return [(x, model(x).argmax(1)) for x in inputs]


def held_out(model: nn.Module, task: Any = None, **more: Any) -> HeldOut:
    return HeldOut(task or Classes(), model, batches(model), CPU, **more)


def test_that_a_rise_is_the_mean_of_paired_differences() -> None:
    model = network()
    held = held_out(model)
    assert held.units == held.samples == 48 and held.truth == "kl"
    before = torch.cat([nn.functional.cross_entropy(model(x), y, reduction="none") for x, y in held.batches])
    nothing = held.measure()
    assert nothing.rise == nothing.mean_distance == 0
    with torch.no_grad():
        model[2].weight += 0.01 * torch.randn(32, 64)
    after = torch.cat([nn.functional.cross_entropy(model(x), y, reduction="none") for x, y in held.batches])
    change, apart = held.measure(), (after - before).detach().double()
    assert change.rise == pytest.approx(float(apart.mean()), rel=1e-3, abs=1e-7)
    assert change.error == pytest.approx(float(apart.std() / math.sqrt(48)), rel=1e-3)
    assert (
        change.error < float(after.detach().std()) / math.sqrt(48) / 2
    )  # pairs: the spread of the samples is not in it
    assert change.mean_distance > 0 and len(change.half(1).rises) == 24


def test_that_a_loss_that_is_no_mean_is_compared_by_batches_and_numbers_by_their_error() -> None:
    model = network()
    by_batch = held_out(model, Weighted())
    assert by_batch.units == 3 and by_batch.truth == "loss" and math.isnan(by_batch.measure().mean_distance)
    numbers = HeldOut(Distances(), model, [(torch.randn(8, 64), torch.randn(8, 5))], CPU)
    assert numbers.truth == "output_error" and numbers.units == 8
    with torch.no_grad():
        model[4].bias += 0.5
    assert numbers.measure().mean_distance == pytest.approx(0.25, rel=1e-4)


def test_that_a_model_is_measured_and_left_as_it_was() -> None:
    model = network()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    held = held_out(model)
    meter = EffectMeter(held, held.batches[:2], [weight_format(n) for n in ("int8/row", "int4/32", "int4/128")])
    found = {(e.format, e.method, e.rounded): e for e in meter.whole(["rtn", "gptq"], ["weights", "inputs", "k"])}
    assert (
        found["int4/32", "rtn", "weights"].change.mean_distance
        > found["int8/row", "rtn", "weights"].change.mean_distance
    )
    assert found["int8/row", "rtn", "inputs"].nbytes == (64 + 32) * 64 + 5 * 32 + 4 * (64 + 32 + 5)
    assert found["int4/128", "rtn", "weights"].why_not == "no layer has rows of such groups"
    assert found["int8/row", "rtn", "k"].why_not == "no attention was found"
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert held.measure().rise == 0 and not model[0]._forward_pre_hooks


def test_that_scores_of_one_pass_order_layers_as_measuring_them_does() -> None:
    model = nn.Sequential(*(part for _ in range(8) for part in (nn.Linear(32, 32), nn.Tanh())), nn.Linear(32, 5))
    for part in model[::2]:
        nn.init.orthogonal_(part.weight, 1.5)
    inputs = [torch.randn(64, 32) for _ in range(4)]
    data = [(x, model(x).argmax(1)) for x in inputs]
    held = HeldOut(Classes(), model, data, CPU)
    meter = EffectMeter(held, data, [weight_format("int4/32")])
    for inputs_too in (False, True):
        singles = list(meter.singles(meter.chosen_layers(99), inputs=inputs_too))
        assert len(singles) == 9
        true = [each.change.mean_distance for each in singles]
        assert rank_agreement([each.scores["output_fisher"] for each in singles], true) > 0.8
        assert ("weight_fisher" in singles[0].scores) is not inputs_too
    assert meter.chosen_layers(3) == ["0", "8", "16"]


def test_that_frozen_layers_are_scored_and_stay_frozen() -> None:
    model = network()
    model[0].requires_grad_(False)
    held = held_out(model)
    scores = EffectMeter(held, held.batches, [weight_format("int4/32")]).scores(inputs=False)
    assert scores["0"]["int4/32"]["output_fisher"] > 0 and not model[0].weight.requires_grad


def test_that_keys_and_values_are_rounded_apart() -> None:
    model = Gpt("small", 16)
    tokens = torch.randint(0, 256, (4, 16))
    with torch.no_grad():
        for block in model.blocks:  # one channel of K far wider, and that of Q as much narrower: the same function
            for head in range(4):
                for row, factor in ((head * 32 + 5, 1 / 40), (128 + head * 32 + 5, 40.0)):
                    block.attention.qkv.weight[row] *= factor * 8
    exact = model(tokens)

    def error(part: str, name: str) -> float:
        with KvRounding([part], weight_format(name)) as mode, torch.no_grad():
            found = float((model(tokens) - exact).square().mean())
        assert mode.calls == 2
        return found

    assert error("k", "int4/row") > 5 * error("k", "e4m3fn/none")
    assert 0 < error("v", "int4/row") != error("k", "int4/row")


def test_that_heads_of_torch_are_found() -> None:
    layer = nn.MultiheadAttention(32, 2, batch_first=True).eval()
    x = torch.randn(2, 6, 32)
    with torch.no_grad():
        exact, _ = layer(x, x, x, need_weights=False)
        with KvRounding(["v"], weight_format("int2/row")) as mode:
            rounded, _ = layer(x, x, x, need_weights=False)
    assert mode.calls == 1 and not torch.equal(rounded, exact)


def test_that_what_cannot_be_measured_is_a_sentence() -> None:
    model = network()
    with pytest.raises(EngineError, match="no held-out data"):
        HeldOut(Classes(), model, [], CPU)
    with pytest.raises(EngineError, match="no linear or convolutional layer"):
        EffectMeter(HeldOut(Classes(), nn.Identity(), [(torch.randn(4, 5), torch.zeros(4).long())], CPU), [], [])
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    with pytest.raises(EngineError, match="not finite as it is"):
        held_out(model)
    with pytest.raises(Stopped):
        held_out(network(), stopped=lambda: True).measure()


def test_that_shared_weights_are_rounded_once_for_both_layers() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    held = HeldOut(Distances(), model, [(torch.randn(4, 8), torch.randn(4, 8))], CPU)
    kept = model[0].weight.detach().clone()
    low = {
        "0": QuantisedLayer(coded_rows(torch.zeros(8, 8), weight_format("int8"))),
        "1": QuantisedLayer(coded_rows(torch.ones(8, 8), weight_format("int8"))),
    }
    EffectMeter(held, [], [weight_format("int8")]).measure(low)
    assert torch.equal(model[0].weight, kept)
