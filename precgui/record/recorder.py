"""The record of a training loop that precgui does not run: two lines in the loop write a run file."""

from __future__ import annotations

import atexit
import contextlib
import math
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from precgui.config import RecordConfig, RunConfig
from precgui.engine import device as devices
from precgui.engine import incident_text
from precgui.engine.extended_arithmetic import exact_sum
from precgui.engine.telemetry.guard import LoopGuard, guarded
from precgui.engine.telemetry.held import Copies
from precgui.engine.telemetry.nonfinite import BadOutput
from precgui.engine.telemetry.parameters import tensor_count
from precgui.events import Evaluated, Facts, Incident, IncidentKind, Metric, RunStarted, Severity, Status, StepDone
from precgui.hardware.environment import environment
from precgui.hardware.power import PowerSampler
from precgui.hardware.summary import machine_summary
from precgui.record import arguments, distributed, ending
from precgui.record.hooks import LoopWatch, StepMeasurements, weights_of
from precgui.record.later_numbers import Number
from precgui.record.precision import VISIBLE, PrecisionFact
from precgui.record.wrappers import Accumulation
from precgui.runs.file.writer import RunWriter
from precgui.sentences import L_, Sentence, together

_OTHER_RECORDER = L_("another recorder began before the step was over")
_TRAINERS = ("transformers", "accelerate", "lightning")
_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


