"""Probabilities that a loss takes for scores: softmax or sigmoid is applied twice."""

from __future__ import annotations

from torch import Tensor

from precgui.engine.operation_names import CLAMPS, JOINS, PICKS, SOFTMAXES
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.watcher import OperationCall, Watcher

_FUNCTIONS = {**dict.fromkeys(SOFTMAXES, "softmax"), "sigmoid": "sigmoid"}
_KEEPING = PICKS | JOINS | CLAMPS
_AGAIN = {  # operations of a loss, and the functions of which they compute the logarithm themselves
    "_log_softmax": ("softmax",),
    "binary_cross_entropy_with_logits": ("softmax", "sigmoid"),
    "log_sigmoid_forward": ("sigmoid",),
}


class RepeatedActivations(Watcher):
    """Told of each operation outside of the optimizer; follows probabilities that learn through views and selections.

    The softmax of a log-softmax, and a logarithm of probabilities, are scores of the same probabilities, and no fault.
    """

    fact = "applied_twice"

    def __init__(self) -> None:
        super().__init__()
        self._made = TensorMarks[tuple[str, str | None]]()  # the function and its module
        self._sums = TensorMarks[bool]()  # logsumexp of probabilities

    def observe(self, call: OperationCall) -> None:
        name, out, first = call.name, call.out, call.args[0]
        if call.base in _FUNCTIONS and isinstance(out, Tensor):
            self._made[out] = _FUNCTIONS[call.base], call.module
            return
        operand = first[0] if isinstance(first, list | tuple) and first else first
        if (made := self._made.get(operand)) is None:
            return
        if call.keeps_numbers or name in _KEEPING:
            for each in out if isinstance(out, list | tuple) else (out,):
                self._made[each] = made
        elif name == "logsumexp":
            self._sums[out] = True
        elif name == "sub" and self._sums.get(call.second):  # as torch.distributions write a log-softmax
            name = "_log_softmax"
        if made[0] in _AGAIN.get(name, ()) and operand.requires_grad and operand.numel() > 1:
            row = {"function": made[0], "operation": name.removeprefix("_"), "module": made[1], "step": self._step}
            self._rows.setdefault((made[0], name), row)
