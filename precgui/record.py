"""The record of a training loop of one's own: two lines in it, and a run file comes out."""

from __future__ import annotations

import atexit
import contextlib
import math
import sys
import time
import traceback
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from precgui.config import OWN_LOOP, ModelConfig, RecordConfig, RunConfig
from precgui.config.names import check_precision
from precgui.engine import device as devices
from precgui.engine import ranks
from precgui.engine.loop_watch import LoopWatch, Seen
from precgui.engine.tensor_count import tensor_count
from precgui.events import (
    Evaluated,
    Event,
    Incident,
    IncidentKind,
    Metric,
    RunEnded,
    RunStarted,
    Severity,
    Status,
    StepDone,
)
from precgui.hardware.environment import environment
from precgui.hardware.power import PowerSampler
from precgui.hardware.summary import machine_summary
from precgui.runs.metric import metric_named
from precgui.runs.writer import RunWriter

_TRAINERS = ("transformers", "accelerate", "lightning")


class Recorder:
    """Records a training loop into a run file without changing what it computes.

        recorder = precgui.Recorder("run.h5", model, optimizer, scaler)
        for inputs, targets in loader:
            ...                        # forward, backward, scaler.step(optimizer), scaler.update()
            recorder.step(loss)        # once for each optimizer step, also for a skipped one
        recorder.close()

    It is a context manager, too, and then keeps the exception that ends the loop; without `with`, an exception that
    nobody catches is kept when Python exits. Gradients are seen as the optimizer gets them: unscaled, and clipped where
    the loop clips. Under torch.distributed every process makes a Recorder; the first one writes, and losses that are
    not finite are told of each.
    """

    def __init__(
        self,
        path: str | Path,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        scaler: torch.amp.GradScaler | None = None,
        *,
        title: str = "",
        precision: str = "",
        total_steps: int = 0,
        steps_per_epoch: int = 0,
        record: RecordConfig | None = None,
        metric: str | Metric = "accuracy",
    ) -> None:
        """`precision` is a name of `precgui.config.PRECISIONS`; empty: told from the weights and the scaler.

        `metric` says what the second number of `evaluated` is: the name of a share of 1 of which more is better, shown
        in per cent, or a `precgui.Metric`, for example
        `Metric("perplexity", "Perplexity", "exp of the loss", unit="", higher_is_better=False)`.
        Raises RunFileError when the file exists or cannot be written, ValueError for an unknown precision, TypeError
        for a model, an optimizer or a scaler that is none.
        """
        self.optimizers = _checked(model, [optimizer] if isinstance(optimizer, Optimizer) else optimizer, scaler)
        self._scaler = scaler
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._start = self._last = time.perf_counter()
        self._step, self._closed = 0, False
        self._loops = {sys._getframe(1).f_code}
        self._writer: RunWriter | None = None
        self._rank = ranks.rank()
        check_precision(precision or "fp32")
        measured = metric_named(metric)
        config = RunConfig(
            title=title or type(model).__name__,
            task=OWN_LOOP,
            model=ModelConfig(name=type(model).__name__),
            precision=precision or _precision(model, scaler),
            record=record or RecordConfig(),
        )
        self._open = contextlib.ExitStack()
        if self._rank == 0:
            self._writer = self._make_writer(Path(path), config)
        self._watch = LoopWatch(config.record, model, self.optimizers, self._emit, active=self._rank == 0)
        facts = {**_facts(model, self._device), "metric": asdict(measured)}
        tensors = tensor_count(model) if config.record.tensors else 0
        self._emit(RunStarted(0.0, total_steps, steps_per_epoch, str(self._device), facts, tensors))
        if self._writer is not None:
            self._open.enter_context(PowerSampler(self._emit, self._start))
        atexit.register(self.abandon)  # after the writer, so that it is called before the writer's own
        self._scale = self._read_scale()
        self._watch.begin(1, self._scale)

    def _make_writer(self, path: Path, config: RunConfig) -> RunWriter:
        return RunWriter(
            path,
            config,
            run_id=uuid.uuid4().hex,
            created=datetime.now(UTC).astimezone().isoformat(timespec="seconds"),
            machine=machine_summary(),
            environment=environment(PowerSampler(self._emit, 0.0).sensors(), _TRAINERS)
            | {
                "recorder": {
                    "script": sys.argv[0],
                    "arguments": sys.argv[1:],
                    "optimizers": [_told(each) for each in self.optimizers],
                    "processes": ranks.world(),
                },
            },
        )

    def step(self, loss: Tensor | float, *, samples: int = 0) -> None:
        """One optimizer step is over, after `scaler.update()`. `loss` is unscaled; `samples` those of the step."""
        if self._closed:
            return
        loss_value = _number(loss)
        self._step += 1
        self._loops.add(sys._getframe(1).f_code)
        scale, used = self._read_scale(), self._scale
        seen = self._watch.seen()
        skipped = not seen.stepped or scale < used
        now = time.perf_counter()
        begun = seen.begun or self._last
        step_s = now - begun
        self._emit(
            StepDone(
                step=self._step, time_s=now - self._start, loss=loss_value, scale=used, skipped=skipped,
                lr=seen.lr, grad_norm=seen.grad_norm, step_s=step_s, data_s=begun - self._last, samples=samples,
                memory_bytes=devices.peak_memory_bytes(self._device),
            )
        )  # fmt: skip
        self._report(loss_value, seen, skipped, used, scale)
        alarm = not math.isfinite(loss_value) or (seen.looked and not math.isfinite(seen.grad_norm))
        self._watch.end(now - self._start, step_s, alarm=alarm)
        self._scale, self._last = scale, time.perf_counter()
        self._watch.begin(self._step + 1, scale)

    def evaluated(self, loss: float, accuracy: float = math.nan, epoch: int = 0) -> None:
        """The validation set was evaluated; `accuracy` is the value of the metric, a share of 1 where its unit is %."""
        self._emit(Evaluated(self._step, epoch, self._now(), float(loss), float(accuracy)))

    def note(self, message: str) -> None:
        """Put a mark with a text on the time line."""
        self._incident("note", "info", message)

    def close(self, status: Status = "completed", message: str = "", details: str = "") -> None:
        """End the record and take all hooks from the model; the training may go on. Idempotent."""
        if self._closed:
            return
        atexit.unregister(self.abandon)
        self._watch.close()
        self._open.close()  # the sensors give a last reading
        self._closed = True
        if self._writer is not None:
            self._writer(RunEnded(self._now(), status, message, details))
            self._writer.close()

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
        if self._closed:
            return
        if isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and not error.code):
            word = "left" if isinstance(error, SystemExit) else "interrupted"
            self.close("stopped", f"{word} inside step {self._step + 1}")
            return
        message = f"{type(error).__name__} at step {self._step + 1}: {error}"
        self._incident("failure", "error", message)
        self.close("failed", message, "".join(traceback.format_exception(error)))

    def abandon(self) -> None:
        """End the record of a loop that ended without a word, as failed. Called by itself when Python exits.

        The reason is the exception that nobody caught, if it went through the loop.
        """
        if self._closed:
            return
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)  # until Python 3.11
        if isinstance(error, BaseException) and self._loops & {
            frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)
        }:
            self.fail(error)
        else:
            told = f"the loop ended after step {self._step} without closing its recorder; call close(), or use `with`"
            self.close("failed", told)

    def loop_is(self, code: CodeType) -> None:
        """An exception that goes through this code, too, is one of the loop: of a library that calls the recorder."""
        self._loops.add(code)

    def _report(self, loss: float, seen: Seen, skipped: bool, used: float, scale: float) -> None:
        """The incidents of the step just done."""
        bad_gradients = seen.looked and not math.isfinite(seen.grad_norm)
        watch = self._watch
        for found in ranks.troubles(
            not math.isfinite(loss), bad_gradients, watch.first_output, watch.first_gradient, self._device
        ):
            who = f" in process {found.rank}" if ranks.world() > 1 else ""
            if found.loss:
                where = f", first not finite is the output of {found.module}" if found.module else ""
                self._incident("nonfinite_loss", "error", f"the loss is not finite{who}{where}", found.module)
            if found.gradients:
                where = f": first in {found.parameter}" if found.parameter else ""
                severity: Severity = "warning" if skipped else "error"
                self._incident("nonfinite_gradient", severity, f"gradients not finite{who}{where}", found.parameter)
        if skipped:
            self._incident("skipped_step", "warning", f"weights not updated in this step, at scale {used:g}")
        if scale != used:
            word = "lowered" if scale < used else "raised"
            self._incident("scale_change", "info", f"loss scale {word} from {used:g} to {scale:g}")

    def _read_scale(self) -> float:
        enabled = self._scaler is not None and self._scaler.is_enabled()
        return float(self._scaler.get_scale()) if self._scaler is not None and enabled else 1.0

    def _incident(self, kind: IncidentKind, severity: Severity, message: str, module: str = "") -> None:
        self._emit(Incident(self._now(), self._step, kind, severity, message, module))

    def _emit(self, event: Event) -> None:
        if self._writer is not None and not self._closed:
            self._writer(event)

    def _now(self) -> float:
        return time.perf_counter() - self._start


