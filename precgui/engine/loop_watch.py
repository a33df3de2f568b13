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
from precgui.engine.telemetry_outputs import plain_name
from precgui.engine.telemetry_tensors import readable, unseen
from precgui.engine.telemetry_weights import updated_by
from precgui.events import Emit

_NOTHING = {name: 0 for name in RecordConfig.model_fields if name.endswith("_every")}


@dataclass(frozen=True)
class Seen:
    """What the hooks saw of a step. `begun` is the time of its first forward pass, 0 when there was none.

    Without gradients to look at, `looked` is false and the norm NaN.
    """

    stepped: bool
    looked: bool
    lr: float
    grad_norm: float
    begun: float


class LoopWatch:
    """Hooks that read: gradients and learning rate when an optimizer steps, outputs when the model runs.

    `begin` opens a step, `seen` and `end` close it. A watch that is not `active` only notices what is not finite.
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
        if not active:
            config = config.model_copy(update=_NOTHING)
        compiled = any(module._compiled_call_impl is not None for module in model.modules())
        compiled = compiled or isinstance(model, torch._dynamo.OptimizedModule)
        self._telemetry = (
            Telemetry(config, model, self._weights, emit, modules=not compiled) if config.tensors else None
        )
        self._handles: list[RemovableHandle] = [model.register_forward_pre_hook(self._on_forward)]
        for optimizer in self._optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._before_step))
            self._handles.append(optimizer.register_step_post_hook(self._after_step))
        self._clear()

    def _clear(self) -> None:
        self._stepped, self._begun = False, 0.0
        self._known: list[float] = []  # norms that telemetry knew
        self._norms: dict[str, Tensor] = {}  # of single gradients, still on their device
        self._first = ""

    def begin(self, step: int, scale: float) -> None:
        self._clear()
        if self._telemetry is not None:
            self._telemetry.begin(step, scale)

    def seen(self) -> Seen:
        """What the step was. Gradients of a skipped step are looked at here, when they are still there."""
        if not self._stepped:
            for optimizer in self._optimizers:
                self._look_at_gradients(optimizer, 1.0)
        norms = torch.stack(list(self._norms.values())).tolist() if self._norms else []
        self._first = next((name for name, n in zip(self._norms, norms, strict=True) if not math.isfinite(n)), "")
        every = [*self._known, *norms]
        norm = math.hypot(*every) if every else math.nan
        rate = self._optimizers[0].param_groups[0]["lr"] if self._optimizers else math.nan
        return Seen(self._stepped, bool(every), self._lr if self._stepped else float(rate), norm, self._begun)

    def end(self, time_s: float, step_s: float, *, alarm: bool) -> None:
        if self._telemetry is not None:
            self._telemetry.end(time_s, step_s, self._optimizers, alarm=alarm)

    def first_output(self) -> str:
        """The first module whose output was not finite, or ''."""
        return self._telemetry.first_nonfinite() if self._telemetry is not None else ""

    def first_gradient(self) -> str:
        """The first parameter whose gradient was not finite when it was looked at, or ''; known after `seen`."""
        name = self._telemetry.first_nonfinite_gradient() if self._telemetry is not None else ""
        return name or self._first

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._telemetry is not None:
            self._telemetry.close()

    def _on_forward(self, *_: Any) -> None:
        if not self._begun and self._model.training and torch.is_grad_enabled():
            self._begun = time.perf_counter()
            if self._telemetry is not None:
                self._telemetry.start()

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
        seen = self._telemetry.gradients(optimizer, scale) if self._telemetry is not None else None
        if seen is not None:
            self._known.append(seen)
            return
        with unseen():
            named = [
                (w.name, readable(w.own.grad)) for w in updated_by(self._weights, optimizer) if w.own.grad is not None
            ]
            own = {name: gradient for name, gradient in named if gradient is not None}
            if own:
                norms = torch._foreach_norm(list(own.values()), dtype=torch.float32)
                torch._foreach_div_(norms, scale)
                self._norms |= {name: norm.to(norms[0].device) for name, norm in zip(own, norms, strict=True)}


def _weights(model: nn.Module, optimizers: Sequence[Optimizer]) -> list[Weight]:
    """What the optimizers update, under the model's names; parameters that are not the model's by number."""
    names = {id(parameter): plain_name(name) for name, parameter in model.named_parameters()}
    found = [parameter for o in optimizers for group in o.param_groups for parameter in group["params"]]
    return [
        Weight(names.get(id(parameter), f"(parameter {place})"), parameter, parameter)
        for place, parameter in enumerate(found)
    ]
