"""Watching a training loop that somebody else wrote, by the hooks of its model and optimizers."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from precgui.config import RecordConfig
from precgui.engine.telemetry import Telemetry, Weight
from precgui.engine.telemetry_outputs import plain_name, unseen
from precgui.events import Emit


@dataclass(frozen=True)
class Seen:
    """What the hooks saw of a step. `begun` is the time of its first forward pass, 0 when there was none."""

    stepped: bool
    lr: float
    grad_norm: float
    begun: float


class LoopWatch:
    """Hooks that read: gradients and learning rate when an optimizer steps, outputs when the model runs.

    `begin` opens a step, `seen` and `end` close it. A watch that is not `active` keeps time only.
    """

    def __init__(
        self,
        config: RecordConfig,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        emit: Emit,
        *,
        active: bool = True,
    ) -> None:
        self._optimizers, self._model = list(optimizers), model
        self._weights = _weights(model, optimizers)
        wanted = config.tensors and active
        compiled = any(module._compiled_call_impl is not None for module in model.modules())
        compiled = compiled or isinstance(model, torch._dynamo.OptimizedModule)
        self._telemetry = Telemetry(config, model, self._weights, emit, modules=not compiled) if wanted else None
        self._handles: list[RemovableHandle] = [model.register_forward_pre_hook(self._on_forward)]
        for optimizer in self._optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._before_step))
            self._handles.append(optimizer.register_step_post_hook(self._after_step))
        self._clear()

    def _clear(self) -> None:
        self._stepped, self._begun = False, 0.0
        self._norms: list[Tensor] = []

    def begin(self, step: int, scale: float) -> None:
        self._clear()
        if self._telemetry is not None:
            self._telemetry.begin(step, scale)

    def seen(self) -> Seen:
        """What the step was. Gradients of a skipped step are looked at here, when they are still there."""
        if not self._stepped:
            for optimizer in self._optimizers:
                self._look_at_gradients(optimizer, 1.0)
        squares = torch.stack(self._norms).square().sum().sqrt() if self._norms else None
        norm = math.nan if squares is None else float(squares)
        rate = self._optimizers[0].param_groups[0]["lr"] if self._optimizers else math.nan
        return Seen(self._stepped, self._lr if self._stepped else float(rate), norm, self._begun)

    def end(self, time_s: float, step_s: float, *, alarm: bool) -> None:
        if self._telemetry is not None:
            self._telemetry.end(time_s, step_s, self._optimizers, alarm=alarm)

    def first_output(self) -> str:
        """The first module whose output was not finite, or ''."""
        return self._telemetry.first_nonfinite() if self._telemetry is not None else ""

    def first_gradient(self) -> str:
        """The first parameter whose gradient is not finite, or ''."""
        with unseen():
            for weight in self._weights:
                if weight.own.grad is not None and not bool(weight.own.grad.isfinite().all()):
                    return weight.name
        return ""

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._telemetry is not None:
            self._telemetry.close()

    def _on_forward(self, *_: Any) -> None:
        if not self._begun and self._model.training and torch.is_grad_enabled():
            self._begun = time.perf_counter()

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if not self._stepped:
            self._lr = float(optimizer.param_groups[0]["lr"])
        self._stepped = True
        scale = getattr(optimizer, "grad_scale", None)  # a fused optimizer unscales by itself
        self._look_at_gradients(optimizer, 1.0 if scale is None else float(scale))
        if self._telemetry is not None:
            self._telemetry.before_update(optimizer)

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self._telemetry is not None:
            self._telemetry.after_update([optimizer])

    def _look_at_gradients(self, optimizer: Optimizer, scale: float) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        gradients = [parameter.grad.detach() for parameter in parameters if parameter.grad is not None]
        dense = [g.coalesce().values() if g.is_sparse else g for g in gradients]
        if dense:
            with unseen():
                norms = torch._foreach_norm(dense, dtype=torch.float32)
                self._norms.append(
                    torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms])) / scale
                )
        if self._telemetry is not None:
            self._telemetry.gradients(optimizer, scale)


def _weights(model: nn.Module, optimizers: Sequence[Optimizer]) -> list[Weight]:
    """What the optimizers update, under the model's names; parameters that are not the model's by number."""
    names = {id(parameter): plain_name(name) for name, parameter in model.named_parameters()}
    found = [parameter for o in optimizers for group in o.param_groups for parameter in group["params"]]
    return [
        Weight(names.get(id(parameter), f"(parameter {place})"), parameter, parameter)
        for place, parameter in enumerate(found)
    ]
