"""A step of a recorded run, made again from its config, with its shadow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from precgui.config import RunConfig
from precgui.engine.errors import EngineError
from precgui.engine.shadow.record import record_step
from precgui.engine.shadow.step import Shadow
from precgui.engine.snapshot.replay import StepProgress, repeat_from_snapshot, train_up_to
from precgui.engine.snapshot.step import read_snapshot
from precgui.sentences import Sentence


@dataclass(frozen=True)
class RepeatedStep:
    """The shadow of a step, its loss scale, and the losses before it, to be compared with the recorded ones."""

    shadow: Shadow
    losses: list[float]
    scale: float


def shadow_of_run(
    config: RunConfig, step: int, stopped: Callable[[], bool], progress: StepProgress = lambda step: None
) -> RepeatedStep:
    """Train as `config` says up to a step, counted from 1, and make it with its shadow.

    On a CPU the repeated steps are those of the run bit for bit; elsewhere compare the losses. Raises EngineError for a
    step that the run does not have, Stopped when `stopped()` became true. `progress` is called before each step.
    """
    shadows: list[Shadow] = []
    losses, scale = train_up_to(
        config, step, stopped, lambda work, parameters: shadows.append(Shadow(record_step(work, parameters))), progress
    )
    return RepeatedStep(shadows[0], losses, scale)


def shadow_of_snapshot(config: RunConfig, path: Path, step: int) -> RepeatedStep:
    """Make the step of a snapshot file with its shadow; `config` is that of the run.

    Raises EngineError for a file that is no snapshot of this step or of another model.
    """
    snapshot = read_snapshot(path)
    if snapshot.step != step:
        raise EngineError(
            Sentence(
                "{file} is of step {step}, not of step {asked}; give it its name back",
                file=path,
                step=snapshot.step,
                asked=step,
            )
        )
    shadows: list[Shadow] = []
    try:
        repeat_from_snapshot(
            config, snapshot, lambda work, parameters: shadows.append(Shadow(record_step(work, parameters)))
        )
    except (IndexError, RuntimeError, TypeError, ValueError) as error:  # of torch, on a batch that fits no model
        reason = " ".join(str(error).split())[:300]
        raise EngineError(
            Sentence(
                "{file} holds a step that cannot be made again: {reason}; record it again", file=path, reason=reason
            )
        ) from None
    return RepeatedStep(shadows[0], [], snapshot.scale)
