"""Operations between the outputs of a model and its loss that are undefined for some numbers, and the way to there."""

from __future__ import annotations

import torch
from torch import Tensor

from precgui.engine.dtype_names import dtype_name
from precgui.engine.shadow.origin import line_of_user
from precgui.engine.watcher import OperationCall, Watcher

_AT_ZERO = {"log", "log2", "log10", "sqrt", "rsqrt", "reciprocal"}  # of the operand
_AT_ONE = {"acos", "asin", "atanh"}  # of its magnitude
_NORMS = {"linalg_vector_norm", "norm", "std", "var"}  # at a result of 0 their derivative is undefined
_DIVISIONS = {"div", "true_divide"}


class LossOperations(Watcher):
    """Told of each operation outside of the optimizer; reads those outside of the model that a gradient passes.

    `distance` is that from the end of the domain, the least of the steps seen: of a divisor its least magnitude, of
    a logarithm, root or power the least operand, of an angle 1 - max|x|, of a norm or deviation the least result.
    """

    fact = "loss_operations"

    def observe(self, call: OperationCall) -> None:
        first = call.args[0]
        if call.module is not None:
            self._forget(call)
            return
        if not isinstance(first, Tensor) or not torch.is_grad_enabled():
            return
        edge = _edge(call)
        if edge is None or edge.is_complex() or not any(each.requires_grad for each in call.tensors):
            return
        line = line_of_user()
        key = call.base, line.label
        distance = _least(edge)
        if line.number and distance is not None and self._has_room(key):
            self._note(key, distance, dtype_name(first.dtype))

    def _forget(self, call: OperationCall) -> None:
        """Drop a row of the first step, which does not know where the forward pass of the whole model ends."""
        if self._step > 1 and any(row["step"] == 1 for row in self._rows.values()):
            key = call.base, line_of_user().label
            if key in self._rows and self._rows[key]["step"] == 1:
                del self._rows[key]

    def _note(self, key: tuple[str, str], distance: float, low: str) -> None:
        known = self._rows.get(key)
        is_nearer = known is None or distance < known["distance"]
        self._rows[key] = {
            "operation": key[0], "line": key[1], "format": low, "step": self._step, "count": self._steps_with(key),
            "distance": distance if is_nearer or known is None else known["distance"],
            "nearest": self._step if is_nearer or known is None else known["nearest"],
        }  # fmt: skip


@torch.no_grad()
def _least(distances: Tensor) -> float | None:
    """The least finite number; None without any."""
    finite = distances[distances.isfinite()]
    return float(finite.min()) if finite.numel() else None


@torch.no_grad()
def _edge(call: OperationCall) -> Tensor | None:
    """The distances of the numbers of an operation from where it is undefined; None of one that is always defined."""
    name, first, second = call.base, call.args[0].detach(), call.second
    result: Tensor | None = None
    if name in _DIVISIONS and isinstance(second, Tensor):
        result = second.abs()
    elif name == "log1p":
        result = first + 1
    elif name in _AT_ZERO or (name == "pow" and isinstance(second, int | float) and second < 1 and second != 0):
        result = first
    elif name in _AT_ONE:
        result = 1 - first.abs()
    elif name in _NORMS and isinstance(call.out, Tensor):
        result = call.out.detach()
    return result
