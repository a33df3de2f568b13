"""Probabilities that a loss takes for scores: softmax or sigmoid is applied twice."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import graph_task, operation_name

_FUNCTIONS = {"_softmax": "softmax", "_safe_softmax": "softmax", "sigmoid": "sigmoid", "sigmoid_": "sigmoid"}
_KEEPING = {"_to_copy", "clone", "_unsafe_view", "index", "index_select", "masked_select", "cat", "stack", "clamp",
            "clamp_min", "clamp_max", "lift_fresh", "contiguous"}  # fmt: skip
_AGAIN = {  # operations of a loss, and the functions of which they compute the logarithm themselves
    "_log_softmax": ("softmax",),
    "binary_cross_entropy_with_logits": ("softmax", "sigmoid"),
    "log_sigmoid_forward": ("sigmoid",),
}


class RepeatedActivations:
    """Told of each operation outside of the optimizer; follows probabilities that learn through views and selections.

    The softmax of a log-softmax, and a logarithm of probabilities, are scores of the same probabilities, and no fault.
    """

    def __init__(self) -> None:
        self._step = 0
        self._made = TensorMarks[tuple[str, str | None]]()  # the function and its module
        self._sums = TensorMarks[bool]()  # logsumexp of probabilities
        self._found: dict[tuple[str, str], dict[str, Any]] = {}

    def begin(self, step: int) -> None:
        self._step = step
        self._made.clear()
        self._sums.clear()

    def observe(self, func: Any, args: Any, out: Any, module: str | None) -> None:
        if graph_task() != -1 or not args:
            return
        name, first = operation_name(func), args[0]
        if name in _FUNCTIONS and isinstance(out, Tensor):
            self._made[out] = _FUNCTIONS[name], module
            return
        operand = first[0] if isinstance(first, list | tuple) and first else first
        if (made := self._made.get(operand)) is None:
            return
        if func.is_view or name in _KEEPING:
            for each in out if isinstance(out, list | tuple) else (out,):
                self._made[each] = made
        elif name == "logsumexp":
            self._sums[out] = True
        elif name == "sub" and self._sums.get(args[1]):  # as torch.distributions write a log-softmax
            name = "_log_softmax"
        if made[0] in _AGAIN.get(name, ()) and operand.requires_grad and operand.numel() > 1:
            row = {"function": made[0], "operation": name.removeprefix("_"), "module": made[1], "step": self._step}
            self._found.setdefault((made[0], name), row)

    def facts(self) -> list[dict[str, Any]]:
        """A row for each function and operation, see `applied_twice` in docs/run-file.md."""
        return list(self._found.values())
