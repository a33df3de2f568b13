"""A step of somebody's loop beside the same step in FP64: how far off its loss, gradients and updates are, and why."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from precgui.engine.errors import EngineError
from precgui.engine.shadow.attribution import distance, norm
from precgui.engine.shadow.error_kinds import cancelled, named_operations
from precgui.engine.shadow.loop_tape import LoopTape, Stage, Used
from precgui.engine.shadow.low_pass import fill_in_decisions, fill_in_measures
from precgui.engine.shadow.record import RecordedStep
from precgui.engine.shadow.replay import F64, replay_exact
from precgui.engine.shadow.semantics import is_float, widened
from precgui.engine.shadow.step import Shadow
from precgui.engine.shadow.stored_update import StoredUpdate
from precgui.engine.shadow.structure import reads_ahead, softmax_over_batch
from precgui.engine.shadow.tape import NO_LINE, Tape
from precgui.errors import first_line
from precgui.sentences import L_, Sentence

_FAR = 0.05  # relative error of all gradients together, or of a loss, from which on its cause is searched
_MOST_NAMES = 4
_TIMES = 25  # the search for a cause takes up to so many times as long as one replay


def examined(loop: LoopTape, most_s: float) -> dict[str, Any]:
    """A row of the fact `exact_steps`, see docs/run-file.md, without its step."""
    begun = time.perf_counter()
    if loop.why_not:
        return {"unavailable": loop.why_not}
    try:
        return _Examination(loop, begun + most_s).row()
    except EngineError as error:
        _forget_frames(error)
        return {"unavailable": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever torch raises for FP64 of an odd operation: no row, but a run
        _forget_frames(error)
        return {"unavailable": Sentence("its replay in FP64 fails: {error}", error=first_line(error, 160))}


def _forget_frames(error: BaseException | None) -> None:
    """Let go of the values that the frames of an error hold, which may refer to the error in a circle."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


@dataclass(frozen=True)
class _Clock:
    """Ends a replay that takes too long."""

    ends: float

    def __call__(self, *_: Any) -> None:
        if time.perf_counter() > self.ends:
            raise EngineError(L_("its replay in FP64 takes longer than the recorder may"))


class _Examination:
    def __init__(self, loop: LoopTape, ends: float) -> None:
        self._loop, self._ends = loop, ends
        self._clock = _Clock(ends)

    def row(self) -> dict[str, Any]:
        loop = self._loop
        row: dict[str, Any] = {"operations": len(loop.tape.operations)}
        if (over := softmax_over_batch(loop.tape)) is not None:
            row["softmax_over_batch"] = over
        used = [each for stage in loop.stages for each in stage.gradients]
        before = replace(loop.tape, operations=loop.tape.operations[: max((s.begin for s in loop.stages), default=0)])
        if used and loop.roots:
            fill_in_decisions(before)
            if (ahead := reads_ahead(before, self._clock)) is not None:
                row["reads_ahead"] = ahead
            row |= self._gradients(before, used)
        for stage in loop.stages:
            row |= self._update(stage)
        return row

    def _gradients(self, tape: Tape, used: Sequence[Used]) -> dict[str, Any]:
        begun = time.perf_counter()
        ids = [each.id for each in used]
        loss = self._loop.roots[-1]
        first = tape.value(loss)
        if first is not None and first.numel() != 1:
            raise EngineError(
                Sentence("its last backward pass begins with {count} numbers, not with one loss", count=first.numel())
            )
        table = replay_exact(tape, [*ids, loss], visit=self._clock)
        replay_s = time.perf_counter() - begun
        low = math.nan if first is None else float(first)
        exact = [table[id] for id in ids]
        is_finite = math.isfinite(low) and all(bool(each.gradient.isfinite().all()) for each in used)
        exact_is_finite = bool(table[loss].isfinite().all()) and all(bool(each.isfinite().all()) for each in exact)
        row: dict[str, Any] = {
            "loss": low, "loss_fp64": float(table[loss]), "finite": is_finite, "finite_in_fp64": exact_is_finite,
            "replay_s": replay_s,
        }  # fmt: skip
        error = math.nan
        if is_finite and exact_is_finite:
            error = distance([each.gradient for each in used], exact)
            row |= {"gradient_error": error, "worst": _worst(used, exact)}
        gap = abs(low - float(table[loss]))
        is_far = not is_finite or not error <= _FAR or not gap <= _FAR * abs(float(table[loss]))
        if is_far:
            if time.perf_counter() + _TIMES * replay_s > self._ends:
                return row | {"cause_unavailable": L_("the search for it would take longer than the recorder may")}
            row |= _cause(tape, used, loss, low)
            if not is_finite:
                row |= {"given": _given(tape), "narrow_inputs": _are_narrow(tape)}
        return row

    def _update(self, stage: Stage) -> dict[str, Any]:
        if not stage.weights:
            return {}
        return {"updates": StoredUpdate(self._loop.tape, stage, self._clock).row()}


