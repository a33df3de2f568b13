"""Numbers that save a divisor, a root or a logarithm from 0, and are 0 themselves in FP16."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from precgui.engine.operation_names import LOWER_BOUNDS, keeps_numbers
from precgui.engine.tensor_marks import TensorMarks

OF_SMALL = {"log", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "pow"}
_VANISHES = 2.0**-25  # half of the smallest number of FP16
_KEEPING = {"clamp", "clamp_min", "add", "abs", "sqrt"}


class VanishedEpsilons:
    """Told of each operation; follows a number that is added to FP16, or is its lower bound, and is zero there."""

    def __init__(self) -> None:
        self._marks = TensorMarks[float]()

    def clear(self) -> None:
        self._marks.clear()

    def observe(self, func: Any, name: str, args: Any, out: Any) -> float | None:
        """The epsilon of the operand, where an operation divides by it, or takes its root or logarithm; None elsewhere.

        `name` is that of the operation without the `_` of one in place.
        """
        if not args:
            return None
        if name in ("add", *LOWER_BOUNDS) and isinstance(out, Tensor) and out.dtype is torch.float16:
            number = next((each for each in args[1:] if isinstance(each, float)), 0.0)
            if 0 < abs(number) < _VANISHES:
                self._marks[out] = number
                return None
        operand = args[1] if name == "div" and len(args) > 1 else args[0]
        if not self._marks or (epsilon := self._marks.get(operand)) is None:
            return None
        if isinstance(out, Tensor) and (keeps_numbers(func, name) or name in _KEEPING):
            self._marks[out] = epsilon
        return epsilon if name == "div" or name in OF_SMALL else None
