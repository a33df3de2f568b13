"""Hooks of the training loop: the moments of a run at which a feature takes part."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar

from torch import Tensor

from precgui.config import RunConfig
from precgui.engine.journal import Journal
from precgui.engine.precisions.base import Precision
from precgui.engine.run_parts import RunParts
from precgui.engine.tasks.base import Batch
from precgui.events import StepDone

_H = TypeVar("_H", bound="LoopHook")


def do_nothing(done: StepDone) -> None:
    """The end of a step for a hook that has nothing to do then."""


class LoopHook:
    """A feature of a run. The loop calls its methods in the order below; each does nothing by default.

    A hook reads what the step computes. Only `prepare_step` and `correct_update` may change it.
    """

    @classmethod
    def make(cls, run: TrainingRun) -> Self | None:
        """The hook of this run; None where its config has no use for it. Raises EngineError."""
        raise NotImplementedError

    def begin_run(self) -> None:
        """The run has started; no step has been made. Not called where a run goes on from a checkpoint."""

    def begin_epoch(self, epoch: int) -> None:
        """An epoch, counted from 1, begins; none of its batches has been drawn by this process."""

    def prepare_step(self, step: int) -> None:
        """The step, counted from 1, is about to begin; the precision may be changed here."""

    def begin_step(self, step: int, scale: float, batches: Sequence[Batch]) -> None:
        """The step begins; the gradients of the last one are gone."""

    def precision_changed(self, precision: Precision) -> None:
        """The steps from the next one on are made in this precision."""

    def gradients(self) -> None:
        """The gradients are complete and unscaled, not yet clipped."""

    def norms(self, weights: Sequence[Tensor], norms: Sequence[Tensor]) -> None:
        """L2 norms of the unscaled gradients of these weights, on their device; they are not yet clipped."""

    def totals(self, loss: Tensor, norm: Tensor) -> None:
        """The loss and the L2 norm of all unscaled gradients, on their device; weights are those of the step."""

    def before_update(self) -> None:
        """The gradients are clipped, the optimizer is about to step."""

    def correct_update(self, step: int) -> None:
        """The optimizer has stepped; weights may be changed here."""

    def after_update(self, *, skipped: bool) -> None:
        """The weights are what the next step will see."""

    def read(self, loss: Tensor, norm: Tensor) -> tuple[float, float] | None:
        """The numbers of two tensors on a device, in one transfer with all that this hook has left there.

        None where it has nothing to read. No operation of the step follows.
        """
        return None

    def end_step(self, done: StepDone) -> None:
        """Called after the step and its event."""

    def reads_now(self, step: int) -> bool:
        """Whether `end_step` of this step must come before the next step, because that depends on it.

        Asked on GPUs only, when all of the step is queued. Where no hook says so, `read_later` and `leave_step` come in
        the place of `read` and `end_step`, and the next step is queued before the numbers of this one are read.
        """
        return False

    def read_later(self, loss: Tensor, norm: Tensor) -> Callable[[], tuple[float, float]] | None:
        """As `read`, but nothing waits for the device before what this returns is called."""
        return None

    def leave_step(self) -> Callable[[StepDone], None]:
        """Lets go of the step; returns what is called in the place of `end_step` when the next one is queued."""
        return self.end_step

    def evaluation(self) -> contextlib.AbstractContextManager[None]:
        """A context in which the model is evaluated, and in which the run ends."""
        return contextlib.nullcontext()

    def end_steps(self) -> None:
        """The last step has been made, or the run was stopped after a step; not called where an error ended it."""

    def end_run(self) -> None:
        """All steps have been made."""

    def close(self) -> None:
        """No step follows, whatever ended the run."""

    def state(self) -> dict[str, Any]:
        """Plain values and tensors without which the steps that follow would be other ones, for a checkpoint."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up the state of a checkpoint, before `begin_epoch`. Raises ValueError or KeyError for another one."""


