"""int8-qat by torchao's PT2E: what the settings do, and that the integers compute what training promised."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from precgui.engine.errors import EngineError
from precgui.engine.models import ImageShape, image_model
from precgui.engine.qat.onednn import integer_kernels
from precgui.engine.qat.pt2e import graph as graphs
from precgui.engine.qat.pt2e.layer_errors import layer_errors
from precgui.engine.qat.pt2e.lowering import Lowered
from precgui.engine.qat.pt2e.state import set_state, state
from precgui.engine.train import _Training
from precgui.events import Evaluated, Event, Facts, Incident, StepDone
from tests.engine.conftest import Record

QUIET = ("record.tensors=false", "precision=int8-qat", "qat.backend=torchao")
MLP = (*QUIET, "model.name=mlp")  # without batch norm: torchao prepares it in no time


def quantised(events: Sequence[Event]) -> dict[str, Any]:
    facts = [event.values["quantised"] for event in events if isinstance(event, Facts) and "quantised" in event.values]
    assert len(facts) == 1
    result: dict[str, Any] = facts[0]
    return result


def ready(model: nn.Module, inputs: Any, *, per_channel: bool = True, kept: Sequence[str] = ()) -> Any:
    """A prepared graph that has seen a few batches and is in evaluation."""
    graph = graphs.prepare(graphs.export(model, inputs), per_channel=per_channel, kept=kept)
    graphs.set_mode(graph, training=True, norms=True)
    for _ in range(3):
        graph(inputs)
    graphs.set_mode(graph, training=False, norms=False)
    graphs.set_quantisation(graph, active=True, observing=False)
    return graph


def test_that_a_convolutional_model_keeps_what_training_promised_on_integers(record: Record) -> None:
    events = record(*QUIET, "train.epochs=4", "qat.freeze_bn_after_epoch=3", "precision_options.keep_fp32=head")
    facts = quantised(events)
    last = [event for event in events if isinstance(event, Evaluated)][-1]
    assert facts["backend"] == "torchao"
    assert facts["evaluation"]["fake"]["metric"] == pytest.approx(last.accuracy)
    assert facts["evaluation"]["integer"]["metric"] == pytest.approx(last.accuracy, abs=0.01)
    assert last.accuracy > 0.93
    assert list(facts["layers"]) == ["features.0", "features.3", "features.7"], "the head stays in FP32"
    assert max(layer["output_error"] for layer in facts["layers"].values()) < 0.05
    assert facts["bytes"]["integer"] < 0.7 * facts["bytes"]["fp32"]
    assert {"fp32", "bf16", "integer"} == facts["latency_s"]["64"].keys()
    assert facts["native_layers"] == (3 if integer_kernels() == "exact" else 0)
    told = [event.message for event in events if isinstance(event, Incident)]
    assert "by torchao" in told[0]
    assert "100.0% in int8, modules left out in fp32 (emulated)" in told[1]


@pytest.mark.parametrize("per_channel", [True, False])
def test_that_the_lowered_graph_computes_what_training_saw(per_channel: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 6))
    images = torch.randn(5, 3, 6, 6)
    graph = ready(model, images, per_channel=per_channel)
    with torch.no_grad():
        wanted = graph(images)
        integers = graphs.convert(graph)
        lowered = Lowered(integers, images, (1, 2))
        torch.testing.assert_close(integers(images), wanted, rtol=0.02, atol=0.02)
        torch.testing.assert_close(lowered(images), wanted, rtol=0.02, atol=0.02)
    weights = [value for value in state(integers).values() if value.dtype == torch.int8]
    assert sorted(value.numel() for value in weights) == [3 * 8 * 9, 8 * 36 * 6]
    scales = [value for name, value in state(integers).items() if name.startswith("_scale")]
    assert bool(scales) == per_channel, "one scale for the tensor is a number in the graph"


def test_that_batch_norms_are_folded_without_changing_the_result() -> None:
    torch.manual_seed(1)
    model = image_model("resnet", "small", ImageShape(1, 8, 10))
    images = torch.randn(16, 1, 8, 8)
    with torch.no_grad():
        for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
            norm.weight.normal_()
            norm.bias.normal_()
    graph = ready(model, images)
    with torch.no_grad():
        wanted = graph(images)
        errors = layer_errors(graph, images)
        integers = graphs.convert(graph)
        torch.testing.assert_close(integers(images), wanted, rtol=1e-3, atol=2e-2)
    assert not any("batch_norm" in str(node.target) for node in integers.graph.nodes)
    assert all(0 < error["weight_error"] < 0.02 for error in errors.values())


def test_that_the_size_of_a_batch_does_not_matter_to_a_lowered_graph() -> None:
    torch.manual_seed(2)
    tokens = torch.randn(7, 3, 4)
    graph = ready(nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 2)), tokens)
    with torch.no_grad():
        lowered = Lowered(graphs.convert(graph), tokens, (1, 4))
        whole = lowered(tokens)
        torch.testing.assert_close(torch.cat([lowered(one[None]) for one in tokens]), whole)
    assert lowered.native == (2 if integer_kernels() == "exact" else 0), "linear layers of three dimensions, too"


def test_that_a_saved_state_comes_back_and_a_foreign_one_is_refused() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    value = torch.randn(6, 4)
    first = graphs.convert(ready(copy.deepcopy(model), value))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    second = graphs.convert(ready(model, value * 2))
    saved = {name: tensor.clone() for name, tensor in state(first).items()}
    assert not torch.equal(first(value), second(value))
    set_state(second, saved)
    assert torch.equal(first(value), second(value))
    with pytest.raises(ValueError, match="is only in the"):
        set_state(second, {**saved, "more": torch.zeros(1)})
    name = next(iter(saved))
    with pytest.raises(ValueError, match="another shape or type"):
        set_state(second, {**saved, name: torch.zeros(99)})


def test_that_one_seed_gives_one_curve_and_another_backend_another(record: Record) -> None:
    runs = [record(*MLP, "train.max_steps=6", "qat.measure=false") for _ in range(2)]
    first, second = ([e.loss for e in events if isinstance(e, StepDone)] for events in runs)
    assert first == second
    own = record(*MLP, "train.max_steps=6", "qat.measure=false", "qat.backend=own")
    others = [e.loss for e in own if isinstance(e, StepDone)]
    assert first[0] == pytest.approx(others[0], rel=0.02)
    assert first != others


def test_that_training_is_plain_fp32_before_its_first_quantised_epoch(record: Record) -> None:
    def losses(*settings: str) -> list[float]:
        events = record(*MLP, "train.epochs=2", "qat.measure=false", *settings)
        return [event.loss for event in events if isinstance(event, Evaluated)]

    late, plain = losses("qat.start_epoch=2"), losses("precision=fp32")
    assert late[0] == plain[0]
    assert late[1] != plain[1]


def _watched(monkeypatch: pytest.MonkeyPatch, look: Any) -> list[Any]:
    seen: list[Any] = []
    original = _Training._evaluate

    def spy(self: _Training, epoch: int) -> None:
        seen.append(look(self.model))
        original(self, epoch)

    monkeypatch.setattr(_Training, "_evaluate", spy)
    return seen


def test_that_ranges_are_frozen_after_their_epoch_and_in_evaluation(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ranges(model: nn.Module) -> list[float]:
        return [
            float(module.activation_post_process.max_val.max())
            for module in model.modules()
            if isinstance(module, graphs.FusedMovingAvgObsFakeQuantize)
        ]

    seen = _watched(monkeypatch, ranges)
    record(*MLP, "train.epochs=3", "qat.observers_off_after_epoch=2", "qat.measure=false")
    assert seen[0] != seen[1]
    assert seen[1] == seen[2]


def test_that_batch_norm_can_be_frozen(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _watched(monkeypatch, lambda model: model.state_dict()["features.1.running_mean"].tolist())
    record(*QUIET, "train.epochs=3", "qat.freeze_bn_after_epoch=2", "qat.measure=false", "data.epoch_steps=3")
    assert seen[0] != seen[1]
    assert seen[1] == seen[2]


def test_that_averaged_weights_and_accumulation_go_with_it(record: Record) -> None:
    settings = ("train.epochs=3", "train.ema_decay=0.9", "train.accumulation=2", "data.batch_size=32")
    events = record(*MLP, *settings, "qat.per_channel=false")
    last = [event for event in events if isinstance(event, Evaluated)][-1]
    assert quantised(events)["evaluation"]["integer"]["metric"] == pytest.approx(last.accuracy, abs=0.02)


class _Branching(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value if value.sum() > 0 else -value


class _Noisy(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value * torch.rand(value.shape[0], 1) if self.training else value


class _Shrinking(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value / 2 if self.training else value


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (_Branching(), "data-dependent|guard on"),
        (_Noisy(), "random numbers in evaluation"),
        (_Shrinking(), "gives other results"),
    ],
)
def test_that_what_cannot_be_exported_is_refused(layer: nn.Module, why: str) -> None:
    with pytest.raises(graphs.NOT_EXPORTABLE, match=why):
        graphs.export(nn.Sequential(nn.Linear(4, 4), layer), torch.ones(3, 4))


def test_that_dropout_drops_in_training_only() -> None:
    value = torch.ones(64, 4)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5, inplace=True), nn.Dropout(0.5), nn.Linear(16, 1))
    graph = graphs.export(model, value)
    rules = graphs.Switches(graph)
    assert float(graph(value).detach().std()) == pytest.approx(0, abs=1e-6), "as exported: in evaluation"
    rules.set(True)
    assert float(graph(value).detach().std()) > 0
    rules.set(False)
    assert float(graph(value).detach().std()) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("setting", "cure"),
    [
        ("train.checkpointing=true", "train.checkpointing = false"),
        ("qat.learned_scales=true", "qat.learned_scales"),
        ("qat.learned_ranges=true", "qat.learned_ranges = false"),
    ],
)
def test_that_what_does_not_go_with_it_is_one_sentence(record: Record, setting: str, cure: str) -> None:
    with pytest.raises(EngineError, match=rf"exported graph; set {cure}"):
        record(*MLP, setting)


def test_that_nothing_left_to_quantise_is_one_sentence(record: Record) -> None:
    with pytest.raises(EngineError, match="no linear or convolutional layer left"):
        record(*MLP, "precision_options.keep_fp32=*")
