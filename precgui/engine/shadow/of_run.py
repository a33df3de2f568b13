"""A step of a recorded run, made again from its config, with its shadow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from precgui.config import RunConfig
from precgui.engine.shadow.record import record_step
from precgui.engine.shadow.step import Shadow
from precgui.engine.train import train_up_to


@dataclass(frozen=True)
class RepeatedStep:
    """The shadow of a step, and the losses of the steps before it, to be compared with the recorded ones."""

    shadow: Shadow
    losses: list[float]


def shadow_of_run(config: RunConfig, step: int, stopped: Callable[[], bool]) -> RepeatedStep:
    """Train as `config` says up to a step, counted from 1, and make it with its shadow.

    On a CPU the repeated steps are those of the run bit for bit; elsewhere compare the losses. Raises EngineError for a
    step that the run does not have, Stopped when `stopped()` became true.
    """
    shadows: list[Shadow] = []
    losses = train_up_to(
        config, step, stopped, lambda work, parameters: shadows.append(Shadow(record_step(work, parameters)))
    )
    return RepeatedStep(shadows[0], losses)
