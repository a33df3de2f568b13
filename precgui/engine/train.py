"""One training run: config in, events out. Knows no window, no file and no particular precision."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from precgui.config import RunConfig
from precgui.engine import device as devices
from precgui.engine.precision import PRECISIONS, Precision, first_nonfinite
from precgui.engine.tasks import TASKS, Batch, Task
from precgui.events import Emit, Evaluated, Incident, IncidentKind, RunEnded, RunStarted, Severity, StepDone


def train(config: RunConfig, emit: Emit, stopped: Callable[[], bool]) -> None:
    """Train as `config` says, emitting events from RunStarted to RunEnded; ends early once `stopped()` is true.

    Event times are seconds since the call. Raises EngineError for what the user can mend (a device that
    is not there) and lets errors of the model through; in both cases no RunEnded has been emitted.
    """
    _Training(config, emit, stopped).run()


class _Training:
    """The loop and its state."""

    def __init__(self, config: RunConfig, emit: Emit, stopped: Callable[[], bool]) -> None:
        self._start = time.perf_counter()
        self.config, self.emit, self.stopped = config, emit, stopped
        threads = devices.pin_threads(config.threads)
        self.device = devices.choose(config.device)
        self.precision: Precision = PRECISIONS[config.precision](config, self.device)
        self.precision.prepare()
        torch.manual_seed(config.seed)
        self.task: Task = TASKS[config.task](config)
        # Every precision starts from the same FP32 weights: built first, converted after.
        model = self.task.model()
        weights_hash = _hash(model)
        self.model = self.precision.convert(model)
        self.optimizer = _optimizer(config, self.model)
        self.step = 0
        self.total_steps = config.train.epochs * self.task.steps_per_epoch
        if config.train.max_steps is not None:
            self.total_steps = min(self.total_steps, config.train.max_steps)
        self._facts = _facts(self.device, threads, self.model, weights_hash, self.precision)

    def run(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self.emit(RunStarted(self._now(), self.total_steps, self.task.steps_per_epoch, str(self.device), self._facts))
        for note in self.precision.notes:
            self._incident("emulated", "info", note)
        epoch = 0
        while self.step < self.total_steps and not self.stopped():
            epoch += 1
            self._epoch()
            if not self.stopped():
                self._evaluate(epoch)
        complete = self.step >= self.total_steps
        message = "" if complete else f"stopped after step {self.step} of {self.total_steps}"
        self.emit(RunEnded(self._now(), "completed" if complete else "stopped", message))

    def _epoch(self) -> None:
        self.model.train()
        for batch, data_s in _timed(self.task.train_batches()):
            if self.step >= self.total_steps or self.stopped():
                return
            self.step += 1
            self._step(batch, data_s)

    def _step(self, batch: Batch, data_s: float) -> None:
        begin = time.perf_counter()
        lr = self._set_lr()
        scale = self.precision.scale
        inputs, targets = (part.to(self.device, non_blocking=True) for part in batch)
        self.optimizer.zero_grad(set_to_none=True)
        with self.precision.cast():
            loss = self.task.loss(self.model(inputs), targets)
        self.precision.backward(loss)
        self.precision.unscale(self.optimizer)
        norm = self._clip()
        skipped = self.precision.step(self.optimizer)
        loss_value, norm_value = torch.stack((loss.detach().float(), norm.float())).tolist()  # the one synchronisation
        step_s = time.perf_counter() - begin
        self.emit(
            StepDone(
                step=self.step, time_s=self._now(), loss=loss_value, scale=scale, skipped=skipped, lr=lr,
                grad_norm=norm_value, step_s=step_s, data_s=data_s, samples=len(targets),
                memory_bytes=devices.peak_memory_bytes(self.device),
            )
        )  # fmt: skip
        self._report(loss_value, norm_value, skipped, scale)

    def _clip(self) -> Tensor:
        """The L2 norm of the unscaled gradients, before they are clipped to the configured norm."""
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if self.config.train.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(parameters, self.config.train.clip_norm, norm)
        return norm

    def _report(self, loss: float, norm: float, skipped: bool, scale: float) -> None:
        """The incidents of the step just done."""
        if not math.isfinite(loss):
            self._incident("nonfinite_loss", "error", f"the loss is {loss}")
        if not math.isfinite(norm):
            self._report_gradients(skipped)
        if skipped:
            self._incident(
                "skipped_step", "warning", f"weights not updated: Inf or NaN in the gradients at scale {scale:g}"
            )
        if self.precision.scale != scale:
            word = "lowered" if self.precision.scale < scale else "raised"
            self._incident("scale_change", "info", f"loss scale {word} from {scale:g} to {self.precision.scale:g}")

    def _report_gradients(self, skipped: bool) -> None:
        name = first_nonfinite(self.model.named_parameters())
        where = f"first in {name}" if name else "each is finite, their norm overflows FP32"
        self._incident("nonfinite_gradient", "warning" if skipped else "error", f"gradients not finite: {where}", name)

    @torch.inference_mode()
    def _evaluate(self, epoch: int) -> None:
        self.model.eval()
        loss, correct, count = 0.0, 0, 0
        for inputs, targets in self.task.validation_batches():
            if self.stopped():
                return
            inputs, targets = inputs.to(self.device), targets.to(self.device)
            with self.precision.cast():
                outputs = self.model(inputs)
            loss += float(self.task.loss(outputs, targets)) * len(targets)
            correct += self.task.correct(outputs, targets)
            count += len(targets)
        self.emit(Evaluated(self.step, epoch, self._now(), loss / count, correct / count))

    def _set_lr(self) -> float:
        lr = learning_rate(self.config, self.step, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return lr

    def _incident(self, kind: IncidentKind, severity: Severity, message: str, module: str = "") -> None:
        self.emit(Incident(self._now(), self.step, kind, severity, message, module))

    def _now(self) -> float:
        return time.perf_counter() - self._start


def learning_rate(config: RunConfig, step: int, total_steps: int) -> float:
    """The learning rate of a step counted from 1: constant, or half a cosine from `lr` towards 0."""
    if config.optimizer.schedule == "constant":
        return config.optimizer.lr
    return config.optimizer.lr * 0.5 * (1 + math.cos(math.pi * (step - 1) / total_steps))


def _optimizer(config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
    wanted = config.optimizer
    if wanted.name == "sgd":
        return torch.optim.SGD(
            model.parameters(), lr=wanted.lr, momentum=wanted.momentum, weight_decay=wanted.weight_decay
        )
    return torch.optim.AdamW(model.parameters(), lr=wanted.lr, weight_decay=wanted.weight_decay)


def _timed(batches: Any) -> Iterator[tuple[Batch, float]]:
    """Each batch with the seconds that were spent waiting for it."""
    iterator = iter(batches)
    while True:
        begin = time.perf_counter()
        batch = next(iterator, None)
        if batch is None:
            return
        yield batch, time.perf_counter() - begin


def _hash(model: nn.Module) -> str:
    """SHA-256 of the parameters as FP32, as evidence that runs began alike."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().float().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _facts(
    device: torch.device, threads: int, model: nn.Module, weights_hash: str, precision: Precision
) -> dict[str, Any]:
    """What only the engine knows of this run, as built-in types."""
    return {
        "device": str(device),
        "device_name": devices.name(device),
        "threads": threads,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "parameters": sum(p.numel() for p in model.parameters()),
        "initial_weights_sha256": weights_hash,
        "loss_scaling": precision.scaling_mode,
        "notes": list(precision.notes),
    }
