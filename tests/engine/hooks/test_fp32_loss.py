"""A run of precgui's own whose loss is not finite in a narrow precision computes it again in FP32."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from precgui.engine import tasks, train
from precgui.engine.hooks.fp32_loss import Fp32Loss
from precgui.engine.tasks import Digits
from precgui.engine.tasks.base import Batch
from precgui.events import Event, Facts, StepDone
from tests.engine.conftest import Record


class Large(Digits):
    """The digits, the fourth batch beyond the range of FP16."""

    def train_batches(self) -> Iterable[Batch]:
        for number, (images, labels) in enumerate(super().train_batches(), 1):
            yield images * (1e6 if number == 4 else 1), labels


class NotANumber(Digits):
    def train_batches(self) -> Iterable[Batch]:
        for number, (images, labels) in enumerate(super().train_batches(), 1):
            yield images * (math.nan if number == 4 else 1), labels


class Coarse(Digits):
    """A loss that is infinite for outputs with the digits of BF16, and only for these."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        coarse = (outputs == outputs.bfloat16().float()).all().to(outputs.dtype)
        return super().loss(outputs, targets) / (1 - coarse)


def told(events: Sequence[Event]) -> Mapping[str, Any]:
    known = [event.values["fp32_repetition"] for event in events if isinstance(event, Facts) and
             "fp32_repetition" in event.values]  # fmt: skip
    return known[0] if known else {}


@pytest.mark.parametrize(
    ("task", "precision", "step", "finite"),
    [
        (Large, "fp16-amp", 4, True), (Large, "fp16-pure", 4, True), (Coarse, "bf16-amp", 1, True),
        (NotANumber, "fp16-amp", 4, False), (NotANumber, "bf16-pure", 4, False), (Large, "emulated:e4m3fn", 4, True),
    ],
)  # fmt: skip
def test_that_a_run_tells_whether_its_loss_is_finite_in_fp32(
    record: Record, monkeypatch: pytest.MonkeyPatch, task: type[Digits], precision: str, step: int, finite: bool
) -> None:
    monkeypatch.setitem(tasks.TASKS, "digits", task)
    events = record("train.max_steps=5", f"precision={precision}")
    loss = next(event.loss for event in events if isinstance(event, StepDone) and event.step == step)
    assert not math.isfinite(loss)
    fact = told(events)
    assert (fact["step"], fact["finite"], fact["part"], fact["why"]) == (step, finite, "forward and loss", "")


def test_that_runs_in_fp32_and_finite_runs_say_nothing(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(record("train.max_steps=3", "precision=bf16-amp")) == {}
    monkeypatch.setitem(tasks.TASKS, "digits", NotANumber)
    assert told(record("train.max_steps=5", "precision=fp32")) == {}


def test_that_the_loss_in_fp32_changes_no_bit_of_the_run(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.TASKS, "digits", Large)
    runs = []
    without = tuple(hook for hook in train.HOOKS if hook is not Fp32Loss)
    for hooks in (train.HOOKS, without):
        monkeypatch.setattr(train, "HOOKS", hooks)
        events = record("train.max_steps=12", "precision=fp16-amp", "model.name=cnn")
        runs.append([(e.loss, e.grad_norm) for e in events if isinstance(e, StepDone)] + [float(torch.rand(()))])
        assert bool(told(events)) == (hooks is not without)
    assert repr(runs[0]) == repr(runs[1])
