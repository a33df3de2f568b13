"""Quantisation-aware training: integers that compute what training promised, and what its settings do."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from precgui import config
from precgui.engine import precisions
from precgui.engine.errors import EngineError
from precgui.engine.models import ImageShape, image_model
from precgui.engine.qat import integer_layers
from precgui.engine.qat.conversion import fold, norms_behind
from precgui.engine.qat.layers import Quantizer, begin_batch, quantise
from precgui.events import Evaluated, Event, Facts, Incident, StepDone
from tests.engine.conftest import Record

QUIET = ("record.tensors=false",)


def quantised(events: Sequence[Event]) -> dict[str, Any]:
    facts = [event.values["quantised"] for event in events if isinstance(event, Facts) and "quantised" in event.values]
    assert len(facts) == 1
    result: dict[str, Any] = facts[0]
    return result


@given(st.sampled_from([8, 4, 2, 1]), st.integers(1, 40), st.integers(0, 2**31))
def test_that_packed_integers_come_back(bits: int, count: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    if bits == 1:
        values = torch.randint(0, 2, (count,), generator=generator) * 2 - 1
    else:
        largest = 2 ** (bits - 1) - 1
        values = torch.randint(-largest, largest + 1, (count,), generator=generator)
    packed = integer_layers.pack(values.float(), bits)
    assert packed.numel() == math.ceil(count * bits / 8)
    assert torch.equal(integer_layers.unpack(packed, bits, (count,)), values.to(torch.int8))


def _layers() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8, dilation=2, bias=False),
        nn.Flatten(), nn.Linear(8 * 4 * 4, 5),
    )  # fmt: skip


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
@pytest.mark.parametrize("native", [True, False])
def test_that_the_integer_model_computes_what_training_saw(
    bits: int, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native and integer_layers.integer_kernels(bits) != "exact":  # type: ignore[attr-defined]
        pytest.skip("torch has no integer kernels for this processor, or their sums are not exact")
    monkeypatch.setattr(integer_layers, "integer_kernels", lambda _bits: "exact" if native else "missing")
    fake, plain = _layers(), _layers()
    made = quantise(
        {name: layer for name, layer in fake.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)},
        lambda _, weight: Quantizer(weight, bits, 8, per_channel=True, learned=False),
    )
    images = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(6))
    for _ in range(3):
        begin_batch(made)
        fake(images)
    converted = integer_layers.convert(plain, made)
    assert all(m.native == native for m in converted.modules() if isinstance(m, integer_layers.Integer))
    with torch.no_grad():
        torch.testing.assert_close(converted(images), fake.eval()(images), rtol=1e-3, atol=1e-3)


def test_that_batch_norms_are_folded_without_changing_the_result() -> None:
    torch.manual_seed(8)

    def model() -> nn.Module:
        torch.manual_seed(9)
        return image_model("resnet", "small", ImageShape(1, 8, 10))

    images = torch.randn(16, 1, 8, 8)
    fake, plain = model(), model()
    made = quantise(
        {name: layer for name, layer in fake.named_modules() if isinstance(layer, nn.Conv2d)},
        lambda _, weight: Quantizer(weight, 4, 8, per_channel=False, learned=False),
    )
    with torch.no_grad():
        for norm in (m for m in fake.modules() if isinstance(m, nn.BatchNorm2d)):
            norm.weight.normal_()  # of both signs
            norm.bias.normal_()
    for _ in range(20):
        begin_batch(made)
        fake(images)
    plain.load_state_dict({k: v for k, v in fake.state_dict().items() if "quantizer" not in k})
    with torch.inference_mode():
        for converted in (integer_layers.convert(copy.deepcopy(plain), made), copy.deepcopy(plain).eval()):
            before = converted(images)
            pairs = norms_behind(converted, images)
            assert len(pairs) == 9, "each convolution has its own"
            fold(converted, pairs)
            assert not any(isinstance(m, nn.BatchNorm2d) for m in converted.modules())
            torch.testing.assert_close(converted(images), before, rtol=1e-3, atol=2e-3)


def test_that_the_range_is_observed_once_a_batch_as_a_moving_average() -> None:
    quantizer = Quantizer(torch.ones(2, 2), 8, 8, per_channel=True, learned=False)
    for due, top in ((True, 4.0), (False, 100.0), (True, 8.0)):
        quantizer.due |= due
        quantizer.inputs(torch.tensor([-1.0, top]))
    assert float(quantizer.high) == pytest.approx(4.0 + 0.01 * (8.0 - 4.0))
    quantizer.observing = False
    quantizer.due = True
    quantizer.inputs(torch.tensor([-50.0, 50.0]))
    assert float(quantizer.low) == -1.0


@pytest.mark.parametrize("precision", ["int8-qat", "int4-qat", "int2-qat", "int1-qat"])
def test_that_the_converted_model_keeps_its_accuracy_and_is_smaller(record: Record, precision: str) -> None:
    events = record(*QUIET, f"precision={precision}", "train.epochs=6")
    facts = quantised(events)
    last = [event for event in events if isinstance(event, Evaluated)][-1]
    assert facts["evaluation"]["fake"]["metric"] == pytest.approx(last.accuracy)
    assert facts["evaluation"]["integer"]["metric"] == pytest.approx(last.accuracy, abs=0.01)
    assert last.accuracy > 0.93
    assert facts["bytes"]["integer"] < 0.45 * facts["bytes"]["fp32"]
    assert {"fp32", "bf16", "integer"} == facts["latency_s"]["64"].keys()
    assert len(facts["layers"]) == 4
    assert any("on integers" in event.message for event in events if isinstance(event, Incident))


@pytest.mark.parametrize("precision", ["int8-qat", "int4-qat", "int2-qat", "int1-qat"])
def test_that_one_seed_gives_one_curve(record: Record, precision: str) -> None:
    runs = [record(*QUIET, f"precision={precision}", "train.max_steps=8", "qat.measure=false") for _ in range(2)]
    first, second = ([e.loss for e in events if isinstance(e, StepDone)] for events in runs)
    assert first == second


def test_that_fewer_bits_round_more(record: Record) -> None:
    errors = [
        quantised(record(*QUIET, f"precision={name}", "train.epochs=1", "qat.ends=same"))["layers"]["features.3"]
        for name in ("int8-qat", "int4-qat", "int2-qat", "int1-qat")
    ]
    weights = [error["weight_error"] for error in errors]
    assert weights == sorted(weights)
    assert weights[0] < 0.01 < weights[1] < 0.2 < weights[2]


def test_that_training_is_plain_fp32_before_its_first_quantised_epoch(record: Record) -> None:
    def losses(*settings: str) -> list[tuple[int, float]]:
        events = record(*QUIET, "train.epochs=2", *settings)
        return [(event.epoch, event.loss) for event in events if isinstance(event, Evaluated)]

    late = losses("precision=int4-qat", "qat.start_epoch=2", "qat.measure=false")
    plain = losses("precision=fp32")
    assert late[0] == plain[0]
    assert late[1] != plain[1]


def test_that_batch_norm_can_be_frozen(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    from precgui.engine.loop import Loop

    counted: list[int] = []
    original = Loop._evaluate

    def spy(self: Loop, epoch: int) -> None:
        norms = [m for m in self.model.modules() if isinstance(m, nn.BatchNorm2d)]
        assert norms[0].num_batches_tracked is not None
        counted.append(int(norms[0].num_batches_tracked))
        original(self, epoch)

    monkeypatch.setattr(Loop, "_evaluate", spy)
    record(*QUIET, "precision=int8-qat", "train.epochs=3", "qat.freeze_bn_after_epoch=1", "qat.measure=false")
    assert counted == [23, 23, 23]


def test_that_checkpoints_and_learned_scales_go_with_it(record: Record) -> None:
    plain = record(*QUIET, "precision=int4-qat", "train.epochs=2", "qat.measure=false")
    again = record(*QUIET, "precision=int4-qat", "train.epochs=2", "qat.measure=false", "train.checkpointing=true")
    assert [e.loss for e in plain if isinstance(e, Evaluated)] == [e.loss for e in again if isinstance(e, Evaluated)]
    learned = quantised(record(*QUIET, "precision=int4-qat", "train.epochs=4", "qat.learned_scales=true"))
    assert learned["evaluation"]["integer"]["metric"] > 0.93


def test_that_a_model_without_layers_to_quantise_is_named(record: Record) -> None:
    with pytest.raises(EngineError, match="no linear or convolutional layer left"):
        record("precision=int8-qat", "precision_options.keep_fp32=*")


def test_that_settings_without_effect_are_told() -> None:
    settings = ["precision=int4-qat", "qat.start_epoch=99", "qat.learned_ranges=true"]
    wanted = config.load("digits-quick", [*settings, "optimizer.weight_decay=0"])
    made = precisions.make(wanted, torch.device("cpu"))
    made.convert(_layers())
    assert [note.partition(":")[0] for note in made.notes[1:]] == [
        "qat.start_epoch = 99 comes after the last epoch",
        "qat.learned_ranges",
    ]


def test_that_what_cannot_be_quantised_is_told(record: Record) -> None:
    events = record(
        *QUIET, "task=text", "model.name=lstm", "precision=int8-qat", "train.max_steps=2", "data.batch_size=2"
    )
    told = [event.message for event in events if isinstance(event, Incident)]
    assert "lstm cannot be quantised and stay in FP32" in told[1]


def test_that_the_section_explains_itself() -> None:
    assert config.load("digits-quick", ["qat.start_epoch=3"]).qat.start_epoch == 3
    with pytest.raises(config.ConfigError, match=r"qat\.start_epoch: 0 is too small"):
        config.load("digits-quick", ["qat.start_epoch=0"])
