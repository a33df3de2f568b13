"""The model as the run file describes it: classes of modules, parameters, buffers, and the order in which they ran."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from precgui.engine.dtype_names import dtype_name
from precgui.engine.module_calls import plain_name
from precgui.engine.telemetry.guard import LET_THROUGH, Guard
from precgui.engine.telemetry.hook import Hook
from precgui.engine.torch_private import graph_task
from precgui.events import ModelDescribed, ModuleInfo, ParameterInfo, ParameterRole


class FirstPassOrder:
    """Notes in which order modules return and gradients become complete, from `begin` on, the first time of each."""

    def __init__(self, guard: Guard = LET_THROUGH) -> None:
        self._guard = guard
        self.forward: dict[str, int] = {}  # by name of the module, place from 0
        self.backward: dict[int, int] = {}  # by id of the parameter
        self._handles: list[RemovableHandle] = []

    def begin(self, model: nn.Module) -> None:
        for name, module in model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):  # which takes no hooks
                self._handles.append(
                    module.register_forward_hook(_ReturnedHook(self._guard, self.forward, plain_name(name)))
                )
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_leaf:
                hook = _CompleteHook(self._guard, self.backward)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class _ReturnedHook(Hook):
    """Called by a module that returns."""

    __slots__ = ("_name", "_order")

    def __init__(self, guard: Guard, order: dict[str, int], name: str) -> None:
        super().__init__(guard)
        self._order, self._name = order, name

    def __call__(self, *_: Any) -> None:
        if not torch.compiler.is_compiling() and graph_task() == -1:
            self._order.setdefault(self._name, len(self._order))


class _CompleteHook(Hook):
    """Called by a parameter whose gradient is complete."""

    __slots__ = ("_order",)

    def __init__(self, guard: Guard, order: dict[int, int]) -> None:
        super().__init__(guard)
        self._order = order

    def __call__(self, parameter: Tensor) -> None:
        self._order.setdefault(id(parameter), len(self._order))


def described(
    model: nn.Module,
    updated: Collection[int],
    copies: Sequence[tuple[str, Tensor]],
    order: FirstPassOrder,
    time_s: float,
) -> ModelDescribed:
    """The model now. `updated` are the ids of the parameters that optimizers update, `copies` copies of weights that
    the training keeps, some of them perhaps parameters of the model."""
    modules = tuple(
        ModuleInfo(name, _class(module), order.forward.get(name, -1))
        for name, module in ((plain_name(path), module) for path, module in model.named_modules())
    )
    copied = {name for name, _ in copies}
    own = {plain_name(name): parameter for name, parameter in model.named_parameters()}
    parameters = [
        _info(name, "ema" if name in copied else "parameter", p, id(p) in updated, order.backward.get(id(p), -1))
        for name, p in own.items()
    ]
    parameters += [_info(plain_name(name), "buffer", buffer) for name, buffer in model.named_buffers()]
    parameters += [_info(name, "ema", tensor) for name, tensor in copies if name not in own]
    return ModelDescribed(time_s, modules, tuple(parameters))


def _info(name: str, role: ParameterRole, tensor: Tensor, updated: bool = False, order: int = -1) -> ParameterInfo:
    return ParameterInfo(
        name, role, dtype_name(tensor.dtype), tuple(tensor.shape), tensor.requires_grad, updated, order
    )


def _class(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"
