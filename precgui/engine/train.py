"""One training run: config in, events out. Knows no window, no file and no particular precision."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from precgui.config import RunConfig
from precgui.engine import census, mechanics, precisions, switches, tasks
from precgui.engine import device as devices
from precgui.engine.averaging import WeightAverage
from precgui.engine.certificate import certificate
from precgui.engine.errors import EngineError
from precgui.engine.tasks import Batch, Task
from precgui.engine.telemetry import Telemetry, Weight
from precgui.events import Emit, Evaluated, Facts, Incident, IncidentKind, RunEnded, RunStarted, Severity, StepDone


def train(config: RunConfig, emit: Emit, stopped: Callable[[], bool]) -> None:
    """Train as `config` says, emitting events from RunStarted to RunEnded; ends early once `stopped()` is true.

    Event times are seconds since the call. Raises EngineError for what the user can mend (a device that
    is not there), MemoryError when a batch does not fit, and lets errors of the model through; in all cases no RunEnded
    has been emitted. torch's process-wide switches are afterwards as they were before.
    """
    with switches.restored():
        try:
            _Training(config, emit, stopped).run()
        except RuntimeError as error:
            if devices.is_out_of_memory(error):
                raise MemoryError(devices.memory_told(error)) from error
            raise


class _Training:
    """The loop and its state."""

    def __init__(self, config: RunConfig, emit: Emit, stopped: Callable[[], bool]) -> None:
        self._start = time.perf_counter()
        self.config, self.emit, self.stopped = config, emit, stopped
        threads = devices.pin_threads(config.threads)
        self.device = devices.choose(config.device)
        if config.train.deterministic:
            switches.set_deterministic(self.device)
        self.precision = precisions.make(config, self.device)
        self.precision.prepare()
        torch.manual_seed(config.seed)
        self.task: Task = tasks.make(config)
        # Every precision starts from the same FP32 weights: built first, converted after.
        model = self.task.model()
        weights_hash = _hash(model)
        self.model = mechanics.prepare_model(self.precision.convert(model), config.train)
        weights = self.precision.weights(self.model)
        self.optimizer = _optimizer(config, weights)
        self.average = _average(config, self.model, weights)
        self.step = 0
        self.steps_per_epoch = math.ceil(self.task.steps_per_epoch / config.train.accumulation)
        self.total_steps = config.train.epochs * self.steps_per_epoch
        if config.train.max_steps is not None:
            self.total_steps = min(self.total_steps, config.train.max_steps)
        self.telemetry = self._telemetry(weights) if config.record.tensors else None
        self._facts = _facts(self.device, threads, self.model, weights_hash, self.precision)
        self._facts |= {"metric": vars(self.task.metric), "data": dict(self.task.facts)}

    def run(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self.emit(RunStarted(self._now(), self.total_steps, self.steps_per_epoch, str(self.device), self._facts))
        for note in self.precision.notes:
            self._incident("emulated" if self.precision.labels else "note", "info", note)
        epoch = 0
        while self.step < self.total_steps and not self.stopped():
            epoch += 1
            self._epoch(epoch)
            if not self.stopped():
                self._evaluate(epoch)
        if not self.stopped():
            self._finish()
        complete = self.step >= self.total_steps
        message = "" if complete else f"stopped after step {self.step} of {self.total_steps}"
        self.emit(RunEnded(self._now(), "completed" if complete else "stopped", message))

    def _epoch(self, epoch: int) -> None:
        self.model.train()
        self.precision.begin_epoch(self.model, epoch)
        for batches, data_s in _timed(self.task.train_batches(), self.config.train.accumulation):
            if self.step >= self.total_steps or self.stopped():
                return
            self.step += 1
            if self.step == 1:
                self._first_step(batches, data_s)
            else:
                self._step(batches, data_s)

    def _first_step(self, batches: list[Batch], data_s: float) -> None:
        """The first step, counted: which formats really ran. It is not compiled, so that each operation is seen."""
        counted = census.Census(self.model, self.precision.labels, self._facts["certificate"]["fp32_products"])
        eager = torch.compiler.set_stance("force_eager") if self.config.train.compile else contextlib.nullcontext()
        with eager, counted:
            self._step(batches, data_s)
        facts = counted.facts()
        self.emit(Facts(self._now(), {"census": facts}))
        self._incident("note", "info", census.sentence(facts))

    def _step(self, batches: list[Batch], data_s: float) -> None:
        begin = time.perf_counter()
        lr = self._set_lr()
        scale = self.precision.scale
        self.optimizer.zero_grad(set_to_none=True)
        samples = sum(len(targets) for _, targets in batches)
        if self.telemetry:
            self.telemetry.begin(self.step, scale)
        loss = self._accumulate(batches, samples)
        self.precision.unscale(self.optimizer)
        if self.telemetry:
            self.telemetry.gradients()
        norm = self._clip()
        if self.telemetry:
            self.telemetry.before_update()
        skipped = self.precision.step(self.optimizer)
        if self.telemetry:
            self.telemetry.after_update([self.optimizer])
        if self.average is not None and not skipped:
            self.average.update()
        loss_value, norm_value = torch.stack((loss, norm.to(loss.dtype))).tolist()  # the one synchronisation
        step_s = time.perf_counter() - begin
        self.emit(
            StepDone(
                step=self.step, time_s=self._now(), loss=loss_value, scale=scale, skipped=skipped, lr=lr,
                grad_norm=norm_value, step_s=step_s, data_s=data_s, samples=samples,
                memory_bytes=devices.peak_memory_bytes(self.device),
            )
        )  # fmt: skip
        self._report(loss_value, norm_value, skipped, scale)
        if self.telemetry:
            finite = math.isfinite(loss_value) and math.isfinite(norm_value)
            self.telemetry.end(self._now(), step_s, [self.optimizer], alarm=not finite)

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
        inputs, targets = self.precision.batch(*batch)
        if self.config.train.channels_last:
            inputs = mechanics.channels_last(inputs)
        with self.precision.cast(), mechanics.attention(self.config.train.attention):
            outputs = self.model(inputs)
        return self.precision.results(outputs), targets

    def _clip(self) -> Tensor:
        """The L2 norm of the unscaled gradients, before they are clipped to the configured norm."""
        weights = [w for group in self.optimizer.param_groups for w in group["params"] if w.grad is not None]
        norm = total_norm([w.grad for w in weights if w.grad is not None])
        if self.config.train.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(weights, self.config.train.clip_norm, norm)
        return norm

    def _report(self, loss: float, norm: float, skipped: bool, scale: float) -> None:
        """The incidents of the step just done."""
        if not math.isfinite(loss):
            module = self.telemetry.first_nonfinite() if self.telemetry else ""
            where = f", first not finite is the output of {module}" if module else ""
            self._incident("nonfinite_loss", "error", f"the loss is {loss}{where}", module)
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
        name = self.precision.first_nonfinite(self.model)
        where = f"first in {name}" if name else "each is finite, their norm overflows FP32"
        self._incident("nonfinite_gradient", "warning" if skipped else "error", f"gradients not finite: {where}", name)

    def _telemetry(self, weights: list[nn.Parameter]) -> Telemetry:
        trained = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        named = [Weight(name, own, weight) for (name, own), weight in zip(trained, weights, strict=True)]
        return Telemetry(self.config.record, self.model, named, self.emit, modules=not self.config.train.compile)

    def _evaluate(self, epoch: int) -> None:
        with self.average.applied() if self.average else contextlib.nullcontext(), torch.inference_mode():
            self._validate(epoch)

    def _finish(self) -> None:
        with self.average.applied() if self.average else contextlib.nullcontext():
            for facts, sentences in self.precision.finish(self.model, self.task, self.stopped):
                self.emit(Facts(self._now(), facts))
                for sentence in sentences:
                    self._incident("note", "info", sentence)

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
        self.emit(Evaluated(self.step, epoch, self._now(), loss / count, tasks.ratio(scores)))

    def _set_lr(self) -> float:
        lr = learning_rate(self.config, self.step, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return lr

    def _incident(self, kind: IncidentKind, severity: Severity, message: str, module: str = "") -> None:
        self.emit(Incident(self._now(), self.step, kind, severity, message, module))

    def _now(self) -> float:
        return time.perf_counter() - self._start


def total_norm(gradients: list[Tensor]) -> Tensor:
    """The L2 norm over all gradients, in FP32 at least: it would overflow in FP16 and have three digits in BF16."""
    narrow = any(gradient.element_size() < 4 for gradient in gradients)
    norms = torch._foreach_norm(gradients, dtype=torch.float32 if narrow else None)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def learning_rate(config: RunConfig, step: int, total_steps: int) -> float:
    """The learning rate of a step counted from 1: constant, or half a cosine from `lr` towards 0."""
    if config.optimizer.schedule == "constant":
        return config.optimizer.lr
    return config.optimizer.lr * 0.5 * (1 + math.cos(math.pi * (step - 1) / total_steps))


def _optimizer(config: RunConfig, weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    wanted = config.optimizer
    if wanted.name == "sgd":
        return torch.optim.SGD(weights, lr=wanted.lr, momentum=wanted.momentum, weight_decay=wanted.weight_decay)
    return torch.optim.AdamW(weights, lr=wanted.lr, eps=wanted.eps, weight_decay=wanted.weight_decay)


def _average(config: RunConfig, model: nn.Module, weights: list[nn.Parameter]) -> WeightAverage | None:
    if config.train.ema_decay is None:
        return None
    return WeightAverage([p for p in model.parameters() if p.requires_grad], weights, config.train.ema_decay)


def _timed(batches: Iterable[Batch], count: int) -> Iterator[tuple[list[Batch], float]]:
    """Up to `count` batches at a time, with the seconds that were spent waiting for them."""
    iterator = iter(batches)
    while True:
        begin = time.perf_counter()
        group = list(itertools.islice(iterator, count))
        if not group:
            return
        yield group, time.perf_counter() - begin


def _hash(model: nn.Module) -> str:
    """SHA-256 of the parameters as FP32, as evidence that runs began alike."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().float().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _facts(
    device: torch.device, threads: int, model: nn.Module, weights_hash: str, precision: precisions.Precision
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
        "kept_in_fp32": list(precision.kept),
        "certificate": certificate(device),
    }
