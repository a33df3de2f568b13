"""Operations between the outputs of a model and its loss that are undefined for some numbers, and the way to there."""

from __future__ import annotations

import torch
from torch import Tensor

from precgui.engine.dtype_names import dtype_name
from precgui.engine.loss_arguments import ctc_sequences, places_needed
from precgui.engine.shadow.origin import line_of_user
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.watcher import OperationCall, Watcher

_AT_ZERO = {"log", "log2", "log10", "sqrt", "rsqrt", "reciprocal"}  # of the operand
_AT_ONE = {"acos", "asin", "atanh"}  # of its magnitude
_NORMS = {"linalg_vector_norm", "norm", "std", "var"}  # at a result of 0 their derivative is undefined
_DIVISIONS = {"div", "true_divide"}
_CTC = "_ctc_loss"
_Key = tuple[str, str]  # operation and line


class LossOperations(Watcher):
    """Told of each operation outside of the optimizer; reads those outside of the model that a gradient passes, or
    whose results are joined to numbers that one passes, as targets and weights of a loss are.

    `distance` is that from the end of the domain, the least of the steps seen: of a divisor its least magnitude, of
    a logarithm, root or power the least operand, of an angle 1 - max|x|, of a norm or deviation the least result, of a
    CTC loss how many places more an input has than its targets need, and 1.
    """

    fact = "loss_operations"

    def __init__(self) -> None:
        super().__init__()
        self._met: dict[_Key, tuple[float, str]] = {}  # in this step, by operations without a gradient
        self._made_by = TensorMarks[frozenset[_Key]]()  # results of these, and what is computed from them

    def begin(self, step: int) -> None:
        super().begin(step)
        self._met = {}

    def observe(self, call: OperationCall) -> None:
        if call.module is not None:
            self._forget(call)
            return
        learns = any(each.requires_grad for each in call.tensors)
        if found := self._found(call):
            key, distance, low = found
            if learns:
                self._note(key, distance, low)
            else:
                self._met[key] = min(distance, self._met.get(key, found[1:])[0]), low
        self._follow(call, found[0] if found else None, learns=learns)

    def _follow(self, call: OperationCall, key: _Key | None, *, learns: bool) -> None:
        """Follow results without a gradient, and what is computed from them, to where they join numbers with one."""
        if self._step == 1:  # of which the forward pass of the whole model is not told apart
            return
        keys = {each for tensor in call.tensors for each in self._made_by.get(tensor) or ()}
        if learns:
            for each in keys & self._met.keys():
                self._note(each, *self._met.pop(each))
        elif isinstance(call.out, Tensor) and (keys := keys | ({key} if key else set())):
            self._made_by[call.out] = frozenset(keys)

    def _found(self, call: OperationCall) -> tuple[_Key, float, str] | None:
        """The operation at its line, its distance and its format; None of one that is defined for all numbers."""
        edge = _edge(call)
        if edge is None or edge.is_complex():
            return None
        line, distance = line_of_user(), _least(edge)
        if not line.number or distance is None:
            return None
        return (call.base, line.label), distance, dtype_name(call.args[0].dtype)

    def _forget(self, call: OperationCall) -> None:
        """Drop a row of the first step, which does not know where the forward pass of the whole model ends."""
        if self._step > 1 and any(row["step"] == 1 for row in self._rows.values()):
            key = call.base, line_of_user().label
            if key in self._rows and self._rows[key]["step"] == 1:
                del self._rows[key]

    def _note(self, key: _Key, distance: float, low: str) -> None:
        if not self._has_room(key):
            return
        known, nearest = self._rows.get(key), (distance, self._step)
        if known is not None:
            nearest = min((known["distance"], known["nearest"]), nearest)
        self._rows[key] = {
            "operation": key[0], "line": key[1], "format": low, "step": self._step, "count": self._steps_with(key),
            "distance": nearest[0], "nearest": nearest[1],
        }  # fmt: skip


@torch.no_grad()
def _least(distances: Tensor) -> float | None:
    """The least finite number; None without any."""
    finite = distances[distances.isfinite()]
    return float(finite.min()) if finite.numel() else None


@torch.no_grad()
def _edge(call: OperationCall) -> Tensor | None:
    """The distances of the numbers of an operation from where it is undefined; None of one that is always defined."""
    if not isinstance(call.args[0], Tensor):
        return None
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
    elif name == _CTC:
        sequences = ctc_sequences(*call.args[1:4])
        result = torch.tensor([places - places_needed(targets) + 1 for targets, places in sequences])
    elif name in _NORMS and isinstance(call.out, Tensor):
        result = call.out.detach()
    return result
