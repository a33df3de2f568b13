"""One training run: config in, events out. Knows no window, no file and no particular precision."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from precgui.config import RunConfig
from precgui.engine import backend_flags, execution
from precgui.engine import device as devices
from precgui.engine.adapters.ending import finish_adapters
from precgui.engine.callback import CallbackList
from precgui.engine.callbacks import build_callbacks
from precgui.engine.early_end import EarlyEnd
from precgui.engine.errors import EngineError, Stopped
from precgui.engine.journal import Journal
from precgui.engine.precision_schedule import ChangeCensus, ScheduleWatch
from precgui.engine.pruning.pruner import make_pruner
from precgui.engine.setup import RunParts, build_run, change_precision
from precgui.engine.snapshot.step import StepSnapshot, random_state, set_random_state
from precgui.engine.tasks import Batch
from precgui.engine.telemetry.parameters import tensor_count
from precgui.engine.update import learning_rate, single_norms, total_norm
from precgui.events import Emit, Evaluated, RunEnded, RunStarted, StepDone


def train(config: RunConfig, emit: Emit, stopped: Callable[[], bool]) -> None:
    """Train as `config` says, emitting events from RunStarted to RunEnded; ends early once `stopped()` is true.

    Event times are seconds since the call. Raises EngineError for faults that the user can correct (a device that
    is not there), MemoryError when a batch does not fit, and lets errors of the model through; in all cases no RunEnded
    has been emitted. torch's process-wide switches are afterwards as they were before.
    """
    journal = Journal(emit)
    with backend_flags.restored():
        try:
            Training(config, journal, stopped).run()
        except Stopped:
            journal.emit(RunEnded(journal.now(), "stopped", "stopped before the first step"))
        except RuntimeError as error:
            if devices.is_out_of_memory(error):
                raise MemoryError(devices.out_of_memory_text(error)) from error
            if reported := execution.switch_to_blame(error, config.train):
                raise EngineError(reported) from error
            raise


Inspect = Callable[[Callable[[], Tensor], list[nn.Parameter]], None]


def train_up_to(
    config: RunConfig, step: int, stopped: Callable[[], bool], inspect: Inspect
) -> tuple[list[float], float]:
    """Train to the step before `step`, then call `inspect(forward_and_backward, parameters)` in its place.

    Nothing is recorded. Returns the losses of the steps before and the loss scale of this one. Raises EngineError where
    the run has fewer steps or the config cannot be trained, Stopped when `stopped()` became true before.
    """
    losses: list[float] = []
    with backend_flags.restored():
        journal = Journal(lambda event: losses.append(event.loss) if isinstance(event, StepDone) else None)
        training = _UpTo(_unrecorded(config), journal, stopped, step, inspect)
        training.run()
    if training.before is None:
        raise Stopped
    return losses, training.before.scale


def train_to_snapshot(config: RunConfig, step: int, stopped: Callable[[], bool]) -> StepSnapshot:
    """Train to the step before `step` and return the state before it. Raises as `train_up_to`."""
    with backend_flags.restored():
        training = _UpTo(_unrecorded(config), Journal(lambda event: None), stopped, step, lambda work, parameters: None)
        training.run()
        if training.before is None:
            raise Stopped
        return training.before


def repeat_from_snapshot(config: RunConfig, snapshot: StepSnapshot, inspect: Inspect) -> None:
    """Call `inspect(forward_and_backward, parameters)` with the state of a snapshot of a run of `config`.

    Raises EngineError where the weights of the snapshot do not fit the model of the config.
    """
    scaling = config.scaling.model_copy(update={"initial_scale": snapshot.scale})
    with backend_flags.restored():
        journal = Journal(lambda event: None)
        training = _UpTo(
            _unrecorded(config.model_copy(update={"scaling": scaling})), journal, lambda: False, snapshot.step, inspect
        )
        training.repeat(snapshot)


def train_quietly(config: RunConfig, stopped: Callable[[], bool]) -> RunParts:
    """Train without a record and return the parts of the run, with the trained model.

    Raises EngineError where the config cannot be trained, Stopped when `stopped()` became true before the end.
    """
    with backend_flags.restored():
        training = Training(_unrecorded(config), Journal(lambda event: None), stopped)
        training.run()
    if training.stopped():
        raise Stopped
    return training.parts


def _unrecorded(config: RunConfig) -> RunConfig:
    record = config.record.model_copy(update={"tensors": False, "snapshot_to": ""})
    qat = config.qat.model_copy(update={"save_to": ""})
    return config.model_copy(update={"record": record, "qat": qat})


class Training:
    """The loop and its state."""

    def __init__(self, config: RunConfig, journal: Journal, stopped: Callable[[], bool]) -> None:
        self.config, self.journal = config, journal
        self.early_end = EarlyEnd(config.train)
        self._asked_to_stop = stopped
        self.parts = parts = self._build()
        self.device, self.task, self.precision = parts.device, parts.task, parts.precision
        self.model, self.optimizer, self.average = parts.model, parts.optimizer, parts.average
        self.network: Callable[[Any], Any] = parts.model  # in training: the model, or a replica that reduces gradients
        self.facts = parts.facts
        self.step = 0
        self.changes: list[dict[str, Any]] = []  # of the precision
        self.steps_per_epoch = math.ceil(self.task.steps_per_epoch / config.train.accumulation)
        self.total_steps = config.train.epochs * self.steps_per_epoch
        if config.train.max_steps is not None:
            self.total_steps = min(self.total_steps, config.train.max_steps)
        self.pruner = make_pruner(config, parts, self.total_steps)
        self.callbacks = build_callbacks(config, parts, journal, self.total_steps)
        self.schedule = ScheduleWatch(config, self.total_steps, self._present_gradients)
        if config.precision_schedule:
            counted = ChangeCensus(journal, parts, self.changes)
            self.callbacks = CallbackList([self.callbacks, self.schedule, counted])

    def _present_gradients(self) -> list[Tensor]:
        return [weight.grad for weight in self.parts.weights if weight.grad is not None]

    def _build(self) -> RunParts:
        return build_run(self.config, self._tell, self.stopped)

    def stopped(self) -> bool:
        """Whether the run should end: it was stopped, or reached a limit of its config."""
        return bool(self.early_end.reason) or self._asked_to_stop()

    def _tell(self, message: str) -> None:
        """Emit a sentence about a long wait before the first step. Raises Stopped when the run was stopped."""
        self.journal.note(0, message)
        if self.stopped():
            raise Stopped

    def run(self) -> None:
        self._begin()
        try:
            epoch = 0
            while self.step < self.total_steps and not self.stopped():
                epoch += 1
                self._epoch(epoch)
                if not self.stopped():
                    self._evaluate(epoch)
        finally:
            self.callbacks.close()
            if self.pruner is not None:
                self.pruner.close()
        if not self.stopped():
            self._finish()
        complete = self.step >= self.total_steps
        message = "" if complete else f"stopped after step {self.step} of {self.total_steps}"
        if self.early_end.reason and not complete:
            message = f"{message}: {self.early_end.reason}"
        self.journal.emit(RunEnded(self.journal.now(), "completed" if complete else "stopped", message))

    def _begin(self) -> None:
        devices.forget_peak_memory(self.device)
        tensors = tensor_count(self.model) if self.config.record.tensors else 0
        self.journal.emit(
            RunStarted(
                self.journal.now(), self.total_steps, self.steps_per_epoch, str(self.device), self.facts, tensors
            )
        )
        for note in self.precision.notes:
            self.journal.incident(0, "emulated" if self.precision.labels else "note", "info", note)
        if self.pruner is not None:
            for kind, note in self.pruner.notes:
                self.journal.incident(0, kind, "info", note)

    def _epoch(self, epoch: int) -> None:
        self.model.train()
        self.precision.begin_epoch(self.model, epoch)
        for batches, data_s in _timed(self.task.train_batches(), self.config.train.accumulation):
            if self.step >= self.total_steps or self.stopped():
                return
            self.step += 1
            self._step(batches, data_s)

    def _step(self, batches: list[Batch], data_s: float) -> None:
        begin, cpu_begin = time.perf_counter(), time.process_time()
        self._follow_schedule()
        lr, scale = self._set_lr(), self.precision.scale
        self.optimizer.zero_grad(set_to_none=True)
        self.callbacks.begin_step(self.step, scale, batches)
        if self.pruner is not None:
            self.pruner.begin_step(self.step)
        samples = sum(len(targets) for _, targets in batches)
        loss = self._accumulate(batches, samples)
        self.precision.unscale(self.optimizer)
        self.callbacks.gradients()
        norm = self._clip()
        self.callbacks.totals(loss, norm)
        self.callbacks.before_update()
        skipped = self.precision.step(self.optimizer)
        if self.pruner is not None:
            self.pruner.after_update(self.step)
        self.callbacks.after_update(skipped=skipped)
        loss_value, norm_value = self._numbers(loss, norm, time.perf_counter() - begin)
        done = StepDone(
            step=self.step, time_s=self.journal.now(), loss=loss_value, scale=scale, skipped=skipped, lr=lr,
            grad_norm=norm_value, step_s=time.perf_counter() - begin, data_s=data_s, samples=samples,
            memory_bytes=devices.peak_memory_bytes(self.device), cpu_s=time.process_time() - cpu_begin,
            backward_passes=len(batches), optimizer_steps=int(not skipped),
        )  # fmt: skip
        self._step_done(done)
        self._count_zeros()
        self.early_end.after(done)

    def _follow_schedule(self) -> None:
        """Go on in the next precision of the schedule when it is due; weights and optimizer stay as they are."""
        if (change := self.schedule.due(self.step)) is None:
            return
        before, (name, why) = self.precision, change
        self.parts = change_precision(self.parts, self.config, name)
        self.precision = self.parts.precision
        self.changes.append({"step": self.step, "precision": name, "trigger": why})
        self.journal.facts({"precision_changes": [dict(change) for change in self.changes]})
        self.callbacks.precision_changed(self.precision)
        message = f"from {before.config.precision} to {name} ({why})"
        self.journal.incident(self.step, "precision_change", "info", f"precision changed {message}")
        for note in self.precision.notes:
            self.journal.incident(self.step, "emulated" if self.precision.labels else "note", "info", note)

    def _step_done(self, done: StepDone) -> None:
        self.journal.emit(done)
        self.callbacks.end_step(done)

    def _numbers(self, loss: Tensor, norm: Tensor, step_s: float) -> tuple[float, float]:
        """Loss and norm of the gradients, which may be off-loaded, as numbers: the one synchronisation of the step."""
        loss_value, norm_value = torch.stack((loss, norm.to(loss.device, loss.dtype))).tolist()
        return loss_value, norm_value

    def _count_zeros(self) -> None:
        if self.pruner is not None and self.pruner.counts_at(self.step):
            self.journal.emit(self.pruner.zeros(self.step, self.journal.now()))

    def _accumulate(self, batches: list[Batch], samples: int) -> Tensor:
        """Gradients of the mean loss over all samples of the step; returns that loss."""
        losses = []
        for batch in batches:
            loss, targets = self._loss(batch)
            if len(batches) > 1:
                loss = loss * (len(targets) / samples)
            self.precision.backward(loss)
            losses.append(loss.detach())
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        outputs, targets = self._forward(batch)
        loss = self.task.loss(outputs, targets)
        if loss.dim():
            raise EngineError(
                f"the loss of task {self.config.task} has the shape {list(loss.shape)}, but must be a single number; "
                "take its mean"
            )
        return loss, targets

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        network = self.network if self.model.training else self.model
        return execution.forward(network, self.precision, self.config.train, batch)

    def _norms(self, weights: list[nn.Parameter]) -> Sequence[Tensor]:
        """The L2 norm of each gradient, all of which exist."""
        return single_norms([w.grad for w in weights if w.grad is not None])

    def _clip(self) -> Tensor:
        """The L2 norm of the unscaled gradients, before they are clipped to the configured norm."""
        weights = [w for group in self.optimizer.param_groups for w in group["params"] if w.grad is not None]
        norms = self._norms(weights)
        norm = total_norm(norms)
        self.callbacks.norms(weights, norms)
        if self.config.train.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(weights, self.config.train.clip_norm, norm)
        return norm

    def _evaluate(self, epoch: int) -> None:
        with self._averaged(), torch.inference_mode():
            self._validate(epoch)

    def _finish(self) -> None:
        if self.pruner is not None:
            self.journal.facts({"pruning": self.pruner.facts()})
        with self._averaged():
            self._finish_adapters()
            for facts, sentences in self.precision.finish(self.model, self.task, self.stopped):
                self.journal.facts(facts)
                for sentence in sentences:
                    self.journal.note(self.step, sentence)

    def _finish_adapters(self) -> None:
        if self.config.adapter.kind != "none":
            facts, sentences = finish_adapters(self.config, self.parts)
            self.journal.facts(facts)
            for sentence in sentences:
                self.journal.note(self.step, sentence)

    def _averaged(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the model has the average of its weights where one is kept."""
        return self.average.applied() if self.average else contextlib.nullcontext()

    def _validate(self, epoch: int) -> None:
        self.model.eval()
        loss, count, scores = 0.0, 0, []
        for batch in self.task.validation_batches():
            if self.stopped():
                return
            outputs, targets = self._forward(batch)
            loss += float(self.task.loss(outputs, targets)) * len(targets)
            scores.append(self.task.score(outputs, targets))
            count += len(targets)
        self.journal.emit(Evaluated(self.step, epoch, self.journal.now(), loss / count, self.task.result(scores)))

    def _set_lr(self) -> float:
        lr = learning_rate(self.config, self.step, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return lr


class _UpTo(Training):
    """Training whose last step is made by a caller."""

    def __init__(
        self, config: RunConfig, journal: Journal, stopped: Callable[[], bool], last: int, inspect: Inspect
    ) -> None:
        self.reached = False
        self.before: StepSnapshot | None = None  # the last step's
        super().__init__(config, journal, lambda: self.reached or stopped())
        self._last, self._inspect = last, inspect
        if not 1 <= last <= self.total_steps:
            raise EngineError(f"the run has no step {last}; its steps are 1 to {self.total_steps}")

    def repeat(self, snapshot: StepSnapshot) -> None:
        """Make the last step from a snapshot, without those before it."""
        self.step = self._last
        try:
            self.model.load_state_dict(dict(snapshot.weights))
        except RuntimeError as error:
            raise EngineError(f"the snapshot is of another model: {str(error).splitlines()[-1].strip()}") from None
        self.model.train()
        self.precision.begin_epoch(self.model, math.ceil(self.step / self.steps_per_epoch))
        self.precision.continue_from(snapshot.batch_count)
        set_random_state(snapshot, self.device)
        self._step(list(snapshot.batches), 0.0)

    def _step(self, batches: list[Batch], data_s: float) -> None:
        if self.step < self._last:
            super()._step(batches, data_s)
            return
        self._follow_schedule()
        self._set_lr()
        self.optimizer.zero_grad(set_to_none=True)
        self.before = StepSnapshot(
            self.step, self.precision.scale, self.precision.batch_count, batches, self.model.state_dict(),
            *random_state(self.device),
        )  # fmt: skip
        samples = sum(len(targets) for _, targets in batches)
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        self._inspect(lambda: self._accumulate(batches, samples), parameters)
        self.reached = True


def _timed(batches: Iterable[Batch], count: int) -> Iterator[tuple[list[Batch], float]]:
    """Up to `count` batches at a time, with the seconds that were spent waiting for them."""
    iterator = iter(batches)
    while True:
        begin = time.perf_counter()
        group = list(itertools.islice(iterator, count))
        if not group:
            return
        yield group, time.perf_counter() - begin
