"""One step of a run made again: after the steps before it, or from its snapshot."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn

from precgui.config import RunConfig
from precgui.engine import backend_flags
from precgui.engine.errors import EngineError, Stopped
from precgui.engine.journal import Journal
from precgui.engine.loop import Loop
from precgui.engine.snapshot.step import StepSnapshot, random_state, set_random_state
from precgui.engine.tasks.base import Batch
from precgui.engine.train import make_loop, unrecorded
from precgui.sentences import Sentence

Inspect = Callable[[Callable[[], Tensor], list[nn.Parameter]], None]
StepProgress = Callable[[int], None]  # called before each step with its number


def train_up_to(
    config: RunConfig,
    step: int,
    stopped: Callable[[], bool],
    inspect: Inspect,
    progress: StepProgress = lambda step: None,
) -> tuple[list[float], float]:
    """Train to the step before `step`, then call `inspect(forward_and_backward, parameters)` in its place.

    Nothing is recorded. Returns the losses of the steps before and the loss scale of this one. Raises EngineError where
    the run has fewer steps or the config cannot be trained, Stopped when `stopped()` became true before.
    """
    with backend_flags.restored():
        losses, snapshot = _trained_to(_quiet_loop(config, step, stopped), step, inspect, progress)
    return losses, snapshot.scale


def train_to_snapshot(
    config: RunConfig, step: int, stopped: Callable[[], bool], progress: StepProgress = lambda step: None
) -> StepSnapshot:
    """Train to the step before `step` and return the state before it. Raises as `train_up_to`."""
    with backend_flags.restored():
        return _trained_to(_quiet_loop(config, step, stopped), step, lambda work, parameters: None, progress)[1]


def repeat_from_snapshot(config: RunConfig, snapshot: StepSnapshot, inspect: Inspect) -> None:
    """Call `inspect(forward_and_backward, parameters)` with the state of a snapshot of a run of `config`.

    Raises EngineError where the weights of the snapshot do not fit the model of the config.
    """
    scaling = config.scaling.model_copy(update={"initial_scale": snapshot.scale})
    with backend_flags.restored():
        loop = _quiet_loop(config.model_copy(update={"scaling": scaling}), snapshot.step, lambda: False)
        loop.run.step = snapshot.step
        try:
            loop.model.load_state_dict(dict(snapshot.weights))
        except RuntimeError as error:
            raise EngineError(
                Sentence("the snapshot is of another model: {why}", why=str(error).splitlines()[-1].strip())
            ) from None
        loop.begin_epoch(math.ceil(snapshot.step / loop.steps_per_epoch))
        loop.run.parts.precision.continue_from(snapshot.batch_count)
        set_random_state(snapshot, loop.device)
        _inspected(loop, list(snapshot.batches), inspect)


def _quiet_loop(config: RunConfig, step: int, stopped: Callable[[], bool]) -> Loop:
    """The loop of a run that leaves no record. Raises EngineError where it has no such step."""
    loop = make_loop(unrecorded(config), Journal(lambda event: None), stopped)
    if not 1 <= step <= loop.run.total_steps:
        raise EngineError(
            Sentence(
                "the run has no step {step}; its steps are 1 to {total_steps}",
                step=step,
                total_steps=loop.run.total_steps,
            )
        )
    return loop


def _trained_to(loop: Loop, step: int, inspect: Inspect, progress: StepProgress) -> tuple[list[float], StepSnapshot]:
    """The losses of the steps before `step`, which `inspect` makes, and the state before it. Raises Stopped."""
    losses: list[float] = []
    loop.begin()
    try:
        for batches, data_s in loop.batches():
            progress(loop.run.step)
            if loop.run.step == step:
                return losses, _inspected(loop, batches, inspect)
            losses.append(loop.make_step(batches, data_s).loss)
    finally:
        loop.hooks.close()
    raise Stopped


def _inspected(loop: Loop, batches: list[Batch], inspect: Inspect) -> StepSnapshot:
    """Let `inspect` make the present step; returns the state before it."""
    loop.prepare_step()
    precision, model = loop.run.parts.precision, loop.model
    before = StepSnapshot(
        loop.run.step, precision.scale, precision.batch_count, batches, model.state_dict(), *random_state(loop.device)
    )
    parameters = [p for p in model.parameters() if p.requires_grad]
    inspect(lambda: loop.forward_and_backward(batches), parameters)
    return before
