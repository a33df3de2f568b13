"""The training loop: what it promises about seeds, order, events and endings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import pytest
import torch
from torch import nn

from precgui import config
from precgui.engine import loop, setup, tasks
from precgui.engine.errors import EngineError
from precgui.engine.tasks import Digits
from precgui.engine.tasks.base import Batch
from precgui.events import Evaluated, Event, Incident, RunEnded, RunStarted, StepDone
from precgui.sentences import Sentence
from tests.engine.conftest import Record

PRECISIONS = list(config.PRECISIONS)


def steps(events: Sequence[Event]) -> list[StepDone]:
    return [event for event in events if isinstance(event, StepDone)]


def incidents(events: Sequence[Event], kind: str) -> list[Incident]:
    return [event for event in events if isinstance(event, Incident) and event.kind == kind]


def test_that_two_fp32_runs_with_one_seed_are_equal_bit_for_bit(record: Record) -> None:
    first, second = (steps(record("train.max_steps=30")) for _ in range(2))
    assert [(s.loss, s.grad_norm) for s in first] == [(s.loss, s.grad_norm) for s in second]


def test_that_another_seed_gives_another_run(record: Record) -> None:
    assert steps(record("train.max_steps=1"))[0].loss != steps(record("train.max_steps=1", "seed=1"))[0].loss


def test_that_a_rounding_twin_starts_one_ulp_away_and_learns_the_same_batches(record: Record) -> None:
    run, twin = record("train.max_steps=2"), record("train.max_steps=2", "train.rounding_twin=true")
    hashes = [events[0].engine["initial_weights_sha256"] for events in (run, twin) if isinstance(events[0], RunStarted)]
    assert hashes[0] != hashes[1]
    first, second = steps(run)[0].loss, steps(twin)[0].loss
    assert first == pytest.approx(second, rel=1e-5)
    again = record("train.max_steps=2", "train.rounding_twin=true")
    assert [step.loss for step in steps(again)] == [step.loss for step in steps(twin)]


def test_that_no_weight_moves_by_more_than_one_ulp() -> None:
    model = nn.Linear(50, 40)
    before = model.weight.detach().clone()
    setup.move_by_one_ulp(model, 3)
    up, down = (torch.nextafter(before, torch.tensor(way)) for way in (torch.inf, -torch.inf))
    moved = [int((model.weight == place).sum()) for place in (down, before, up)]
    assert sum(moved) == before.numel()
    assert min(moved) > before.numel() // 4


def test_that_each_step_tells_its_cpu_time(record: Record) -> None:
    assert all(0 <= step.cpu_s < 60 for step in steps(record("train.max_steps=3")))


def test_that_all_precisions_start_from_the_same_weights_and_batch(record: Record) -> None:
    runs = [record("train.max_steps=1", f"precision={name}") for name in PRECISIONS]
    started = [events[0] for events in runs]
    assert all(isinstance(event, RunStarted) for event in started)
    assert len({event.engine["initial_weights_sha256"] for event in started if isinstance(event, RunStarted)}) == 1
    losses = {name: steps(events)[0].loss for name, events in zip(PRECISIONS, runs, strict=True)}
    fewest = ("int2-qat", "int1-qat")  # three and two values for a weight
    near = [loss for name, loss in losses.items() if name not in fewest]
    assert max(near) - min(near) < 0.06
    assert all(abs(losses[name] - losses["fp32"]) < 0.15 for name in fewest)
    assert [name for name, loss in losses.items() if loss == losses["fp32"]] == ["fp32"], "each precision must round"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_that_each_precision_learns_the_digits(record: Record, precision: str) -> None:
    events = record(f"precision={precision}", "train.epochs=2", "record.tensors=false")
    last = [event for event in events if isinstance(event, Evaluated)][-1]
    assert last.accuracy > 0.95
    ended = events[-1]
    assert isinstance(ended, RunEnded)
    assert ended.status == "completed"


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_that_the_schedule_reaches_every_step(record: Record, optimizer: str) -> None:
    rates = [s.lr for s in steps(record("train.max_steps=10", f"optimizer.name={optimizer}", "optimizer.lr=0.002"))]
    assert rates[0] == 0.002
    assert rates == sorted(rates, reverse=True)
    assert rates[5] == pytest.approx(0.001)


def test_that_a_step_is_described_by_built_in_types_and_sentences_only(record: Record) -> None:
    for event in record("train.max_steps=2", "precision=fp16-amp"):
        for field in dataclasses.fields(event):
            assert type(getattr(event, field.name)) in (int, float, bool, str, dict, tuple, bytes, Sentence)


def test_that_the_gradient_norm_does_not_depend_on_the_loss_scale(record: Record) -> None:
    norms = [
        steps(record("train.max_steps=1", "precision=fp16-amp", f"scaling.initial_scale={scale}"))[0].grad_norm
        for scale in (1024.0, 4096.0)
    ]
    reference = steps(record("train.max_steps=1"))[0].grad_norm
    assert norms == pytest.approx([reference, reference], rel=5e-3)


def test_that_clipping_limits_the_unscaled_gradient(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    before: dict[str, torch.Tensor] = {}
    after: dict[str, torch.Tensor] = {}
    original = loop.Loop.queue_step

    def spy(self: loop.Loop, batch: list[Batch], data_s: float) -> None:
        before.update({n: p.detach().clone() for n, p in self.model.named_parameters()})
        original(self, batch, data_s)
        after.update({n: p.detach().clone() for n, p in self.model.named_parameters()})

    monkeypatch.setattr(loop.Loop, "queue_step", spy)
    events = record("train.max_steps=1", "precision=fp16-amp", "train.clip_norm=0.25", "optimizer.momentum=0")
    moved = math.sqrt(sum(float((after[n] - before[n]).square().sum()) for n in before))
    assert steps(events)[0].grad_norm > 0.25, "the norm is reported as it was before clipping"
    assert moved == pytest.approx(0.05 * 0.25, rel=1e-3)


def test_that_a_loss_scale_too_high_skips_steps_backs_off_and_then_trains(record: Record) -> None:
    events = record("train.max_steps=40", "precision=fp16-amp", "scaling.initial_scale=1e9")
    taken = steps(events)
    skipped = [s for s in taken if s.skipped]
    assert skipped
    assert not taken[-1].skipped
    assert len(incidents(events, "skipped_step")) == len(skipped)
    assert [s.scale for s in taken[:3]] == [1e9, 5e8, 2.5e8]
    assert len(incidents(events, "nonfinite_gradient")) == len(skipped)
    assert all(math.isfinite(s.loss) for s in taken), "the loss is reported unscaled"
    assert all(i.module for i in incidents(events, "nonfinite_gradient")), "the parameter is named"


def test_that_the_scale_grows_after_the_interval(record: Record) -> None:
    events = record("train.max_steps=9", "precision=fp16-amp", "scaling.initial_scale=256", "scaling.growth_interval=4")
    assert [s.scale for s in steps(events)] == [256] * 4 + [512] * 4 + [1024]
    assert len(incidents(events, "scale_change")) == 2


def test_that_a_static_scale_stays_even_when_steps_are_skipped(record: Record) -> None:
    events = record("train.max_steps=5", "precision=fp16-amp", "scaling.mode=static", "scaling.initial_scale=1e9")
    assert {s.scale for s in steps(events)} == {1e9}
    assert all(s.skipped for s in steps(events))


def test_that_without_scaling_the_scale_is_one(record: Record) -> None:
    for settings in (["precision=fp32"], ["precision=fp16-amp", "scaling.mode=none"]):
        assert {s.scale for s in steps(record("train.max_steps=2", *settings))} == {1.0}


def test_that_a_stop_ends_the_run_after_the_present_step(record: Record) -> None:
    seen = 0

    def stopped() -> bool:
        nonlocal seen
        seen += 1
        return seen > 6

    events = record(stopped=stopped)
    ended = events[-1]
    assert isinstance(ended, RunEnded)
    assert ended.status == "stopped"
    assert f"after step {len(steps(events))} of 460" in ended.message


def test_that_a_device_that_is_not_there_is_named(record: Record) -> None:
    with pytest.raises(EngineError, match=r"device xpu:7 is not there.*choose device = auto or cpu"):
        record("device=xpu:7")


def test_that_every_batch_of_an_epoch_is_seen_once(record: Record) -> None:
    events = record("train.epochs=1", "data.batch_size=100")
    assert sum(s.samples for s in steps(events)) == 1438
    assert [s.samples for s in steps(events)][-1] == 38


def test_that_loader_processes_give_the_same_batches(record: Record) -> None:
    alone, helped = (steps(record("train.max_steps=3", f"data.workers={n}")) for n in (0, 1))
    assert [s.loss for s in alone] == [s.loss for s in helped]


def test_that_training_and_validation_images_are_apart() -> None:
    task = Digits(config.load("digits-quick"))
    training = {image.numpy().tobytes() for batch, _ in task.train_batches() for image in batch}
    validation = {image.numpy().tobytes() for batch, _ in task.validation_batches() for image in batch}
    assert not training & validation


class _NanAfterFive(Digits):
    """The digits, with one NaN pixel in the sixth batch."""

    def train_batches(self) -> Iterable[Batch]:
        for number, (images, labels) in enumerate(super().train_batches(), 1):
            if number == 6:
                images[3, 0, 4, 4] = float("nan")
            yield images, labels


def test_that_nan_in_the_data_is_told_in_its_very_step(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.TASKS, "digits", _NanAfterFive)
    events = record("train.max_steps=8")
    assert [i.step for i in incidents(events, "nonfinite_loss")] == [6, 7, 8], "without a scaler the weights are lost"
    assert incidents(events, "nonfinite_gradient")[0].step == 6
    assert math.isnan(steps(events)[5].loss)


def test_that_a_scaler_saves_the_weights_from_nan_in_the_data(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.TASKS, "digits", _NanAfterFive)
    events = record("train.max_steps=8", "scaling.mode=dynamic", "model.size=small")
    assert [s.step for s in steps(events) if s.skipped][:1] == [6]


class _Broken(Digits):
    def model(self) -> nn.Module:
        return nn.Linear(3, 3)


def test_that_an_error_of_the_model_reaches_the_caller(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.TASKS, "digits", _Broken)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        record()
