"""One training step outside of a run, on real or on fake tensors, with its phases reported to a memory tracker."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from precgui.config import RunConfig
from precgui.engine import device as devices
from precgui.engine import execution, precisions, tasks
from precgui.engine.adapters.adapt import add_adapters, parts_of_memory
from precgui.engine.precisions.base import Precision
from precgui.engine.profile.tracker import MemoryTracker
from precgui.engine.tasks.base import Batch, Task
from precgui.engine.torch_private import fake_tensor_mode, tree_map_only
from precgui.engine.update import make_average, make_optimizer, single_norms, total_norm
from precgui.sentences import L_


@dataclass(slots=True)
class StepParts:
    """The inputs of one step, on `device`; `batches` are those of the step, still on the CPU."""

    config: RunConfig
    device: torch.device
    task: Task
    precision: Precision
    model: nn.Module
    weights: list[nn.Parameter]
    optimizer: Optimizer
    average: list[Tensor]
    batches: list[Batch]
    fake: Any = None  # the FakeTensorMode of tensors that have no numbers

    def held(self) -> dict[str, dict[str, Any]]:
        """The tensors that exist between two steps, by part of the ledger and name."""
        names = {id(p) for p in self.model.parameters()}
        masters = [weight for weight in self.weights if id(weight) not in names]
        return {
            "weights": dict(itertools.chain(self.model.named_parameters(), self.model.named_buffers())),
            "master": {"": masters},
            "optimizer": {"": [list(self.optimizer.state.values()), self.average]},
            "batch": {"": self.batches if self.device.type == "cpu" else []},  # else the step makes a copy there
            **parts_of_memory(self.model),
        }


def build_step(config: RunConfig, *, fake: bool = False) -> StepParts:
    """Model, optimizer and the batches of one step as `config` says; with `fake`, parameters and batches have shapes
    only. Raises EngineError for faults that the user can correct."""
    device = torch.device("cpu") if fake else devices.choose(config.device)
    precision = precisions.make(config, device)
    precision.prepare()
    torch.manual_seed(config.seed)
    task = tasks.make(config, lambda _: None)
    model = task.model()
    if config.adapter.kind != "none":  # an untrained base takes as much memory and time
        precision.notes += add_adapters(model, config, device)
    model = execution.prepare_model(
        precision.convert(model), _not_compiled(config) if fake else config.train, precision
    )
    model.train()
    precision.begin_epoch(model, 1)
    batches = list(itertools.islice(iter(task.train_batches()), config.train.accumulation))
    mode = fake_tensor_mode() if fake else None
    if mode is not None:
        fake_parameters(model, mode)
        batches = tree_map_only(Tensor, mode.from_tensor, batches)
    with mode or contextlib.nullcontext():
        weights = precision.weights(model)
        optimizer = make_optimizer(config, weights)
        average = make_average(config, model, weights)
    kept = list(average.values) if average is not None else []
    return StepParts(config, device, task, precision, model, weights, optimizer, kept, batches, mode)


def _not_compiled(config: RunConfig) -> Any:
    return config.train.model_copy(update={"compile": False})


def fake_parameters(model: nn.Module, mode: Any) -> None:
    """Put fake tensors in the place of all parameters and buffers; shared ones stay shared.

    `Module.to` would do, but cannot replace parameters by fake ones in place.
    """
    fakes: dict[int, Any] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                fake = fakes.get(id(parameter))
                if fake is None:
                    fake = nn.Parameter(mode.from_tensor(parameter.detach()), parameter.requires_grad)
                    fakes[id(parameter)] = fake
                    fakes[id(fake)] = fake
                module._parameters[name] = fake
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = mode.from_tensor(buffer)


class PhaseListener(Protocol):
    """Receives the begin of each phase of a step, and the gradients."""

    def begin(self, phase: str) -> None: ...
    def hold(self, kind: str, named: Mapping[str, Any]) -> None: ...


def step(parts: StepParts, tracker: PhaseListener | None = None) -> None:
    """One step as `engine.loop` makes it: gradients from before are dropped first."""
    parts.optimizer.zero_grad(set_to_none=True)
    losses = []
    samples = sum(len(targets) for _, targets in parts.batches)
    for batch in parts.batches:
        _begin(tracker, "forward")
        loss = _loss(parts, batch)
        if len(parts.batches) > 1:
            loss = loss * (len(batch[1]) / samples)
        _begin(tracker, "backward")
        parts.precision.backward(loss)
        losses.append(loss.detach())
        del loss
    _begin(tracker, L_("update"))
    _update(parts, tracker)
    _begin(tracker, "end")


def _begin(tracker: PhaseListener | None, phase: str) -> None:
    if tracker is not None:
        tracker.begin(phase)


def _loss(parts: StepParts, batch: Batch) -> Tensor:
    outputs, targets = execution.forward(parts.model, parts.precision, parts.config.train, batch)
    return parts.task.loss(outputs, targets)


def _update(parts: StepParts, tracker: PhaseListener | None) -> None:
    precision, train = parts.precision, parts.config.train
    masters = getattr(precision, "masters", None)
    if parts.fake is None:
        precision.unscale(parts.optimizer)
    elif masters is not None:
        masters.take_gradients()
    learned = [weight for weight in parts.weights if weight.grad is not None]
    gradients = [weight.grad for weight in learned if weight.grad is not None]
    if tracker is not None:
        tracker.hold("gradients", {"": gradients})
    norm = total_norm(single_norms(gradients))
    del gradients
    if train.clip_norm is not None:
        nn.utils.clip_grads_with_norm_(learned, train.clip_norm, norm)
    if parts.fake is None:
        precision.step(parts.optimizer)
        return
    parts.optimizer.step()  # a scaler would read whether gradients are finite, which fake ones do not have
    if masters is not None:
        masters.give_weights()


@contextlib.contextmanager
def tracked(parts: StepParts, *, keep_operations: bool = False) -> Iterator[MemoryTracker]:
    """A tracker that knows what is there already, and each gradient as it comes."""
    tracker = MemoryTracker(parts.model, keep_operations=keep_operations)
    parts.optimizer.zero_grad(set_to_none=True)
    for kind, named in parts.held().items():
        tracker.hold(kind, named)
    hooks = [
        parameter.register_post_accumulate_grad_hook(
            lambda held, name=name: tracker.hold("gradients", {name: held.grad})
        )
        for name, parameter in parts.model.named_parameters()
        if parameter.requires_grad
    ]
    try:
        with tracker:
            yield tracker
    finally:
        for hook in hooks:
            hook.remove()
