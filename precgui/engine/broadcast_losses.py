"""A loss of outputs [B, 1] and targets [B], or [B, 1, H, W] and [B, H, W]: broadcasting pairs all with all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, NamedTuple

from torch import Tensor

from precgui.engine.operation_names import COPIES, PRODUCTS, SOFTMAXES, SUMS
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import as_list
from precgui.engine.watcher import OperationCall, Watcher

_LOSSES = {"mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"}  # elementwise, with a reduction of their own
_MEANS, _NORM = {"mean", "sum"}, "linalg_vector_norm"
_LINEAR = SUMS | COPIES | {"mul", "div", "neg"}
_OF_PAIRS = PRODUCTS | SOFTMAXES | {"_log_softmax", "logsumexp", "cat", "stack"}  # of a table of all with all
_CHOICES = {"min", "max", "amin", "amax", "topk", "sort", "argmin", "argmax"}  # along an axis


@dataclass
class _Pair:
    operation: str
    samples: int
    column: tuple[int, ...]
    vector: tuple[int, ...]
    is_meant: bool = False  # the loop uses the table of all outputs with all targets as one


class _Mark(NamedTuple):
    pair: _Pair
    is_linear: bool  # a sum of an output and a target up to now: its mean over all pairs is that over the samples
    is_summed: bool = False  # over one of the two axes


class BroadcastLosses(Watcher):
    """Told of each operation outside of the optimizer: finds elementwise results of shape [B, B, ...] of which a loss
    is the mean or the sum.

    One operand is learned and depends on data, the other has no gradient, and neither was made a column by the loop
    itself (`unsqueeze`), as losses of pairs do on purpose. These also use a mask of [B, B], a product or the least of
    each row: then no row is kept.
    """

    fact = "broadcast_loss"

    def __init__(self) -> None:
        super().__init__()
        self._shapes = TensorMarks[tuple[int, ...]]()  # before they were expanded
        self._columns = TensorMarks[bool]()  # made on purpose
        self._of_data = TensorMarks[bool]()  # learned numbers that depend on data
        self._marks = TensorMarks[_Mark]()
        self._noted: list[_Pair] = []

    def begin(self, step: int) -> None:
        super().begin(step)
        self._noted = []

    def observe(self, call: OperationCall) -> None:
        operands = call.tensors
        self._follow_data(operands, call.out)
        first, out, name = call.args[0], call.out, call.base
        if not isinstance(first, Tensor):
            self._use(name, operands, is_along_axis=True)
        elif not isinstance(out, Tensor):
            self._use(name, operands, is_along_axis=len(call.args) > 1)
        elif call.is_elementwise or name in _LOSSES:
            self._combine(name, operands, out)
        elif call.keeps_numbers:
            self._keep_purpose(name, first, out)
            if (known := self._marks.get(first)) is not None and out.shape == first.shape:
                self._marks[out] = known
        elif (known := self._marks.get(first)) is not None and (name in _MEANS or name == _NORM):
            self._reduce(name, known, first, out)
        else:
            self._use(name, operands, is_along_axis=len(call.args) > 1)

    def end(self) -> None:
        for pair in self._noted:
            key = pair.operation, pair.column, pair.vector
            if not pair.is_meant and self._has_room(key):
                row = {
                    "operation": pair.operation, "samples": pair.samples, "step": self._step,
                    "column": _written(pair.column), "vector": _written(pair.vector),
                }  # fmt: skip
                self._rows.setdefault(key, row)
        self._noted = []
        super().end()

    def _follow_data(self, operands: Sequence[Tensor], out: Any) -> None:
        is_of_data = any(map(self._of_data.get, operands)) or (
            any(each.requires_grad for each in operands)
            and any(not each.requires_grad and each.dim() for each in operands)
        )
        for each in as_list(out) if is_of_data else ():
            if isinstance(each, Tensor):
                self._of_data[each] = True

    def _keep_purpose(self, name: str, first: Tensor, out: Tensor) -> None:
        if name == "expand":
            self._shapes[out] = self._own_shape(first)
        is_new = name == "unsqueeze" or (name in ("view", "_unsafe_view") and 2 < out.dim() == first.dim() + 1 < 4)
        is_kept = out.shape == first.shape or name == "expand"
        if is_new or (is_kept and self._columns.get(first)):
            self._columns[out] = True

    def _use(self, name: str, operands: Sequence[Tensor], *, is_along_axis: bool) -> None:
        if name in _OF_PAIRS or (is_along_axis and name in _CHOICES):
            for each in operands:
                if (known := self._marks.get(each)) is not None:
                    known.pair.is_meant = True

    def _combine(self, name: str, operands: Sequence[Tensor], out: Tensor) -> None:
        known = next((mark for each in operands if (mark := self._marks.get(each)) is not None), None)
        if known is None:
            self._begin(name, operands, out)
            return
        others = [each for each in operands if self._marks.get(each) is None and each.numel() > 1]
        is_linear = name in _LINEAR and (name not in ("mul", "div") or not others)
        if known.is_summed:
            if others and name not in SUMS:
                known.pair.is_meant = True
            elif is_linear:
                self._marks[out] = known
                return
        elif any(_has_both_axes(each, out) for each in others):
            known.pair.is_meant = True
        elif out.shape[:2] == (known.pair.samples, known.pair.samples):
            self._marks[out] = known._replace(is_linear=known.is_linear and is_linear)
            return
        self._marks.forget(out)  # where it was computed in place

    def _begin(self, name: str, operands: Sequence[Tensor], out: Tensor) -> None:
        for one, other in permutations(operands, 2):
            pair = self._pair(name, one, other)
            if pair is not None and out.dim() == 0:
                self._noted.append(pair)
            elif pair is not None:
                self._marks[out] = _Mark(pair, is_linear=name in SUMS)
                return

    def _reduce(self, name: str, known: _Mark, first: Tensor, out: Tensor) -> None:
        is_bound = not known.is_linear or name == _NORM
        if out.dim() == 0:
            if first.requires_grad and is_bound:
                self._noted.append(known.pair)
        elif is_bound:
            is_whole = out.shape[:2] == (known.pair.samples, known.pair.samples)
            self._marks[out] = known._replace(is_linear=False, is_summed=known.is_summed or not is_whole)

    def _pair(self, name: str, one: Tensor, other: Tensor) -> _Pair | None:
        """Where a column meets a vector by the rules of broadcasting alone."""
        column, vector = self._own_shape(one), self._own_shape(other)
        is_pair = len(column) == len(vector) + 1 > 1 and column[1] == 1 and (column[0], *column[2:]) == vector
        if not is_pair or vector[0] < 2 or one.requires_grad == other.requires_grad:
            return None
        if not self._of_data.get(one if one.requires_grad else other) or any(map(self._columns.get, (one, other))):
            return None
        return _Pair(name, vector[0], column, vector)

    def _own_shape(self, tensor: Tensor) -> tuple[int, ...]:
        known = self._shapes.get(tensor)
        return tuple(tensor.shape) if known is None else known


def _has_both_axes(tensor: Tensor, table: Tensor) -> bool:
    return tensor.dim() == table.dim() and tensor.shape[0] > 1 and tensor.shape[1] > 1


def _written(shape: tuple[int, ...]) -> str:
    return str(list(shape))
