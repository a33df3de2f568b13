"""Precision that changes during training: weights and optimizer go on, triggers are reached when they should be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from precgui import config
from precgui.engine.errors import EngineError
from precgui.engine.export.script import script
from precgui.engine.hooks.precision_schedule import ScheduleWatch, small_share
from precgui.engine.precisions.conversion import Conversion
from precgui.engine.snapshot.replay import train_up_to
from precgui.engine.train import train_quietly
from precgui.events import Event, Facts, Incident, StepDone

Record = Callable[..., list[Event]]
SMALL = ["model.name=mlp", "train.max_steps=12", "record.tensors=false", "train.deterministic=true"]


def losses(events: list[Event]) -> list[float]:
    return [event.loss for event in events if isinstance(event, StepDone)]


def changes(events: list[Event]) -> list[tuple[int, str]]:
    return [(e.step, e.message) for e in events if isinstance(e, Incident) and e.kind == "precision_change"]


def test_that_a_change_to_the_same_precision_changes_nothing(record: Record) -> None:
    assert losses(record(*SMALL, "precision_schedule=step:5=fp32")) == losses(record(*SMALL))


def test_that_steps_before_a_change_are_those_of_the_first_precision_and_later_ones_differ(record: Record) -> None:
    plain, changed = losses(record(*SMALL)), losses(record(*SMALL, "precision_schedule=step:5=emulated:e2m1"))
    assert changed[:4] == plain[:4]
    assert changed[4] != plain[4]


def test_that_going_back_is_the_precision_again_and_optimizer_state_is_kept(record: Record) -> None:
    schedule = "precision_schedule=step:4=emulated:e4m3fn, step:5=fp32"
    settings = [*SMALL, "optimizer.name=adamw", "optimizer.lr=0.001"]
    requested = config.load("digits-quick", ["device=cpu", "threads=1", *settings, schedule])
    trained = train_quietly(requested, lambda: False)
    assert not any("Emulated" in type(module).__name__ for module in trained.model.modules())
    steps = {float(state["step"]) for state in trained.optimizer.state.values()}
    assert steps == {12.0}
    assert trained.precision.config.precision == "fp32"


def test_that_each_change_is_an_event_and_a_fact_with_its_trigger(record: Record) -> None:
    events = record(*SMALL, "precision_schedule=step:3=bf16-amp, share:0.5=emulated:e5m2")
    assert changes(events) == [
        (3, "precision changed from fp32 to bf16-amp (step:3)"),
        (7, "precision changed from bf16-amp to emulated:e5m2 (share:0.5)"),
    ]
    facts = [event.values for event in events if isinstance(event, Facts) and "precision_changes" in event.values]
    later = facts[-1]["precision_changes"][1]
    assert {key: later[key] for key in ("step", "precision", "trigger")} == {
        "step": 7, "precision": "emulated:e5m2", "trigger": "share:0.5",
    }  # fmt: skip
    assert any("e5m2 is emulated" in e.message for e in events if isinstance(e, Incident) and e.step == 7)


def test_that_the_formats_of_the_first_step_after_each_change_are_counted(record: Record) -> None:
    events = record(*SMALL, "precision_schedule=step:3=bf16-amp, step:7=emulated:e5m2")
    facts = [event.values for event in events if isinstance(event, Facts)]
    first = next(values["census"] for values in facts if "census" in values)["formats"]
    changed = [values["precision_changes"] for values in facts if "precision_changes" in values][-1]
    assert set(first) == {"fp32"}
    assert [set(change["census"]["formats"]) for change in changed] == [{"bf16"}, {"e5m2 (emulated)"}]
    assert changed[0]["census"]["flops"] == changed[1]["census"]["flops"] > 0
    assert [change["certificate"]["fp32_products"] for change in changed] == ["fp32", "fp32"]


def test_that_trainings_reach_a_plateau_twice_and_small_gradients(record: Record) -> None:
    flat = record(*SMALL, "optimizer.lr=1e-7", "precision_schedule=plateau:2=bf16-amp, plateau:2=emulated:e4m3fn")
    assert [step for step, _ in changes(flat)] == [5, 9]
    assert [message.partition(" (")[2][:9] for _, message in changes(flat)] == ["plateau:2", "plateau:2"]
    unscaled = ["precision=fp16-amp", "scaling.mode=none", "precision_schedule=underflow:0.05=bf16-amp"]
    assert [(step, "% of the gradients" in text) for step, text in changes(record(*SMALL, *unscaled))] == [(11, True)]


def test_that_loss_scaling_begins_with_fp16(record: Record) -> None:
    events = record(*SMALL, "precision_schedule=step:4=fp16-amp", "scaling.initial_scale=1024")
    assert [event.scale for event in events if isinstance(event, StepDone)][2:5] == [1.0, 1024.0, 1024.0]


def test_that_a_step_after_a_change_is_made_again_in_its_precision() -> None:
    requested = config.load("digits-quick", ["device=cpu", *SMALL, "precision_schedule=step:4=emulated:e2m1"])
    inspected: list[float] = []

    def inspect(work: Callable[[], torch.Tensor], parameters: Any) -> None:
        inspected.append(float(work()))

    before, _ = train_up_to(requested, 6, lambda: False, inspect)
    plain, _ = train_up_to(requested.model_copy(update={"precision_schedule": {}}), 6, lambda: False, inspect)
    assert before[:3] == plain[:3] and before[3:] != plain[3:] and inspected[0] != inspected[1]


def watch(schedule: str, total_steps: int = 100, precision: str = "fp32", gradients: Any = list) -> ScheduleWatch:
    settings = [f"precision={precision}", f"precision_schedule={schedule}"]
    return ScheduleWatch(config.load("digits-quick", settings), total_steps, gradients)


def done(step: int, loss: float) -> StepDone:
    return StepDone(step, 0.0, loss, 1.0, False, 0.1, 1.0, 0.1, 0.0, 1, math.nan)


def test_that_a_plateau_is_reached_when_the_mean_loss_no_longer_falls() -> None:
    watched = watch("plateau:3=bf16-amp")
    for step, loss in enumerate([5, 4, 3, 2, 1, 0.9, 1.0, 1.0, 1.0, 1.0, 0.99, 1.0], 1):
        if (due := watched.due(step)) is not None:
            break
        watched.end_step(done(step, loss))
    assert due is not None and due[0] == "bf16-amp" and "mean loss" in due[1]
    assert step == 11
    assert watched.due(step + 1) is None


def test_that_underflow_counts_small_gradients_at_the_loss_scale() -> None:
    tiny = torch.tensor([1.0, 2.0**-20, 2.0**-18, 0.0])
    assert small_share([tiny], 2.0**-14) == pytest.approx(2 / 3)
    assert small_share([torch.zeros(3)], 1.0) == 0.0
    for scale, expected in ((1.0, True), (2.0**7, False)):
        watched = watch("underflow:0.4=fp32", precision="fp16-amp", gradients=lambda: [tiny])
        watched.begin_step(10, scale)
        watched.gradients()
        assert (watched.due(11) is not None) is expected


def test_that_a_conversion_is_undone_but_not_what_came_later() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    conversion = Conversion(model)
    model[0].forward = lambda x: x
    model[0].extra = 3
    conversion.converted()
    model[0].later = 4
    conversion.undo()
    assert "forward" not in vars(model[0]) and not hasattr(model[0], "extra") and model[0].later == 4


def test_that_a_run_with_a_schedule_is_no_script() -> None:
    requested = config.load("digits-quick", ["precision_schedule=step:4=bf16-amp"])
    with pytest.raises(EngineError, match="a script has one precision"):
        script(requested, {})