class HookList(LoopHook):
    """Calls every hook of a list, in its order."""

    def __init__(self) -> None:
        self.hooks: list[LoopHook] = []

    def begin_run(self) -> None:
        for hook in self.hooks:
            hook.begin_run()

    def begin_epoch(self, epoch: int) -> None:
        for hook in self.hooks:
            hook.begin_epoch(epoch)

    def prepare_step(self, step: int) -> None:
        for hook in self.hooks:
            hook.prepare_step(step)

    def begin_step(self, step: int, scale: float, batches: Sequence[Batch]) -> None:
        for hook in self.hooks:
            hook.begin_step(step, scale, batches)

    def precision_changed(self, precision: Precision) -> None:
        for hook in self.hooks:
            hook.precision_changed(precision)

    def gradients(self) -> None:
        for hook in self.hooks:
            hook.gradients()

    def norms(self, weights: Sequence[Tensor], norms: Sequence[Tensor]) -> None:
        for hook in self.hooks:
            hook.norms(weights, norms)

    def totals(self, loss: Tensor, norm: Tensor) -> None:
        for hook in self.hooks:
            hook.totals(loss, norm)

    def before_update(self) -> None:
        for hook in self.hooks:
            hook.before_update()

    def correct_update(self, step: int) -> None:
        for hook in self.hooks:
            hook.correct_update(step)

    def after_update(self, *, skipped: bool) -> None:
        for hook in self.hooks:
            hook.after_update(skipped=skipped)

    def read(self, loss: Tensor, norm: Tensor) -> tuple[float, float] | None:
        return next((values for hook in self.hooks if (values := hook.read(loss, norm)) is not None), None)

    def end_step(self, done: StepDone) -> None:
        for hook in self.hooks:
            hook.end_step(done)

    def reads_now(self, step: int) -> bool:
        return any(hook.reads_now(step) for hook in self.hooks)

    def read_later(self, loss: Tensor, norm: Tensor) -> Callable[[], tuple[float, float]] | None:
        return next((read for hook in self.hooks if (read := hook.read_later(loss, norm)) is not None), None)

    def leave_steps(self) -> list[Callable[[StepDone], None]]:
        return [hook.leave_step() for hook in self.hooks]

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        with contextlib.ExitStack() as entered:
            for hook in self.hooks:
                entered.enter_context(hook.evaluation())
            yield

    def end_steps(self) -> None:
        for hook in self.hooks:
            hook.end_steps()

    def end_run(self) -> None:
        for hook in self.hooks:
            hook.end_run()

    def close(self) -> None:
        for hook in self.hooks:
            hook.close()


class EarlierSteps(Protocol):
    """The steps that a run made before it goes on; see `precgui.engine.checkpoint.resume`."""

    @property
    def sentence(self) -> str:
        """A sentence about the break, for the record."""
        ...

    @property
    def steps_in_epoch(self) -> int:
        """Those of the present epoch."""
        ...

    def other_threads(self, run: TrainingRun) -> str:
        """A sentence where the run goes on with another number of CPU threads; empty where it does not."""
        ...

    def begin(self, run: TrainingRun) -> None:
        """Put their state into a run that has just been built. Raises EngineError where it differs."""

    def begin_epoch(self, run: TrainingRun) -> None:
        """Random numbers as at the beginning of the epoch, whose order of data they gave."""

    def pass_by(self, run: TrainingRun, groups: Iterator[Any]) -> None:
        """Draw the batches of the steps that were made; random numbers are then those after the last of them."""


class RankExchange(Protocol):
    """The processes of a run that has several; see `precgui.engine.parallel.group`."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def exchange(self, numbers: Sequence[float]) -> list[list[float]]: ...


class TrainingRun:
    """A run as its hooks and its strategy know it. `step` is the one that is being made, 0 before the first.

    `epoch` is the present one, 0 before the first. `resumed` is set until a run that goes on is where it was.
    """

    def __init__(self, config: RunConfig, parts: RunParts, journal: Journal, total_steps: int) -> None:
        self.config, self.parts, self.journal, self.total_steps = config, parts, journal, total_steps
        self.step = self.epoch = 0
        self.resumed: EarlierSteps | None = None
        self.group: RankExchange | None = None  # where several processes train
        self.wants_checkpoint = False  # after the present step; the first process decides for all
        self.hooks = HookList()
        self.stop_reason = ""

    def make_hooks(self, kinds: Sequence[type[LoopHook]]) -> None:
        """Make the hooks that the config asks for, in this order. Raises EngineError."""
        for kind in kinds:
            if (hook := kind.make(self)) is not None:
                self.hooks.hooks.append(hook)

    def hook(self, kind: type[_H]) -> _H | None:
        """The hook of a kind, None where the run has none or has not made it yet."""
        return next((hook for hook in self.hooks.hooks if isinstance(hook, kind)), None)

    def stop(self, reason: str) -> None:
        """End the run after the present step."""
        self.stop_reason = reason

    def use(self, parts: RunParts) -> None:
        """Go on with these parts, which have another precision."""
        self.parts = parts
        self.hooks.precision_changed(parts.precision)

    def note_precision(self) -> None:
        """Emit the notes of the present precision."""
        precision = self.parts.precision
        for note in precision.notes:
            self.journal.incident(self.step, "emulated" if precision.labels else "note", "info", note)
