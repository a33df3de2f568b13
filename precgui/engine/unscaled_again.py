"""Gradients that a loss scaler divides by its scale again before the optimizer has stepped or they were cleared."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import as_list
from precgui.engine.watcher import OperationCall, Watcher

_UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"
_CLEARS = {"zero_", "_foreach_zero_", "fill_"}


class UnscaledAgain(Watcher):
    """Told of each operation outside of the optimizer; follows what the scaler divides until it is cleared.

    So are gradients that are accumulated over micro-steps, each of which unscales all of them.
    """

    fact = "unscaled_again"

    def __init__(self) -> None:
        super().__init__()
        self._divided = TensorMarks[bool]()

    def observe(self, call: OperationCall) -> None:
        if call.name == _UNSCALE:
            self._divide([each for each in as_list(call.args[0]) if isinstance(each, Tensor)])
        elif call.name in _CLEARS:
            self._forget(as_list(call.args[0]))

    def stepping(self) -> None:
        """An optimizer is about to step: what it was given is used up."""
        self._divided.clear()

    def _divide(self, gradients: list[Tensor]) -> None:
        again = sum(self._divided.get(each) is not None for each in gradients)
        for each in gradients:
            self._divided[each] = True
        if again:
            self._rows[""] = {
                "step": self._step, "count": self._steps_with(""), "tensors": again, "of": len(gradients)
            }  # fmt: skip

    def _forget(self, cleared: list[Any]) -> None:
        for each in cleared:
            if isinstance(each, Tensor):
                self._divided.forget(each)