def _checked(model: object, optimizers: object, scaler: object) -> list[Optimizer]:
    """The optimizers. Raises TypeError, one sentence, for what is no part of a training loop."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if not isinstance(optimizers, Sequence) or not all(isinstance(each, Optimizer) for each in optimizers):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer or a list of them, not {optimizers!r:.80}")
    if not hasattr(scaler, "get_scale") and scaler is not None:
        raise TypeError(f"scaler must be a torch.amp.GradScaler or None, not {type(scaler).__name__}")
    return list(optimizers)


def _number(loss: object) -> float:
    """Raises TypeError for what is no single number."""
    if isinstance(loss, Tensor):
        if loss.numel() != 1 or loss.is_complex():
            raise TypeError(f"loss must be one number, not a tensor of shape {list(loss.shape)} and {loss.dtype}")
        return float(loss.detach())
    if isinstance(loss, str) or not isinstance(loss, SupportsFloat):
        raise TypeError(f"loss must be a number or a tensor of one element, not {type(loss).__name__}")
    return float(loss)


def _precision(model: nn.Module, scaler: torch.amp.GradScaler | None) -> str:
    """What the weights and the scaler say; autocast without a scaler cannot be seen before it is entered."""
    types = {parameter.dtype for parameter in model.parameters()}
    if torch.float16 in types:
        return "fp16-pure"
    if torch.bfloat16 in types:
        return "bf16-pure"
    if torch.float64 in types:
        return "fp64"
    return "fp16-amp" if scaler is not None and scaler.is_enabled() else "fp32"


def _told(optimizer: Optimizer) -> dict[str, Any]:
    """Its class and what it was given, as far as JSON can say it."""
    plain = {name: value for name, value in optimizer.defaults.items() if isinstance(value, bool | int | float | str)}
    return {"name": type(optimizer).__name__, **plain}


def _facts(model: nn.Module, device: torch.device) -> dict[str, Any]:
    return {
        "device": str(device),
        "device_name": devices.name(device),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
