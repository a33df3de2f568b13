"""A loss of a column [B, 1] and a vector [B], which broadcasting compares each with each."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.watcher import OperationCall, Watcher

_PAIRED = ("sub", "rsub", "mul", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_OF_LOSSES = {  # elementwise
    "pow", "abs", "square", "mul", "neg", "where", "log", "exp", "add", "div", "clamp", "log_cosh", "smooth_l1_loss",
    "huber_loss", "sqrt", "relu",
}  # fmt: skip
_MEANS = ("mean", "sum")


class BroadcastLosses(Watcher):
    """Told of each operation outside of the optimizer: finds differences of shape [B, B] that a loss is the mean of.

    One operand has a gradient, the other none, and neither was made a column by the loop itself (`unsqueeze`), as
    losses of pairs do on purpose.
    """

    fact = "broadcast_loss"

    def __init__(self) -> None:
        super().__init__()
        self._shapes = TensorMarks[tuple[int, ...]]()  # before they were expanded
        self._columns = TensorMarks[bool]()  # made on purpose
        self._pairs = TensorMarks[tuple[str, int]]()

    def observe(self, call: OperationCall) -> None:
        name, args, out, first = call.name, call.args, call.out, call.args[0]
        if not isinstance(out, Tensor):
            return
        if name == "unsqueeze":
            self._columns[out] = True
        elif name == "expand" and isinstance(first, Tensor):
            self._shapes[out] = tuple(first.shape)
            self._keep_purpose(first, out)
        elif call.keeps_numbers and isinstance(first, Tensor) and first.shape == out.shape:
            self._keep_purpose(first, out)
        if name in _PAIRED and (pair := self._pair(name, args)) is not None:
            if out.dim() == 0:
                self._note(pair)
            else:
                self._pairs[out] = pair
            return
        if (known := self._pairs.get(first)) is None:
            return
        if name in _MEANS and out.dim() == 0:
            self._note(known)
        elif (call.keeps_numbers or name.removesuffix("_") in _OF_LOSSES) and out.shape == first.shape:
            self._pairs[out] = known

    def _keep_purpose(self, first: Tensor, out: Tensor) -> None:
        if self._columns.get(first):
            self._columns[out] = True

    def _pair(self, name: str, args: Any) -> tuple[str, int] | None:
        """The operation and B, where a column meets a vector by the rules of broadcasting alone."""
        if len(args) < 2 or not all(isinstance(each, Tensor) for each in args[:2]):
            return None
        shapes = [self._own_shape(each) for each in args[:2]]
        column = next((shape for shape in shapes if len(shape) == 2 and shape[1] == 1), None)
        vector = next((shape for shape in shapes if len(shape) == 1), None)
        if column is None or vector is None or column[0] != vector[0] or vector[0] < 2:
            return None
        if args[0].requires_grad == args[1].requires_grad or any(map(self._columns.get, args[:2])):
            return None
        return name, vector[0]

    def _own_shape(self, tensor: Tensor) -> tuple[int, ...]:
        known = self._shapes.get(tensor)
        return tuple(tensor.shape) if known is None else known

    def _note(self, pair: tuple[str, int]) -> None:
        if self._has_room(pair):
            self._rows.setdefault(pair, {"operation": pair[0], "samples": pair[1], "step": self._step})