def _given(tape: Tape) -> list[dict[str, Any]]:
    """The tensors that were there before the step and hold NaN or Inf, with their first readers; the weights do not.

    Numbers that a backward pass or code without a line reads first are those of hooks; the tape has not seen them made.
    """
    rows = []
    for id, leaf in tape.leaves.items():
        if set(tape.kinds.get(id, "")) & {"n", "+"}:
            reader = next((each for each in tape.operations if id in each.inputs), None)
            if reader is not None and not reader.origin.backward and reader.origin.line != NO_LINE:
                rows.append(
                    {"module": reader.origin.module, "line": reader.origin.line.label, "shape": list(leaf.shape),
                     "nan": "n" in tape.kinds[id]}
                )  # fmt: skip
    return rows[:_MOST_NAMES]


def _are_narrow(tape: Tape) -> bool:
    """Whether a tensor that was there before the step has no more digits than 16 bits hold."""
    floats = [leaf for leaf in tape.leaves.values() if is_float(leaf) and not leaf.is_complex()]
    return any(
        leaf.dtype.itemsize <= 2 or (bool((leaf != leaf.round()).any()) and _fits_16_bits(leaf)) for leaf in floats
    )


def _fits_16_bits(tensor: Tensor) -> bool:
    own = tensor[tensor.isfinite()]
    return any(bool((own.to(dtype).to(own.dtype) == own).all()) for dtype in (torch.bfloat16, torch.float16))


def _worst(used: Sequence[Used], exact: Sequence[Tensor]) -> list[dict[str, Any]]:
    """The gradients with the largest relative error of their own."""
    rows = []
    for each, right in zip(used, exact, strict=True):
        size = norm([right])
        gap = norm([widened(each.gradient, F64) - right])
        rows.append({"name": each.name, "error": gap / size if size else (math.inf if gap else 0.0), "norm": size})
    return sorted(rows, key=lambda row: -float(row["error"]))[:_MOST_NAMES]  # type: ignore[arg-type]


def _cause(tape: Tape, used: Sequence[Used], loss: int, low_loss: float) -> dict[str, Any]:
    """The verdict of the shadow on the gradients of a step, with the operations that it names."""
    fill_in_measures(tape)
    step = RecordedStep(tape, [each.id for each in used], loss, [each.gradient for each in used], low_loss)
    shadow = Shadow(step)
    place = shadow.first_nonfinite
    return {
        "cause": {
            "verdict": shadow.verdict, "blame": shadow.precision_is_to_blame, "message": shadow.message,
            "ideal_error": shadow.ideal_error, "operations": named_operations(shadow),
            "first_nonfinite": None if place is None else vars(place), "notes": shadow.notes[:_MOST_NAMES],
            "cancelled": cancelled(tape),
        }
    }  # fmt: skip


__all__ = ["examined"]
