"""The update of a step, from the gradients that an optimizer got to the weights that it stored, beside FP64."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from precgui.engine.dtype_names import dtype_name
from precgui.engine.shadow.attribution import norm
from precgui.engine.shadow.error_kinds import origin_of
from precgui.engine.shadow.loop_tape import Stage
from precgui.engine.shadow.low_pass import fill_in_decisions, fill_in_measures
from precgui.engine.shadow.nonfinite import first_origin
from precgui.engine.shadow.record import RecordedStep
from precgui.engine.shadow.replay import F64, Counterfactual, Table, Visit, replay_exact
from precgui.engine.shadow.replay_memory import replay_bytes
from precgui.engine.shadow.semantics import is_float, widened
from precgui.engine.shadow.tape import SourceLine, Tape, TapeOp

_FAR = 0.3  # relative error of an update, from which on its cause is searched
_ELSEWHERE = 0.5  # of the error, left where the weights are stored in FP64: it is made before
_KEPT = 0.1  # of an error: a sum that is so close to it is kept elsewhere


class StoredUpdate:
    """One update. Its own error only: the gradients and the state are taken as they are."""

    def __init__(self, tape: Tape, stage: Stage, clock: Visit) -> None:
        self._tape, self._weights = part_of(tape, stage), stage.weights
        self._clock = clock

    @property
    def weights(self) -> list[Tensor]:
        """The weights that the update changes, as they were before."""
        return [self._tape.leaves[before] for _, before, _ in self._weights]

    def replay_bytes(self) -> int:
        """The most bytes that its replay in FP64 takes at one time."""
        return replay_bytes(self._tape, [after for _, _, after in self._weights])

    def row(self) -> dict[str, Any]:
        """A row of `updates`, see `exact_steps` in docs/run-file.md."""
        tape, ends = self._tape, [after for _, _, after in self._weights]
        fill_in_decisions(tape)
        exact, low = replay_exact(tape, ends, visit=self._clock), low_values(tape, len(tape.operations), ends)
        moves = [_Move(name, a, b, tape.leaves[a], low[b], exact[b]) for name, a, b in self._weights]
        row: dict[str, Any] = {
            "weights": len(moves), "elements": sum(each.low.numel() for each in moves),
            "finite": all(bool(each.low.isfinite().all()) for each in moves),
            "finite_in_fp64": all(bool(each.exact.isfinite().all()) for each in moves),
        }  # fmt: skip
        if not row["finite"]:
            return row | ({"cause": self._of_nonfinite(moves)} if row["finite_in_fp64"] else {})
        size = norm([each.intended for each in moves])
        if not row["finite_in_fp64"] or not size:
            return row
        error = norm([each.error for each in moves]) / size
        along = math.fsum(float((each.done * each.intended).sum()) for each in moves) / size**2
        worst = max(moves, key=lambda each: norm([each.error]))
        row |= {
            "error": error, "along": along, "norm": size, "worst": worst.name, "format": dtype_name(worst.low.dtype),
        }  # fmt: skip
        if error > _FAR:
            row["kept_elsewhere"] = self._kept_elsewhere(moves)
            row["left_when_stored_in_fp64"] = left = self._left_when_stored(moves, error * size)
            if left > _ELSEWHERE:
                row["made_at"] = self._made_at(moves, error * size)
        return row

    def _of_nonfinite(self, moves: Sequence[_Move]) -> dict[str, Any] | None:
        fill_in_measures(self._tape)
        ends = [each.after for each in moves]
        origin = first_origin(RecordedStep(self._tape, ends, ends[0], [each.low for each in moves], 0.0))
        return None if origin is None else origin_of(origin)

    def _left_when_stored(self, moves: Sequence[_Move], error: float) -> float:
        """The part of the error that is left where the operations that write the weights run in FP64."""
        ends = {each.after for each in moves}
        return self._left(moves, {o.index for o in self._tape.operations if ends & set(o.outputs)}) / error

    def _made_at(self, moves: Sequence[_Move], error: float) -> dict[str, Any] | None:
        """The line that leaves least of the error when it runs in FP64, of those that compute in 16 bits; None where
        none leaves less than half of it."""
        lines: dict[SourceLine, list[TapeOp]] = {}
        for operation in self._tape.operations:
            ids = [id for id in operation.outputs if id is not None]
            if any(_is_narrow(self._tape.dtypes[id]) for id in ids):
                lines.setdefault(operation.origin.line, []).append(operation)
        left = {line: self._left(moves, {o.index for o in own}) / error for line, own in lines.items()}
        best = min(left, key=lambda line: left[line], default=None)
        if best is None or left[best] > _ELSEWHERE:
            return None
        formats = {dtype_name(self._tape.dtypes[id]) for o in lines[best] for id in o.outputs if id is not None}
        return {"line": best.label, "left": left[best], "formats": sorted(formats)}

    def _left(self, moves: Sequence[_Move], promoted: Collection[int]) -> float:
        """The error of all weights that is left where operations run in FP64."""
        table = Counterfactual(self._tape, promoted).run([each.after for each in moves])
        return norm([widened(table[each.after], F64) - each.exact for each in moves])

    def _kept_elsewhere(self, moves: Sequence[_Move]) -> float:
        """The part of the squared error that is of weights whose update is kept by something else as well.

        That is a wider copy, which the weight before was rounded from, or a compensation: a number that is the error
        of the weight in the format, and 0 in exact arithmetic.
        """
        low = low_values(self._tape, len(self._tape.operations), self._results(moves))
        copied = {each.name for each in moves if any(_is_master(each, leaf) for leaf in self._tape.leaves.values())}
        compensated: set[str] = set()

        def visit(operation: TapeOp, outputs: list[Any]) -> None:
            for id, output in zip(operation.outputs, outputs, strict=True):
                value = low.get(id) if id is not None else None
                if value is not None:
                    compensated.update(each.name for each in moves if _compensates(each, value, output))

        replay_exact(self._tape, [each.after for each in moves], visit=visit)
        kept = copied | compensated
        sizes = {each.name: norm([each.error]) ** 2 for each in moves}
        return sum(sizes[name] for name in kept) / (sum(sizes.values()) or 1.0)

    def _results(self, moves: Sequence[_Move]) -> list[int]:
        """The values that the update makes in the shape of a weight in 16 bits."""
        shapes = {each.low.shape for each in moves if each.low.dtype.itemsize <= 2}
        ids = [id for o in self._tape.operations if not o.is_view for id in o.outputs if id is not None]
        values = self._tape.values
        return [id for id in ids if id in values and is_float(values[id]) and values[id].shape in shapes]


def _is_narrow(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize <= 2


@dataclass(frozen=True)
class _Move:
    """The update of one weight; `before`, `low` and `exact` are the stored values and the one of FP64."""

    name: str
    id: int
    after: int
    before: Tensor
    low: Tensor
    exact: Tensor

    @property
    def done(self) -> Tensor:
        result: Tensor = widened(self.low, F64) - widened(self.before, F64)
        return result

    @property
    def intended(self) -> Tensor:
        result: Tensor = self.exact - widened(self.before, F64)
        return result

    @property
    def error(self) -> Tensor:
        result: Tensor = widened(self.low, F64) - self.exact
        return result


def _is_master(move: _Move, leaf: Tensor) -> bool:
    """Whether a tensor that was there before the step is a wider copy of the weight."""
    if not is_float(leaf) or leaf.shape != move.low.shape or leaf.dtype.itemsize <= move.low.dtype.itemsize:
        return False
    return bool((leaf.to(move.before.dtype) == move.before).all()) and bool((leaf != move.before).any())


def _compensates(move: _Move, low: Tensor, exact: Tensor) -> bool:
    if low.shape != move.error.shape:
        return False
    error, value = move.error, widened(low, F64)
    size = norm([error])
    is_nothing = norm([exact]) <= _KEPT * size
    return bool(size) and is_nothing and min(norm([value - error]), norm([value + error])) <= _KEPT * size


def part_of(tape: Tape, stage: Stage) -> Tape:
    """The operations of an update on the numbers that it got."""
    operations: list[TapeOp] = [
        replace(each, index=place) for place, each in enumerate(tape.operations[stage.begin : stage.end])
    ]
    made: set[int] = set()
    read: set[int] = {before for _, before, _ in stage.weights}
    for operation in operations:
        read |= {id for id in operation.inputs if id not in made}
        made |= {id for id in operation.outputs if id is not None}
    known = {each.id: each.gradient for each in stage.gradients}
    leaves = low_values(tape, stage.begin, read - known.keys()) | {id: known[id] for id in read & known.keys()}
    return Tape(operations, leaves, tape.values, tape.overwritten, tape.dtypes)


def low_values(tape: Tape, end: int, ids: Collection[int]) -> Table:
    """Values of the step before the operation `end`; those that were overwritten are computed again."""
    with torch.no_grad():
        return Counterfactual(replace(tape, operations=tape.operations[:end]), ()).run(ids)
