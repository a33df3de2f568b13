"""The training loop: the steps of a run, with hooks and a strategy. It knows no feature by name."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from precgui.config import RunConfig
from precgui.engine import device as devices
from precgui.engine import execution
from precgui.engine.captured_step import captured
from precgui.engine.errors import EngineError
from precgui.engine.hook import EarlierSteps, LoopHook, TrainingRun
from precgui.engine.journal import Journal
from precgui.engine.launched_step import ClockReading, LaunchedStep, PendingStep
from precgui.engine.run_parts import RunParts
from precgui.engine.strategy import Strategy
from precgui.engine.tasks.base import Batch
from precgui.engine.telemetry.backends import Transfer
from precgui.engine.telemetry.parameters import parameters_of, tensor_count
from precgui.engine.update import learning_rate, total_norm
from precgui.events import Evaluated, RunEnded, RunStarted, StepDone
from precgui.sentences import Sentence


class Loop:
    """Makes the steps of a run."""

    def __init__(
        self, config: RunConfig, parts: RunParts, journal: Journal, stopped: Callable[[], bool],
        hooks: Sequence[type[LoopHook]] = (), strategy: Strategy | None = None, resumed: EarlierSteps | None = None,
    ) -> None:  # fmt: skip
        """Raises EngineError for a config that a hook or the strategy refuses, or a checkpoint of another run."""
        self.config, self.journal, self._asked_to_stop = config, journal, stopped
        self.device, self.task, self.model, self.optimizer = parts.device, parts.task, parts.model, parts.optimizer
        self.steps_per_epoch = math.ceil(self.task.steps_per_epoch / config.train.accumulation)
        total_steps = config.train.epochs * self.steps_per_epoch
        if config.train.max_steps is not None:
            total_steps = min(total_steps, config.train.max_steps)
        self.run = TrainingRun(config, parts, journal, total_steps)
        self.hooks = self.run.hooks
        self.run.resumed = self._resumed = resumed
        self.run.make_hooks(hooks)
        self._gradients = captured(config, self.forward_and_backward, self.model, self.device, self._tell)
        self._pending: PendingStep | None = None
        self._last_read = ClockReading()
        self.strategy = strategy or Strategy()
        self.strategy.join(self.run)
        if resumed is not None:
            resumed.begin(self.run)

    def _tell(self, sentence: str) -> None:
        self.journal.note(self.run.step, sentence)

    def stopped(self) -> bool:
        """Whether the run should end: it was stopped, or a hook has ended it."""
        return bool(self.run.stop_reason) or self._asked_to_stop()

    def train(self) -> None:
        """Make all steps, and end the run. The first event is RunStarted, the last one RunEnded."""
        self.begin()
        try:
            for _ in self.steps():
                pass
            self.hooks.end_steps()
        finally:
            self.hooks.close()
        if not self.stopped() and self.strategy.is_first:
            self._finish()
        run = self.run
        complete = run.step >= run.total_steps
        values = {"step": run.step, "total": run.total_steps}
        if complete:
            message = ""
        elif run.stop_reason:
            message = Sentence("stopped after step {step} of {total}: {reason}", reason=run.stop_reason, **values)
        else:
            message = Sentence("stopped after step {step} of {total}", **values)
        self.journal.emit(RunEnded(self.journal.now(), "completed" if complete else "stopped", message))

    def begin(self) -> None:
        """Emit RunStarted and the notes of the run."""
        devices.forget_peak_memory(self.device)
        tensors = tensor_count(self.model) if self.config.record.tensors else 0
        self.journal.emit(
            RunStarted(
                self.journal.now(), self.run.total_steps, self.steps_per_epoch, str(self.device),
                self.run.parts.facts, tensors,
            )
        )  # fmt: skip
        if (resumed := self._resumed) is not None:
            self.journal.incident(self.run.step, "resumed", "info", resumed.sentence)
            if note := resumed.other_threads(self.run):
                self.journal.note(self.run.step, note)
        else:
            self.run.note_precision()
            self.hooks.begin_run()
        self.strategy.begin_run()

    def steps(self) -> Iterator[None]:
        """Make each step, and evaluate after each epoch."""
        try:
            for batches, data_s in self.batches():
                self.queue_step(batches, data_s)
                yield
        except Exception:
            with contextlib.suppress(Exception):  # the device may be lost; what ended the run is raised
                self._read_pending()
            raise
        self._read_pending()

    def batches(self, *, evaluate: bool = True) -> Iterator[tuple[list[Batch], float]]:
        """The batches of each step, which is now `run.step`, and the seconds that were spent waiting for them.

        The caller makes the step. With `evaluate` the model is evaluated after each epoch.
        """
        run = self.run
        while run.step < run.total_steps and not self.stopped():
            run.epoch += 1
            yield from self._epoch(run.epoch)
            self._read_pending()
            if evaluate and not self.stopped():
                with self.hooks.evaluation(), self.strategy.evaluation():
                    self._evaluate(run.epoch)

    def begin_epoch(self, epoch: int) -> None:
        """Put the model into training for an epoch, counted from 1."""
        self.model.train()
        self.run.parts.precision.begin_epoch(self.model, epoch)

    def _epoch(self, epoch: int) -> Iterator[tuple[list[Batch], float]]:
        run, resumed = self.run, self._resumed
        if resumed is not None:
            resumed.begin_epoch(run)
        self.begin_epoch(epoch)
        self.hooks.begin_epoch(epoch)
        groups = _timed(self.task.train_batches(), self.config.train.accumulation)
        if resumed is not None:
            resumed.pass_by(run, groups)
            run.resumed = self._resumed = None
        # Asked before a batch is drawn: what a checkpoint keeps is the state between two steps.
        while run.step < run.total_steps and not self.stopped() and (drawn := next(groups, None)) is not None:
            run.step += 1
            yield drawn

    def make_step(self, batches: list[Batch], data_s: float = 0.0) -> StepDone:
        """Make the step `run.step` with these batches, and read it."""
        return self._read_now(self._launch(batches, data_s))

    def queue_step(self, batches: list[Batch], data_s: float) -> None:
        """Make the step `run.step`; it is read when the next one is queued, where nothing depends on its numbers."""
        step = self._launch(batches, data_s)
        self._read_pending(data_s)
        if self._depends_on_numbers():
            self._read_now(step)
        else:
            read = self.hooks.read_later(step.loss, step.norm) or numbers_later(step.loss, step.norm)
            self._pending = PendingStep(step, read, self.hooks.leave_steps())

    def _depends_on_numbers(self) -> bool:
        """Whether the next step must not be queued before this one is read."""
        return (
            self.device.type != "cuda"
            or self.run.parts.precision.scaling_mode != "none"
            or not self.strategy.may_read_later
            or self.hooks.reads_now(self.run.step)
        )

    def _launch(self, batches: list[Batch], data_s: float) -> LaunchedStep:
        """Queue all work of the step `run.step`."""
        run = self.run
        self.strategy.begin_step(run.step)
        begin = ClockReading()
        lr = self.prepare_step()
        precision = run.parts.precision
        scale = precision.scale
        self.hooks.begin_step(run.step, scale, batches)
        loss = self._gradients(batches)
        precision.unscale(self.optimizer)
        self.hooks.gradients()
        norm = self._clip()
        self.hooks.totals(loss, norm)
        self.hooks.before_update()
        skipped = precision.step(self.optimizer)
        self.hooks.correct_update(run.step)
        self.hooks.after_update(skipped=skipped)
        return LaunchedStep(
            run.step, batches, data_s, lr, scale, loss, norm.to(loss.dtype), skipped, begin,
            own_s=time.perf_counter() - begin.clock_s, memory_bytes=devices.peak_memory_bytes(self.device),
        )  # fmt: skip

    def _read_now(self, step: LaunchedStep) -> StepDone:
        """Wait for a step and end it: the one wait of the step for its device."""
        own_loss, norm = self.hooks.read(step.loss, step.norm) or numbers(step.loss, step.norm)
        done = self._done(step, self.strategy.reduce(own_loss, step.own_s), norm)
        self.hooks.end_step(self.strategy.own(done))
        return done

    def _read_pending(self, data_s: float = 0.0) -> None:
        """The same for the step that was queued before, if there is one; `data_s` as in `_done`."""
        if (pending := self._pending) is not None:
            self._pending = None
            done = self._done(pending.step, *pending.read(), data_s)
            for end in pending.ends:
                end(done)

    def _done(self, step: LaunchedStep, loss: float, norm: float, data_s: float = 0.0) -> StepDone:
        """Emit that a step is done, which took the time since it began, or since the one before it was read.

        Without `data_s` of this time, which were spent waiting for the batches of the step after it.
        """
        now, since = ClockReading(), max(step.begin, self._last_read)
        self._last_read = now
        done = StepDone(
            step=step.number, time_s=self.journal.now(), loss=loss, scale=step.scale, skipped=step.skipped, lr=step.lr,
            grad_norm=norm, step_s=max(now.clock_s - since.clock_s - data_s, 0.0), data_s=step.data_s,
            samples=sum(len(targets) for _, targets in step.batches), memory_bytes=step.memory_bytes,
            cpu_s=now.cpu_s - since.cpu_s, backward_passes=len(step.batches), optimizer_steps=int(not step.skipped),
        )  # fmt: skip
        self.journal.emit(done)
        return done

    def prepare_step(self) -> float:
        """Set the step up to its forward pass; returns its learning rate."""
        self.hooks.prepare_step(self.run.step)
        lr = learning_rate(self.config, self.run.step, self.run.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad(set_to_none=True)
        return lr

    def forward_and_backward(self, batches: Sequence[Batch]) -> Tensor:
        """Gradients of the mean loss over all samples of the step; returns the loss, of a rank its part of it."""
        losses, weight = [], None
        for batch, weight, context in self.strategy.slices(batches):
            with context:
                loss = self._loss(batch)
                if weight is not None:
                    loss = loss * weight
                self.run.parts.precision.backward(self.strategy.scaled(loss))
            losses.append(loss.detach())
        return losses[0] if weight is None else torch.stack(losses).sum()

    def _loss(self, batch: Batch) -> Tensor:
        outputs, targets = self._forward(batch)
        loss = self.task.loss(outputs, targets)
        if loss.dim():
            raise EngineError(
                Sentence(
                    "the loss of task {task} has the shape {shape}, but must be a single number; take its mean",
                    task=self.config.task,
                    shape=list(loss.shape),
                )
            )
        return loss

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        network = self.strategy.network if self.model.training else self.model
        return execution.forward(network, self.run.parts.precision, self.config.train, batch)

    def _clip(self) -> Tensor:
        """The L2 norm of the unscaled gradients, before they are clipped to the configured norm."""
        weights = [each for each in parameters_of(self.optimizer) if each.grad is not None]
        norms = self.strategy.norms(weights)
        norm = total_norm(norms)
        self.hooks.norms(weights, norms)
        if self.config.train.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(weights, self.config.train.clip_norm, norm)
        return norm

    def _evaluate(self, epoch: int) -> None:
        self.model.eval()
        loss, count, scores = 0.0, 0, []
        for batch in self.task.validation_batches():
            if self.stopped():
                return
            outputs, targets = self._forward(batch)
            loss += float(self.task.loss(outputs, targets)) * len(targets)
            scores.append(self.task.score(outputs, targets))
            count += len(targets)
        result = self.task.result(scores)
        self.journal.emit(Evaluated(self.run.step, epoch, self.journal.now(), loss / count, result))

    def _finish(self) -> None:
        with self.hooks.evaluation():
            self.hooks.end_run()
            for facts, sentences in self.run.parts.precision.finish(self.model, self.task, self.stopped):
                self.journal.facts(facts)
                for sentence in sentences:
                    self.journal.note(self.run.step, sentence)


def numbers(loss: Tensor, norm: Tensor) -> tuple[float, float]:
    """Loss and norm of the gradients, which may be off-loaded, as numbers, in one transfer."""
    loss_value, norm_value = torch.stack((loss, norm.to(loss.device))).tolist()
    return loss_value, norm_value


def numbers_later(loss: Tensor, norm: Tensor) -> Callable[[], tuple[float, float]]:
    """As `numbers`, which the host waits for when it calls what this returns."""
    transfer = Transfer([loss, norm])

    def read() -> tuple[float, float]:
        loss_array, norm_array = transfer.arrays()
        return loss_array.item(), norm_array.item()

    return read


def _timed(batches: Iterable[Batch], count: int) -> Iterator[tuple[list[Batch], float]]:
    """Up to `count` batches at a time, with the seconds that were spent waiting for them."""
    iterator = iter(batches)
    while True:
        begin = time.perf_counter()
        group = list(itertools.islice(iterator, count))
        if not group:
            return
        yield group, time.perf_counter() - begin
