"""Gradients in FP16 that a loop divides by its own loss scale before it widens them: small ones are lost in between."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.operation_names import cast_operand
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import as_list
from precgui.engine.watcher import OperationCall, Watcher

_QUOTIENTS = {"div": -1, "mul": 1, "_foreach_div": -1, "_foreach_mul": 1}  # and the power of the factor
_LEAST_SCALE = 64.0  # a smaller number may be that of micro-steps
_WIDE = (torch.float32, torch.float64)


class EarlyDivisions(Watcher):
    """Told of each operation outside of the optimizer: a gradient of the model in FP16 times one small number, in FP16,
    and a cast or a copy of that to FP32."""

    fact = "early_divisions"

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = weakref.ref(model)
        self._divided = TensorMarks[float]()

    def observe(self, call: OperationCall) -> None:
        name = call.base
        if call.module is not None:
            return
        if name in _QUOTIENTS:
            self._divide(name, call)
        elif self._divided and isinstance(call.out, Tensor):
            scale = self._divided.get(cast_operand(call.name, call.args))
            if scale is not None and call.out.dtype in _WIDE:
                self._note(scale)

    def _divide(self, name: str, call: OperationCall) -> None:
        factor = _number(call.second) ** _QUOTIENTS[name] if _number(call.second) > 0 else 0.0
        if not 0 < factor <= 1 / _LEAST_SCALE:
            return
        results = call.args[0] if call.out is None else call.out  # the lists of operations in place return nothing
        for operand, result in zip(as_list(call.args[0]), as_list(results), strict=False):
            are_half = all(isinstance(each, Tensor) and each.dtype is torch.float16 for each in (operand, result))
            if are_half and self._is_gradient(operand):
                self._divided[result] = 1 / factor

    def _is_gradient(self, tensor: Tensor) -> bool:
        model = self._model()
        return model is not None and any(each.grad is tensor for each in model.parameters())

    def _note(self, scale: float) -> None:
        row = self._rows.get(scale)
        if row is None or row["step"] != self._step:
            if self._has_room(scale):
                self._rows[scale] = {"step": self._step, "scale": scale, "parameters": 1}
        else:
            row["parameters"] += 1


def _number(value: Any) -> float:
    """A number, or the one of a tensor in main memory, for which nothing waits; 0 of others."""
    if isinstance(value, Tensor):
        is_here = value.numel() == 1 and value.device.type == "cpu" and not value.is_meta
        return float(value.detach()) if is_here else 0.0
    return float(value) if isinstance(value, int | float) else 0.0
