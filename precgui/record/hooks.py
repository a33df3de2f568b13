"""Watching a training loop that somebody else wrote, by the hooks of its model and optimizers."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from precgui.config import RecordConfig
from precgui.engine.telemetry.backends import device_norms
from precgui.engine.telemetry.hook import Hook
from precgui.engine.telemetry.module_hooks import plain_name
from precgui.engine.telemetry.parameters import first_nonfinite_parameter, updated_by
from precgui.engine.telemetry.readable import readable, unseen
from precgui.engine.telemetry.recorder import Telemetry, Weight
from precgui.events import Emit

_NOTHING = {name: 0 for name in RecordConfig.model_fields if name.endswith("_every")}


@dataclass(frozen=True)
class Seen:
    """Measurements of the hooks in one step. `begun` is the time of its first forward pass, 0 when there was none.

    `skipped` says that not all optimizers updated their weights, `partly` that some did. Without gradients to look at,
    `looked` is false and the norm NaN.
    """

    skipped: bool
    partly: bool
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
        self._model = model
        self._optimizers: list[Optimizer] = []
        self._strangers: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # those of other models
        self._handles: list[RemovableHandle] = []
        self._weights = _weights(model, optimizers)
        if not active:
            config = config.model_copy(update=_NOTHING)
        self._telemetry = (
            Telemetry(config, model, self._weights, emit, modules=not _is_compiled(model)) if config.tensors else None
        )
        if not isinstance(model, torch.jit.ScriptModule):  # takes no hooks
            self._handles.append(model.register_forward_pre_hook(_PassHook(self)))
        for optimizer in optimizers:
            self._adopt(optimizer)
        self._handles.append(register_optimizer_step_post_hook(self._after_any_step))
        self._clear()

    def _adopt(self, optimizer: Optimizer) -> None:
        self._optimizers.append(optimizer)
        self._handles.append(optimizer.register_step_pre_hook(self._before_step))
        self._handles.append(optimizer.register_step_post_hook(self._after_step))

    def _clear(self) -> None:
        self._stepped: set[int] = set()  # by id
        self._begun = 0.0
        self._known: list[float] = []  # norms that telemetry knew
        self._norms: dict[tuple[str, ...], Tensor] = {}  # of the gradients of these names, still on their device
        self._first = ""

    def begin(self, step: int, scale: float) -> None:
        self._clear()
        if sum(len(group["params"]) for each in self._optimizers for group in each.param_groups) != len(self._weights):
            self._weights = _weights(self._model, self._optimizers)
            if self._telemetry is not None:
                self._telemetry.watch(self._weights)
        if self._telemetry is not None:
            self._telemetry.begin(step, scale)

    def seen(self, *, lowered: bool) -> Seen:
        """The measurements of the step; `lowered` says that the scaler met gradients that are not finite.

        Gradients that no optimizer has used for this reason are looked at here, when they are still there.
        """
        left_out = [each for each in self._optimizers if id(each) not in self._stepped]
        if lowered or not self._stepped:
            for optimizer in left_out:
                self._look_at_gradients(optimizer, 1.0)
        norms = [norm for found in self._norms.values() for norm in found.tolist()]
        names = [name for names in self._norms for name in names]
        self._first = first_nonfinite_parameter(
            [name for name, norm in zip(names, norms, strict=True) if not math.isfinite(norm)]
        )
        every = [*self._known, *norms]
        norm = math.hypot(*every) if every else math.nan
        rate = self._lr if self._stepped else float(self._optimizers[0].param_groups[0]["lr"])
        skipped = lowered or not self._stepped
        return Seen(skipped, skipped and bool(self._stepped and left_out), bool(every), rate, norm, self._begun)

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

    def pass_begins(self) -> None:
        """The model is called."""
        if not self._begun and self._model.training and torch.is_grad_enabled():
            self._begun = time.perf_counter()
            if self._telemetry is not None:
                self._telemetry.start()

    @_disable_dynamo
    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if not self._stepped:
            self._lr = float(optimizer.param_groups[0]["lr"])
        self._stepped.add(id(optimizer))
        scale = getattr(optimizer, "grad_scale", None)  # a fused optimizer unscales by itself
        self._look_at_gradients(optimizer, 1.0 if scale is None else float(scale))
        if self._telemetry is not None:
            self._telemetry.before_update(optimizer)

    @_disable_dynamo
    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self._telemetry is not None:
            self._telemetry.after_update([optimizer])

    @_disable_dynamo
    def _after_any_step(self, optimizer: Optimizer, *_: Any) -> None:
        """Another optimizer of the same weights has taken the place of the known ones: it is watched from now on.

        Where one of these has stepped, it is a wrapper around them.
        """
        if self._stepped or optimizer in self._strangers:
            return
        if updated_by(self._weights, optimizer):
            self._adopt(optimizer)
            self._before_step(optimizer)
        else:
            self._strangers.add(optimizer)

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
                found = list(own.values())
                norms = device_norms(found) if self._telemetry is None else self._telemetry.norms(found)
                self._norms[tuple(own)] = norms if scale == 1 else norms / scale


class _PassHook(Hook):
    """Called by the model before each pass."""

    __slots__ = ("_watch",)

    def __init__(self, watch: LoopWatch) -> None:
        self._watch = watch

    def __call__(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._watch.pass_begins()


def _is_compiled(model: nn.Module) -> bool:
    """Whether it hides its modules."""
    return isinstance(model, (torch._dynamo.OptimizedModule, torch.jit.ScriptModule)) or any(
        module._compiled_call_impl is not None for module in model.modules()
    )


def _weights(model: nn.Module, optimizers: Sequence[Optimizer]) -> list[Weight]:
    """The parameters of the optimizers, under the model's names; parameters that are not the model's by number."""
    names = {id(parameter): plain_name(name) for name, parameter in model.named_parameters()}
    found = [parameter for o in optimizers for group in o.param_groups for parameter in group["params"]]
    return [
        Weight(names.get(id(parameter), f"(parameter {place})"), parameter, parameter)
        for place, parameter in enumerate(found)
    ]
