"""Dropouts that leave little of what layers compute."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.watcher import OperationCall, Watcher, is_weight

_HEAVY = 0.8  # the probability that a number is dropped: where 0.8 and more are to be kept, these were exchanged


class HeavyDropouts(Watcher):
    """Told of each operation outside of the optimizer; notes dropouts with a large probability, by module.

    Those of numbers that depend on weights alone, and are none: of data large shares are masked on purpose. A dropout
    is one operation, or a product with draws that are divided by their probability.
    """

    fact = "heavy_dropouts"

    def __init__(self) -> None:
        super().__init__()
        self._draws, self._masks = TensorMarks[float](), TensorMarks[float]()  # and the probability to be kept

    def observe(self, call: OperationCall) -> None:
        name, first, second = call.base, call.args[0], call.second
        if name == "native_dropout":
            if call.args[2] is not False:
                self._note(call.module, first, float(second))
        elif name == "bernoulli" and isinstance(second, float) and 0 < second <= 1 - _HEAVY + 1e-9:
            self._draws[call.out] = second
        elif name == "div" and (kept := self._draws.get(first)) is not None:
            if isinstance(second, float) and abs(second / kept - 1) < 1e-3:
                self._masks[call.out] = kept
        elif name == "mul":
            for values, mask in ((first, second), (second, first)):
                if (kept := self._masks.get(mask)) is not None:
                    self._note(call.module, values, 1 - kept)

    def _note(self, module: str | None, values: Any, probability: float) -> None:
        learned = isinstance(values, Tensor) and values.requires_grad and not is_weight(values)
        if not learned or probability < _HEAVY - 1e-6 or not self._has_room(module):
            return
        known = self._rows.get(module)
        calls = int(known["calls"]) + 1 if known is not None and known["step"] == self._step else 1
        self._rows[module] = {"module": module or "", "probability": probability, "calls": calls, "step": self._step}
