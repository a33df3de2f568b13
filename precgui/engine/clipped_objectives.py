"""Clipped objectives of policies that enter a loss with the sign under which clipping bounds nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from precgui.engine.operation_names import EXTREMES, JOINS, PICKS, SUMS
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.watcher import OperationCall, Watcher

_KEEPING = {"mean", "sum", *PICKS}
_Token = object | tuple[str, Any]  # equal for tensors of the same numbers


@dataclass(frozen=True)
class _Product:
    """Of a ratio, which learns, and numbers that do not."""

    ratio: _Token
    weights: _Token
    sign: int = 1


@dataclass(frozen=True, eq=False)
class _Objective:
    """The smaller or larger one of a product and the product of the clipped ratio, and what it was multiplied by."""

    operation: str
    numbers: int
    sign: int = 1
    factors: tuple[Tensor, ...] = ()  # the least number of each

    @property
    def is_turned(self) -> bool:
        """Whether a loss has no bound where the ratio is clipped: it adds the smaller or subtracts the larger one."""
        return (self.operation == "minimum") == (self.sign > 0)


class ClippedObjectives(Watcher):
    """Told of each operation outside of the optimizer, and of steps of optimizers.

    Follows min(r a, clamp(r, 1 - c, 1 + c) a) and max(...) by sums, means and factors to the number a backward pass
    begins with. Whether a is an advantage or a cost, a loss subtracts the minimum or adds the maximum. Nothing is
    noted where an optimizer maximises.
    """

    fact = "clipped_objectives"

    def __init__(self) -> None:
        super().__init__()
        self._tokens = TensorMarks[_Token]()
        self._products = TensorMarks[_Product]()
        self._objectives = TensorMarks[tuple[_Objective, ...]]()
        self._turned: list[_Objective] = []
        self._maximises = False

    def begin(self, step: int) -> None:
        super().begin(step)
        self._turned, self._maximises = [], False

    def stepping(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        self._maximises |= any(bool(group.get("maximize")) for group in optimizer.param_groups)

    def observe(self, call: OperationCall) -> None:
        name, first, out = call.base, call.args[0], call.out
        if name == "ones_like" and isinstance(first, Tensor):
            if first.numel() == 1:
                self._turned += [each for each in self._objectives.get(first) or () if each.is_turned]
            return
        if not isinstance(out, Tensor):
            return
        if name != call.name:
            self._write(name, call, out)
            return
        if name == "clamp" and isinstance(first, Tensor):
            self._clamp(call, first, out)
        elif isinstance(first, Tensor) and (name == "neg" or call.keeps_numbers) and first.is_floating_point():
            token = self._token(first)
            self._tokens[out] = ("neg", token) if name == "neg" else token
        if name == "mul" and isinstance(first, Tensor) and isinstance(call.second, Tensor):
            self._multiply(first, call.second, out)
        elif name in EXTREMES:
            self._choose(name, first, call.second, out)
        self._follow(name, call, out)

    def _write(self, name: str, call: OperationCall, out: Tensor) -> None:
        """An operation in place."""
        self._tokens.forget(out)
        self._products.forget(out)
        known = self._objectives.get(out)
        self._follow(name, call, out)
        if known is not None and self._objectives.get(out) is known:
            self._objectives.forget(out)

    def _token(self, tensor: Tensor) -> _Token:
        known = self._tokens.get(tensor)
        if known is None:
            known = self._tokens[tensor] = object()
        return known

    def _clamp(self, call: OperationCall, first: Tensor, out: Tensor) -> None:
        low, high = (
            call.args[place] if len(call.args) > place else call.kwargs.get(name)
            for place, name in ((1, "min"), (2, "max"))
        )
        is_limited = isinstance(low, int | float) and isinstance(high, int | float) and 0 <= low < 1 < high
        if first.requires_grad and is_limited:
            self._tokens[out] = ("clamp", self._token(first))

    def _multiply(self, first: Tensor, second: Tensor, out: Tensor) -> None:
        if first.requires_grad != second.requires_grad:
            ratio, weights = (first, second) if first.requires_grad else (second, first)
            self._products[out] = _Product(self._token(ratio), self._token(weights))

    def _choose(self, name: str, first: Any, second: Any, out: Tensor) -> None:
        one, other = self._products.get(first), self._products.get(second)
        if one is None or other is None or (one.weights, one.sign) != (other.weights, other.sign):
            return
        if other.ratio == ("clamp", one.ratio) or one.ratio == ("clamp", other.ratio):
            self._objectives[out] = (_Objective(name, out.numel()),)

    def _follow(self, name: str, call: OperationCall, out: Tensor) -> None:
        """Products and objectives go on."""
        first, second = call.args[0], call.second
        product = self._products.get(first)
        sign = _sign(name, second)
        if product is not None and (sign or call.keeps_numbers):
            self._products[out] = replace(product, sign=product.sign * (sign or 1))
        found = [(each, own) for each in call.tensors if (own := self._objectives.get(each)) is not None]
        if not found:
            return
        if name in SUMS or name in JOINS:
            taken = second if name == "sub" else first if name == "rsub" else None
            turn = -1 if float(call.kwargs.get("alpha", 1)) < 0 else 1
            every = [
                replace(one, sign=one.sign * (-1 if each is taken else 1) * (turn if each is second else 1))
                for each, own in found for one in own
            ]  # fmt: skip
        elif sign or call.keeps_numbers or name in _KEEPING:
            every = [replace(one, sign=one.sign * (sign or 1)) for one in found[0][1]]
        elif (
            name in ("mul", "div") and len(call.tensors) == 2 and sum(each.requires_grad for each in call.tensors) == 1
        ):
            least = (second if found[0][0] is first else first).detach().amin()
            every = [replace(one, factors=(*one.factors, least)) for one in found[0][1]]
        else:
            return
        self._objectives[out] = tuple(every)

    def end(self) -> None:
        for each in self._turned if not self._maximises else ():
            if self._has_room(each.operation) and all(float(least) >= 0 for least in each.factors):
                self._rows[each.operation] = {
                    "step": self._step, "count": self._steps_with(each.operation), "operation": each.operation,
                    "numbers": each.numbers,
                }  # fmt: skip
        self._turned = []
        super().end()


def _sign(name: str, second: Any) -> int:
    """The sign by which an operation multiplies numbers; 0 of one that does not multiply by a number."""
    if name == "neg":
        return -1
    if name in ("mul", "div") and isinstance(second, int | float) and second != 0:
        return 1 if second > 0 else -1
    return 0