class Recorder:
    """Records a training loop into a run file without changing what it computes.

        recorder = precgui.Recorder("run.h5", model, optimizer, scaler)
        for inputs, targets in loader:
            ...                        # forward, backward, scaler.step(optimizer), scaler.update()
            recorder.step(loss)        # once for each optimizer step, also for a skipped one
        recorder.close()

    As a context manager it records the exception that ends the loop; without `with`, an uncaught exception is recorded
    when Python exits. Gradients are measured as the optimizer gets them: unscaled, and clipped where the loop clips.
    Copies and checkpoints of the model are not recorded. Under torch.distributed the first process writes; the others
    may have a Recorder, which reports their NaN and Inf to the first. A fault inside the recorder ends the recording
    with one warning and one sentence in the file, never the loop.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | None,
        scaler: torch.amp.GradScaler | None = None,
        *,
        ema: nn.Module | Mapping[str, Tensor] | None = None,
        title: str = "",
        precision: str = "",
        total_steps: int = 0,
        steps_per_epoch: int = 0,
        record: RecordConfig | None = None,
        metric: str | Metric = "accuracy",
    ) -> None:
        """`optimizer` is None where the loop updates its weights by itself, `precision` empty: that of the first step.

        `ema` is a copy of the weights that the loop keeps outside the model, such as an `AveragedModel`. `metric` says
        what the second number of `evaluated` is: the name of a share of 1 of which more is better, or a
        `precgui.Metric`: `Metric("perplexity", "Perplexity", "exp of the loss", unit="", higher_is_better=False)`.
        Raises RunFileError when the file exists or cannot be written, TypeError or ValueError for what cannot be used.
        """
        optimizers = arguments.checked(model, optimizer, scaler)
        copies = arguments.copies(ema, weights_of(model, optimizers))
        file, measured = arguments.checked_path(path), arguments.checked_metric(metric)
        config = arguments.config_of(model, optimizers, title, precision, record)
        sizes = arguments.count(total_steps, "total_steps"), arguments.count(steps_per_epoch, "steps_per_epoch")
        self._scaler, self._step, self._precision = scaler, 0, precision
        self._accumulation = Accumulation([optimizer] if isinstance(optimizer, Optimizer) else list(optimizer or ()))
        self._scaler_used = not arguments.is_idle(scaler)
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._start = self._last = time.perf_counter()
        self.guard, self._mail = LoopGuard(), distributed.RankReports(str(path))
        self._emit = ending.EventSink(self.guard, self._start)
        facts = arguments.facts(model, self._device, scaler) | {"metric": asdict(measured)}
        tensors = tensor_count(model, copies) if config.record.tensors else 0
        started = RunStarted(0.0, *sizes, str(self._device), facts, tensors)
        self._recording = self._opened(file, config, model, optimizers, started, copies)
        _abandon_at_exit(self)
        self._begin_first()

    def _opened(
        self,
        file: Path,
        config: RunConfig,
        model: nn.Module,
        optimizers: list[Optimizer],
        started: RunStarted,
        copies: Copies | None,
    ) -> ending.OpenRecord:
        """Open the hooks and, in the first process, the file and the sensors: all of them or, where one fails, none."""
        _abandon_steps_of_others()
        first = distributed.rank() == 0
        with contextlib.ExitStack() as parts:
            self._watch = LoopWatch(
                config.record, model, optimizers, self._emit, self.guard,
                active=first, copies=copies, total_steps=started.total_steps, scaler=self._scaler,
            )  # fmt: skip
            parts.callback(self._watch.close)
            if first:
                sensors = PowerSampler(self._emit, self._start)
                self._emit.writer = _writer(file, config, sensors, optimizers, self._scaler)
                self._emit(started)
                parts.enter_context(sensors)
            return ending.OpenRecord(self._emit, parts.pop_all())

    _status_without_close: Status = "completed"

    def step(self, loss: Tensor | float, *, samples: int = 0) -> None:
        """Record one optimizer step; to be called after `scaler.update()`.

        `loss` is unscaled and of the whole step: a loop that divides it by the number of its micro-steps gives the sum
        of the parts. `samples` are those of the step. A call in a micro-step of accelerate is no step: the losses of
        the micro-steps are averaged and their samples added up.
        """
        if self._is_open():
            self._record_step(arguments.unread_number(loss, "loss"), arguments.count(samples, "samples"))

    def _is_open(self) -> bool:
        """Whether to record. After a fault it removes the hooks, which must not be done inside one of them."""
        if self.guard.is_shut:
            self._recording.release()
            self.__dict__.pop("_watch", None)  # and with it the model
        return self._recording.is_open

    @guarded
    def _record_step(self, loss: Number, samples: int) -> None:
        if self._accumulation.is_micro_step() and not self._watch.has_stepped:
            self._accumulation.add(loss, samples)
            return
        losses, samples = self._accumulation.joined(loss, samples)
        self._step += 1
        unread = arguments.unread_scale(self._scaler)
        used = self._scale if self._scaler_used else arguments.first_scale(self._scaler)
        *parts, scale = self._watch.read([*losses, unread], lambda: float(unread) < used)
        loss_value = exact_sum(parts) / len(parts)
        visited = self._watch.step_measurements(lowered=scale < used)
        now = time.perf_counter()
        started = visited.first_forward_s or self._last
        step_s = now - started
        self._emit(
            StepDone(
                step=self._step, time_s=now - self._start, loss=loss_value, scale=used, skipped=visited.skipped,
                lr=visited.lr, grad_norm=visited.grad_norm, step_s=step_s, data_s=started - self._last, samples=samples,
                memory_bytes=devices.peak_memory_bytes(self._device), backward_passes=visited.backward_passes,
                optimizer_steps=visited.optimizer_steps,
            )
        )  # fmt: skip
        if not math.isfinite(loss_value):
            self._watch.look_at_batch()
        self._tell_first_step(now - self._start)
        self._report(loss_value, visited, used, scale)
        finite = math.isfinite(loss_value)
        alarm = not finite or (visited.has_gradients and not math.isfinite(visited.grad_norm))
        self._watch.end(now - self._start, step_s, alarm=alarm, loss_is_finite=finite)
        self._last = time.perf_counter()
        self._begin(scale)

    @guarded
    def _begin_first(self) -> None:
        self._begin(float(arguments.unread_scale(self._scaler)))

    def _begin(self, scale: float) -> None:
        """Begin the next step at this loss scale, or at that of the scaler's first use."""
        self._scale: float = scale
        reported = scale if self._scaler_used else partial(arguments.first_scale, self._scaler)
        self._watch.begin(self._step + 1, reported)

    def evaluated(self, loss: float, accuracy: float = math.nan, epoch: int = 0) -> None:
        """Record an evaluation of the validation set; `accuracy` is the metric, a share of 1 where its unit is %."""
        value, share = arguments.number(loss, "loss"), arguments.number(accuracy, "accuracy")
        if self._is_open():
            self._watch.evaluated()
        self._emit(Evaluated(self._step, arguments.count(epoch, "epoch"), self._recording.now_s(), value, share))

    def note(self, message: str) -> None:
        """Put a mark with a text on the time line."""
        self._incident("note", "info", str(message))

    def close(self, status: Status = "completed", message: str = "", details: str = "") -> None:
        """End the record and take all hooks from the model; the training may go on. Idempotent."""
        if self._is_open():
            self._end(status, message, details)

    @guarded
    def _end(self, status: Status, message: str, details: str) -> None:
        for result in self._mail.close(distributed.LATE_S if status == "completed" else 0.0):
            self._tell(result)
        if facts := self._watch.last_facts():
            self._emit(Facts(self._recording.now_s(), facts))
        self._recording.end(status, message, details)
        del self._watch  # and with it the model

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the record because of an exception; Ctrl+C and a plain exit leave it as stopped, all others as failed."""
        if self._is_open():
            self._end_after(error)

    @guarded
    def _end_after(self, error: BaseException) -> None:
        status, message, details = ending.outcome_of(error, self._step + 1)
        if status == "failed":
            self._incident("failure", "error", message)
        self.close(status, message, details)

    @guarded
    def abandon(self) -> None:
        """End the record of a loop that did not call `close`. Python calls it at exit.

        The status is failed after an uncaught exception, else completed.
        """
        error = ending.uncaught()
        if error is not None:
            self.fail(error)
        else:
            self.close(self._status_without_close, Sentence("ended after step {step} without close()", step=self._step))

    def expect_close(self) -> None:
        """Let a loop that ends without `close` count as failed from now on: a library always closes its recorder."""
        self._status_without_close = "failed"

    def __del__(self) -> None:
        recording = getattr(self, "_recording", None)
        if recording is not None and recording.is_open:
            text = Sentence(
                "the recorder was deleted after step {step} without close(); no exception is known", step=self._step
            )
            ended = self._status_without_close, text
            if (watch := self.__dict__.get("_watch")) is not None:
                # In the thread whose operations it sees. What a destructor raises reaches nobody but stderr.
                with contextlib.suppress(Exception):
                    watch.leave_step()
            # Not here: garbage is collected at any moment, also while this thread is at work on the file.
            threading.Thread(target=recording.end, args=ended, name="run-file-end").start()

    def _tell_first_step(self, time_s: float) -> None:
        """Emit the facts about the first step once it is over, and those on the loop when they become known."""
        reported: dict[str, Any] = self._watch.news_of_loop()
        if not self._scaler_used and not arguments.is_idle(self._scaler):
            self._scaler_used = True
            reported["scaler"] = arguments.scaler_facts(self._scaler, used=True)
        if facts := self._watch.end_first_step(time_s):
            result: PrecisionFact = facts["precision"]
            if self._precision:
                self._compare_precision(result)
                reasons = [L_("the name was given to the recorder"), result.reason]
                result = PrecisionFact(self._precision, "given", together(*reasons, between="; "))
            reported |= {**facts, "precision": replace(result, given=self._precision).fact()}
        if reported:
            self._emit(Facts(time_s, reported))

    def _compare_precision(self, fact: PrecisionFact) -> None:
        """Report a first step whose precision differs from the one given to the recorder."""
        if self._precision in VISIBLE and fact.name != self._precision:
            text = Sentence(
                "the recorder was given {given}, but the first step ran as {name}: {reason}",
                given=self._precision,
                name=fact.name,
                reason=fact.reason,
            )
            self._incident("note", "warning", text)

    def _report(self, loss: float, visited: StepMeasurements, used: float, scale: float) -> None:
        """Record the incidents of the step that has just ended, and those that other processes have sent."""
        bad_loss, bad_gradients = (
            not math.isfinite(loss),
            visited.has_gradients and not math.isfinite(visited.grad_norm),
        )
        if bad_loss or bad_gradients:
            output = self._watch.first_output() if bad_loss else BadOutput()
            parameter = self._watch.first_gradient() if bad_gradients else ""
            own = distributed.NonFiniteReport(
                distributed.rank(),
                self._step,
                bad_loss,
                bad_gradients,
                visited.skipped,
                module=output.module,
                parameter=parameter,
                why_not=output.why_not,
                operation=output.operation,
                line=output.line,
            )
            if self._emit.writer is not None:
                self._tell(own)
            else:
                self._mail.tell(own)
        for result in self._mail.received():
            self._tell(result)
        if visited.skipped:
            unchecked = visited.weights_changed is None and not visited.partly and scale >= used
            too_large = used if scale < used else None
            text = incident_text.skipped_text(too_large, partly=visited.partly, unchecked=unchecked)
            self._incident("skipped_step", "warning", text)
        if scale != used:
            self._incident("scale_change", "info", incident_text.scale_text(used, scale))

    def _tell(self, trouble: distributed.NonFiniteReport) -> None:
        """Record an incident each for a loss and for gradients that were not finite in a step of a process."""
        rank = trouble.rank if distributed.world() > 1 else None
        if trouble.loss:
            text = incident_text.loss_text(
                trouble.module, "", rank, trouble.why_not, operation=trouble.operation, line=trouble.line
            )
            self._incident("nonfinite_loss", "error", text, trouble.module, trouble.step)
        if trouble.gradients:
            severity: Severity = "warning" if trouble.skipped else "error"
            text = incident_text.gradients_text(trouble.parameter, rank)
            self._incident("nonfinite_gradient", severity, text, trouble.parameter, trouble.step)

    def _incident(
        self, kind: IncidentKind, severity: Severity, message: str, module: str = "", step: int | None = None
    ) -> None:
        at = self._step if step is None else step
        self._emit(Incident(self._recording.now_s(), at, kind, severity, message, module))


def _abandon_at_exit(recorder: Recorder) -> None:
    """Have Python end this record at exit. Each call registers anew, so that it runs before the hook of the writer."""
    _recorders.add(recorder)
    atexit.unregister(_abandon_all)
    atexit.register(_abandon_all)


def _abandon_steps_of_others() -> None:
    """Let go of steps that are still watched in this thread: their loops were ended by an exception, as in a notebook.

    Else no operation of this record could be seen, since theirs would be.
    """
    for recorder in list(_recorders):
        if (watch := recorder.__dict__.get("_watch")) is not None:
            with contextlib.suppress(Exception):
                watch.abandon_step(_OTHER_RECORDER)


def _abandon_all() -> None:
    for recorder in list(_recorders):
        recorder.abandon()


def _writer(
    path: Path,
    config: RunConfig,
    sensors: PowerSampler,
    optimizers: Sequence[Optimizer],
    scaler: torch.amp.GradScaler | None,
) -> RunWriter:
    config, observed = arguments.with_observed(config, optimizers, scaler)
    return RunWriter(
        path,
        config,
        run_id=uuid.uuid4().hex,
        created=datetime.now(UTC).astimezone().isoformat(timespec="seconds"),
        machine=machine_summary(),
        environment=environment(sensors.sensors(), _TRAINERS)
        | {
            "recorder": {
                "script": sys.argv[0],
                "arguments": sys.argv[1:],
                "optimizers": [arguments.optimizer_facts(each) for each in optimizers],
                "observed": observed,
                "processes": distributed.world(),
            },
        },
    )
