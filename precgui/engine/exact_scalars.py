"""Single numbers in 16 bits, such as the factor of an average, with their values without rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from precgui.engine.dtype_names import DIGITS, SHORT_DTYPES
from precgui.engine.operation_names import base_of, keeps_numbers
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import graph_task, operation_name

_COMPUTING = ("add", "sub", "mul", "div", "rsub", "neg", "pow", "exp", "reciprocal")
_OF_ONE = ("neg", "exp", "reciprocal")


@dataclass(frozen=True)
class Exact:
    """A number without rounding, and as it is. `is_assumed`: it, or what it was computed from, is 1 and may have been
    less before."""

    value: float
    rounded: float
    is_assumed: bool = False

    @property
    def is_void(self) -> bool:
        """Whether rounding has made a factor of it that changes nothing, or that leaves nothing."""
        return self.rounded in (0.0, 1.0) and self.value != self.rounded


class ExactScalars:
    """Told of each operation of a step outside of the backward pass; reads single numbers, and changes nothing."""

    def __init__(self, is_stored: Callable[[Tensor], bool]) -> None:
        """`is_stored` tells whether a tensor is older than the step."""
        self._is_stored = is_stored
        self._known = TensorMarks[Exact]()
        self._products = TensorMarks[tuple[Tensor, Exact]]()  # of a tensor and such a number

    def begin(self) -> None:
        self._known.clear()
        self._products.clear()

    def observe(self, func: Any, args: Any, out: Any) -> None:
        if graph_task() != -1 or not isinstance(out, Tensor) or out.dtype not in SHORT_DTYPES or not args:
            return
        name = base_of(operation_name(func))
        if out.numel() == 1:
            value, is_assumed = self._computed(func, name, args)
            rounded = float(out.detach())
            if value is not None and (rounded in (0.0, 1.0) or not is_assumed):
                self._known[out] = Exact(value, rounded, is_assumed)
        elif name == "mul" and len(args) > 1:
            for own, factor in (args[:2], args[1::-1]):
                if isinstance(own, Tensor) and (exact := self.get(factor)) is not None:
                    self._products[out] = own, exact

    def get(self, value: Any) -> Exact | None:
        """The exact value of a tensor of one number in 16 bits; None of others.

        One that is older than the step and 1 is assumed to be in the middle of the numbers that round up to 1.
        """
        if not isinstance(value, Tensor) or value.numel() != 1 or value.dtype not in SHORT_DTYPES:
            return None
        if (known := self._known.get(value)) is not None or not self._is_stored(value):
            return known
        middle = 1 - 2.0 ** -(DIGITS[value.dtype] + 2)
        return Exact(middle, 1.0, is_assumed=True) if float(value.detach()) == 1 else None

    def product(self, value: Any) -> tuple[Tensor, Exact] | None:
        """The tensor and the exact number whose product a tensor is."""
        return self._products.get(value)

    def _computed(self, func: Any, name: str, args: Any) -> tuple[float | None, bool]:
        """The value of a result without rounding, and whether it is assumed."""
        if name == "full":
            return self._operand(args[1]) if len(args) > 1 else (None, False)
        if keeps_numbers(func, name):
            return self._operand(args[0])
        operands = [self._operand(each) for each in args[: 1 if name in _OF_ONE else 2]]
        numbers = [value for value, _ in operands if value is not None]
        if name not in _COMPUTING or len(numbers) != (1 if name in _OF_ONE else 2):
            return None, False
        values = [torch.tensor(each, dtype=torch.float64) for each in numbers]
        return float(getattr(torch, name)(*values)), any(is_assumed for _, is_assumed in operands)

    def _operand(self, value: Any) -> tuple[float | None, bool]:
        if isinstance(value, int | float):
            return float(value), False
        if not isinstance(value, Tensor) or value.numel() != 1 or value.is_complex():
            return None, False
        known = self.get(value)
        return (known.value, known.is_assumed) if known is not None else (float(value.detach()), False)
