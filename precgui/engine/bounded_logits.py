"""Scores of a cross entropy that are bounded by construction: products of normalised vectors, times a factor."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from precgui.engine.operation_names import MEAN, NLL_LOSSES
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.watcher import OperationCall, Watcher, is_weight

_FEWEST = 4  # vectors on either side, and classes
_UNIT = 0.02  # deviation of their lengths from 1, a few units of BF16: normalised, not alike since all are one


@dataclass(frozen=True)
class _Bound:
    """The shortest and the longest vectors of both sides, and what their products were multiplied by."""

    shortest: tuple[Tensor, Tensor]
    longest: tuple[Tensor, Tensor]
    factor: float = 1.0
    classes: int = 0


class BoundedLogits(Watcher):
    """Told of each operation outside of the optimizer; follows products of two tensors that no layer holds, whose
    vectors have the length 1, through views and fixed factors to a cross entropy."""

    fact = "bounded_logits"

    def __init__(self) -> None:
        super().__init__()
        self._bounds = TensorMarks[_Bound]()
        self._losses: list[tuple[_Bound, Tensor | None]] = []

    def begin(self, step: int) -> None:
        super().begin(step)
        self._losses = []

    def observe(self, call: OperationCall) -> None:
        name, first, out = call.name, call.args[0], call.out
        if name == "mm":
            self._multiplied(first, call.second, out)
        elif (bound := self._bounds.get(first)) is None:
            second = self._bounds.get(call.second) if name == "mul" else None
            if second is not None and (factor := _number(first)) is not None:
                self._bounds[out] = replace(second, factor=second.factor * factor)
        elif name == "_log_softmax":
            self._bounds[out] = replace(bound, classes=first.shape[int(call.args[1])])
        elif name in NLL_LOSSES:
            is_mean = len(call.args) > 3 and call.args[3] == MEAN
            if bound.classes and len(self._losses) < self.most_rows:
                self._losses.append((bound, out[0].detach() if is_mean else None))
        elif name in ("mul", "div"):
            factor = _number(call.second)
            if factor:
                self._bounds[out] = replace(bound, factor=bound.factor * (factor if name == "mul" else 1 / factor))
        elif call.keeps_numbers:
            self._bounds[out] = bound

    @torch.no_grad()
    def _multiplied(self, first: Any, second: Any, out: Any) -> None:
        if not (first.requires_grad or second.requires_grad) or min(first.shape[0], second.shape[1]) < _FEWEST:
            return
        for each in (first, second):
            if is_weight(each):
                return
            if not each.is_floating_point() or each.layout != torch.strided:
                return
        lengths = first.detach().float().norm(dim=1), second.detach().float().norm(dim=0)
        self._bounds[out] = _Bound(
            (lengths[0].amin(), lengths[1].amin()), (lengths[0].amax(), lengths[1].amax())
        )  # fmt: skip

    def end(self) -> None:
        for bound, loss in self._losses:
            shortest, longest = ([float(each) for each in side] for side in (bound.shortest, bound.longest))
            is_normalised = min(shortest) > 1 - _UNIT and max(longest) < 1 + _UNIT
            key = bound.classes
            if not is_normalised or bound.classes < _FEWEST or not self._has_room(key):
                continue
            size = abs(bound.factor) * math.prod(longest)
            self._rows[key] = {
                "step": self._step, "count": self._steps_with(key), "classes": bound.classes, "size": size,
                "factor": bound.factor, "least": math.log1p((bound.classes - 1) * math.exp(-2 * min(size, 300.0))),
                "loss": float(loss) if loss is not None else 0.0,
            }  # fmt: skip
        self._losses = []
        super().end()


def _number(value: Any) -> float | None:
    """A factor that does not learn; None of others, and of one on another device, which would have to be waited for."""
    if isinstance(value, int | float):
        return float(value)
    is_fixed = isinstance(value, Tensor) and value.numel() == 1 and not value.requires_grad
    return float(value) if is_fixed and value.device.type == "cpu" else None
