"""Schedules that are planned in steps and stepped in epochs, and those that are stepped as they are planned."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR

from tests.faults.class_faults import _fault as fault
from tests.faults.class_faults import _healthy as healthy
from tests.faults.published_faults import Open, batches, network

_STEPS, _EPOCH = 200, 20
_Make = Callable[[torch.optim.Optimizer], LRScheduler]


def _warm_up(step: int, *, num_warmup_steps: int, num_training_steps: int) -> float:
    """As transformers has it."""
    if step < num_warmup_steps:
        return step / max(1, num_warmup_steps)
    return max(0.0, (num_training_steps - step) / max(1, num_training_steps - num_warmup_steps))


def _train(opened: Open, make: _Make, *, every: int = _EPOCH, steps: int = _STEPS, group: int = 1,
           adam: bool = False) -> None:  # fmt: skip
    """`every`: optimizer steps for one of the schedule; `group`: batches for one of the optimizer."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3) if adam else torch.optim.SGD(model.parameters(), 0.1)
    schedule, recorder = make(optimizer), opened(model, optimizer)
    for place, (x, y) in enumerate(batches(steps * group), 1):
        loss = F.cross_entropy(model(x), y) / group
        loss.backward()
        if place % group:
            continue
        optimizer.step()
        optimizer.zero_grad()
        recorder.step(loss)
        if place // group % every == 0 and place // group < steps:
            schedule.step()
    recorder.close()


def _of_transformers(steps: int, warm_up: int) -> _Make:
    function = functools.partial(_warm_up, num_warmup_steps=warm_up, num_training_steps=steps)
    return lambda optimizer: LambdaLR(optimizer, function)


@fault("schedule-stepped-rarely", "stepped in epochs", "behind each optimizer.step()")
def one_cycle_in_epochs(opened: Open) -> None:
    _train(opened, lambda o: OneCycleLR(o, 0.3, total_steps=_STEPS))


@fault("schedule-stepped-rarely", "stepped in epochs", "behind each optimizer.step()")
def one_cycle_planned_by_epochs_and_batches(opened: Open) -> None:
    _train(opened, lambda o: OneCycleLR(o, 1e-2, epochs=_STEPS // 25, steps_per_epoch=25), every=25, adam=True)


@fault("schedule-stepped-rarely", "stepped in epochs", "behind each optimizer.step()")
def a_warm_up_of_transformers_in_epochs(opened: Open) -> None:
    _train(opened, _of_transformers(_STEPS, 30))


@healthy
def one_cycle_in_steps(opened: Open) -> None:
    _train(opened, lambda o: OneCycleLR(o, 0.05, total_steps=_STEPS), every=1)


@healthy
def one_cycle_in_steps_that_ends_early(opened: Open) -> None:
    _train(opened, lambda o: OneCycleLR(o, 0.3, total_steps=10 * _STEPS), every=1)


@healthy
def one_cycle_planned_in_epochs(opened: Open) -> None:
    _train(opened, lambda o: OneCycleLR(o, 0.3, total_steps=_STEPS // _EPOCH))


@healthy
def one_cycle_planned_in_epochs_that_ends_early(opened: Open) -> None:
    _train(opened, lambda o: OneCycleLR(o, 0.2, total_steps=90))


@healthy
def one_cycle_of_groups_of_batches(opened: Open) -> None:
    """Planned and stepped once for four batches."""
    _train(opened, lambda o: OneCycleLR(o, 0.3, total_steps=120), every=1, steps=120, group=4)


@healthy
def a_warm_up_of_transformers_in_steps(opened: Open) -> None:
    _train(opened, _of_transformers(_STEPS, 30), every=1)


@healthy
def a_warm_up_of_transformers_in_epochs_as_planned(opened: Open) -> None:
    _train(opened, _of_transformers(_STEPS // _EPOCH, 2))


@healthy
def a_cosine_in_epochs(opened: Open) -> None:
    _train(opened, lambda o: CosineAnnealingLR(o, _STEPS // _EPOCH))


@healthy
def a_decay_of_transformers_in_epochs(opened: Open) -> None:
    """Without a warm-up the rate is at its height from the first step on."""
    _train(opened, _of_transformers(_STEPS, 0))
