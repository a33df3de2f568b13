"""Choices of a step, as of the nearest code or the best expert, among scores that rounding has made equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from precgui.engine.device import in_fp64
from precgui.engine.dtype_names import DIGITS, dtype_name
from precgui.engine.shadow.replay import Visit
from precgui.engine.shadow.semantics import aten, is_float
from precgui.engine.shadow.tape import Tape, TapeOp

_LARGEST: dict[Callable[..., Any], int] = {
    aten.argmax.default: 0,
    aten.max.dim: 1,
    aten.topk.default: 1,
}  # and the place of the indices
_SMALLEST: dict[Callable[..., Any], int] = {aten.argmin.default: 0, aten.min.dim: 1}
_PLACES = _LARGEST | _SMALLEST
_FEWEST, _CANDIDATES = 16, 4  # choices of an operation, and scores of each
_MOST = 1 << 20  # scores
_MOST_ROWS = 4
_SOME = 0.1  # of the choices: fewer are not told
_SAME = 1e-9  # of the largest score: less is another order of a sum


class ChoiceComparison:
    """Told of each operation of a replay in FP64, with its outputs; compares choices of the step with those of FP64.

    Only indices along one dimension of the scores are compared that the forward pass reads: the largest value is the
    same for any of equal scores. Scores that are equal in FP64, too, are no matter of rounding: any choice is right.
    """

    def __init__(self, tape: Tape, visit: Visit) -> None:
        """`visit` is told first."""
        self._tape, self._visit = tape, visit
        self._read = {id for each in tape.operations if not each.origin.backward for id in each.inputs}
        self._choices = {each.index for each in tape.operations if self._may_be_judged(each)}
        self._wanted = {each.inputs[0] for each in tape.operations if each.index in self._choices}
        self._scores: dict[int, Tensor] = {}
        self._rows: list[dict[str, Any]] = []

    def __call__(self, operation: TapeOp, outputs: list[Any]) -> None:
        self._visit(operation, outputs)
        if operation.index in self._choices:
            self._compare(operation, self._scores.get(operation.inputs[0]))
        for id, value in zip(operation.outputs, outputs, strict=True):
            if id in self._wanted:
                self._scores[id] = value

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """The worst of them as `choices`, see `exact_steps` in docs/run-file.md; {} for none."""
        worst = sorted(self._rows, key=lambda row: -float(row["regret"]))[:_MOST_ROWS]
        return {"choices": worst} if worst else {}

    def _may_be_judged(self, operation: TapeOp) -> bool:
        if operation.function not in _PLACES or operation.origin.backward or not operation.inputs:
            return False
        return operation.outputs[_PLACES[operation.function]] in self._read

    def _compare(self, operation: TapeOp, exact: Tensor | None) -> None:
        id = operation.outputs[_PLACES[operation.function]]
        low, taken = self._tape.value(operation.inputs[0]), self._tape.value(id) if id is not None else None
        dim = _dimension(operation)
        if low is None or taken is None or exact is None or dim is None or not is_float(low) or low.is_complex():
            return
        if low.shape != exact.shape or low.dim() < 2 or low.numel() > _MOST or low.shape[dim] < _CANDIDATES:
            return
        sign = 1.0 if _takes_largest(operation) else -1.0
        rounded, wide = (sign * in_fp64(each.detach()).movedim(dim, -1) for each in (low, exact))
        keeps_dim = taken.dim() == low.dim()
        indices = taken.movedim(dim, -1) if keeps_dim else taken.unsqueeze(-1)
        if indices.numel() < _FEWEST or indices.shape[-1] >= low.shape[dim]:
            return
        changed, tied, regret = _compared(rounded, wide, indices)
        if tied > _SOME:
            origin = operation.origin
            self._rows.append(
                {"operation": operation.name.partition(".")[0], "line": origin.line.label, "module": origin.module,
                 "format": self._format_of(operation), "choices": indices[..., 0].numel(),
                 "candidates": low.shape[dim], "changed": changed, "tied": tied, "regret": regret}
            )  # fmt: skip

    def _format_of(self, operation: TapeOp) -> str:
        """The format of the scores, or the one of 16 bits that they were widened from."""
        makers = {id: each for each in self._tape.operations[: operation.index] for id in each.outputs}
        made = makers.get(operation.inputs[0])
        if operation.input_dtypes[0] not in DIGITS and made is not None and made.function is aten._to_copy.default:
            return dtype_name(made.input_dtypes[0])
        return dtype_name(operation.input_dtypes[0])


def _dimension(operation: TapeOp) -> int | None:
    """Along which scores are compared; None of all together, which is one choice."""
    place = 2 if operation.function is aten.topk.default else 1
    arguments = operation.arguments
    if len(arguments) > place:
        return arguments[place] if isinstance(arguments[place], int) else None
    return -1 if place == 2 else None


def _takes_largest(operation: TapeOp) -> bool:
    if operation.function is aten.topk.default:
        return len(operation.arguments) < 4 or bool(operation.arguments[3])
    return operation.function in _LARGEST


def _compared(low: Tensor, exact: Tensor, indices: Tensor) -> tuple[float, float, float]:
    """Of the choices of the largest scores, along the last dimension: the share that FP64 makes otherwise, the share of
    these among equal scores, and what they lose over what the median score loses."""
    count = indices.shape[-1]
    ordered = low.sort(-1, descending=True)[0]
    is_tied = ordered[..., count - 1] == ordered[..., count]
    best = exact.topk(count, -1)[0].sum(-1)
    own = exact.gather(-1, indices).sum(-1)
    known = best.isfinite() & own.isfinite()
    largest = torch.where(exact.isfinite(), exact.abs(), 0.0).amax(-1) * count
    is_other = known & (best - own > _SAME * largest)
    median = torch.where(exact.isfinite(), exact, torch.nan).nanmedian(-1)[0] * count
    room = (best - median).clamp_min(1e-300)
    regret = torch.where(is_other & median.isfinite(), (best - own) / room, 0.0).clamp(0.0, 2.0)
    changed, tied, lost = (float(each.double().mean()) for each in (is_other, is_other & is_tied, regret))
    return changed, tied, lost
