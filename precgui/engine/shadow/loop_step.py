"""A step of somebody's loop beside the same step in FP64: how far off its loss, gradients and updates are, and why."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from precgui.engine.dtype_names import dtype_name
from precgui.engine.errors import EngineError
from precgui.engine.shadow.attribution import distance, norm
from precgui.engine.shadow.blockwise import created_bytes
from precgui.engine.shadow.choices import ChoiceComparison
from precgui.engine.shadow.error_kinds import cancelled, named_operations
from precgui.engine.shadow.left_out import left_out_by
from precgui.engine.shadow.loop_tape import LoopTape, Stage, Used
from precgui.engine.shadow.low_pass import fill_in_decisions, fill_in_measures
from precgui.engine.shadow.record import RecordedStep
from precgui.engine.shadow.replay import F64, replay_exact
from precgui.engine.shadow.replay_memory import replay_bytes
from precgui.engine.shadow.semantics import is_float, widened
from precgui.engine.shadow.step import Shadow
from precgui.engine.shadow.stored_update import StoredUpdate
from precgui.engine.shadow.structure import next_token_seen, reads_ahead, softmax_over_batch
from precgui.engine.shadow.tape import NO_LINE, Tape, TapeOp
from precgui.sentences import L_, Sentence, first_line

_FAR = 0.05  # relative error of all gradients together, or of a loss, from which on its cause is searched
_MOST_NAMES = 4
_TIMES = 25  # the search for a cause takes up to so many times as long as one replay
_EARLY, _EARLY_S, _FAR_TOO_LONG = 0.1, 0.3, 2.0  # part of a replay, seconds, and times the limit: it is ended then
_MOVES = 24  # bytes for each element of a weight whose update is compared


def examined(loop: LoopTape, most_s: float, most_bytes: int) -> dict[str, Any]:
    """A row of the fact `exact_steps`, see docs/run-file.md, without its step.

    The replay may take `most_s` by the clock of the tape, and `most_bytes`; where it would take longer, `needed_s` says
    about how long.
    """
    if loop.why_not:
        return {"unavailable": loop.why_not}
    clock = _Clock(most_s, loop.clock)
    try:
        return _Examination(loop, clock, most_bytes).row()
    except EngineError as error:
        _forget_frames(error)
        return {"unavailable": str(error), "needed_s": clock.needed_s}
    except Exception as error:  # noqa: BLE001 - whatever torch raises for FP64 of an odd operation: no row, but a run
        _forget_frames(error)
        return {"unavailable": Sentence("its replay in FP64 fails: {error}", error=first_line(error, 160))}


def _forget_frames(error: BaseException | None) -> None:
    """Let go of the values that the frames of an error hold, which may refer to the error in a circle."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


class _Clock:
    """Ends a replay that takes too long, early where it is far from its end."""

    def __init__(self, most_s: float, now: Callable[[], float]) -> None:
        self.now, self._begun, self._most_s = now, now(), most_s
        self._replay, self._count = self._begun, 1
        self.needed_s = 0.0  # by a replay that was ended, as far as is known

    def begin(self, operations: int) -> _Clock:
        """A replay of so many operations begins."""
        self._replay, self._count = self.now(), operations
        return self

    @property
    def left_s(self) -> float:
        return self._begun + self._most_s - self.now()

    def __call__(self, operation: TapeOp, *_: Any) -> None:
        took, done = self.now() - self._replay, (operation.index + 1) / max(self._count, 1)
        expected = took / done
        is_hopeless = done > _EARLY and took > _EARLY_S and expected > _FAR_TOO_LONG * self._most_s
        if is_hopeless or self.left_s < 0:
            self.needed_s = expected
            raise EngineError(
                Sentence(
                    "its replay in FP64 takes about {needed:.2g} s, longer than the recorder may ({most:.2g} s)",
                    needed=expected,
                    most=self._most_s,
                )
            )


class _Examination:
    def __init__(self, loop: LoopTape, clock: _Clock, most_bytes: int) -> None:
        self._loop, self._clock, self._most_bytes = loop, clock, most_bytes

    def row(self) -> dict[str, Any]:
        loop = self._loop
        row: dict[str, Any] = {"operations": len(loop.tape.operations)}
        if (over := softmax_over_batch(loop.tape)) is not None:
            row["softmax_over_batch"] = over
        used = [each for stage in loop.stages for each in stage.gradients]
        before = replace(loop.tape, operations=loop.tape.operations[: max((s.begin for s in loop.stages), default=0)])
        if used and loop.roots:
            fill_in_decisions(before)
            self._fits(replay_bytes(before, [*(each.id for each in used), self._loop.roots[-1]]))
            if (ahead := reads_ahead(before, self._clock.begin(len(before.operations)))) is not None:
                row["reads_ahead"] = ahead
            if (seen := next_token_seen(before, self._clock.begin(len(before.operations)))) is not None:
                row["next_token"] = seen
            row |= self._gradients(before, used)
        for stage in loop.stages:
            row |= self._update(stage)
        return row

    def _gradients(self, tape: Tape, used: Sequence[Used]) -> dict[str, Any]:
        begun = self._clock.now()
        ids = [each.id for each in used]
        loss = self._loop.roots[-1]
        first = tape.value(loss)
        if first is not None and first.numel() != 1:
            raise EngineError(
                Sentence("its last backward pass begins with {count} numbers, not with one loss", count=first.numel())
            )
        choices = ChoiceComparison(tape, self._clock.begin(len(tape.operations)))
        table = replay_exact(tape, [*ids, loss], visit=choices)
        replay_s = self._clock.now() - begun
        low = math.nan if first is None else float(first)
        exact = [table[id] for id in ids]
        is_finite = math.isfinite(low) and all(bool(each.gradient.isfinite().all()) for each in used)
        exact_is_finite = bool(table[loss].isfinite().all()) and all(bool(each.isfinite().all()) for each in exact)
        row: dict[str, Any] = {
            "loss": low, "loss_fp64": float(table[loss]), "finite": is_finite, "finite_in_fp64": exact_is_finite,
            "replay_s": replay_s,
        }  # fmt: skip
        row |= choices.rows()
        error = math.nan
        if is_finite and exact_is_finite:
            error = distance([each.gradient for each in used], exact)
            row |= {"gradient_error": error, "worst": _worst(used, exact)}
        gap = abs(low - float(table[loss]))
        is_far = not is_finite or not error <= _FAR or not gap <= _FAR * abs(float(table[loss]))
        if is_far:
            if _TIMES * replay_s > self._clock.left_s:
                return row | {"cause_unavailable": L_("the search for it would take longer than the recorder may")}
            if (why := self._without_room(created_bytes(tape))) is not None:
                return row | {"cause_unavailable": why}
            row |= _cause(tape, used, loss, low)
            if not is_finite:
                row |= {"given": _given(tape), "narrow_inputs": _are_narrow(tape)}
        return row

    def _update(self, stage: Stage) -> dict[str, Any]:
        if not stage.weights:
            return {}
        if self._clock.left_s <= 0:
            return {
                "updates_unavailable": L_("the comparison of the gradients took all the time that the recorder may")
            }
        update = StoredUpdate(self._loop.tape, stage, self._clock.begin(stage.end - stage.begin))
        moved = sum(weight.numel() for weight in update.weights)
        if (why := self._without_room(update.replay_bytes() + _MOVES * moved)) is not None:
            return {"updates_unavailable": why}
        try:
            return {"updates": update.row()}
        except EngineError as error:  # the comparison of the gradients stays
            _forget_frames(error)
            return {"updates_unavailable": str(error)}

    def _fits(self, needed: int) -> None:
        """Raises EngineError where a replay would take more memory than it may."""
        if (why := self._without_room(needed)) is not None:
            raise EngineError(why)

    def _without_room(self, needed: int) -> str | None:
        if needed <= self._most_bytes:
            return None
        return Sentence(
            "its replay in FP64 takes up to {needed} MiB, and half of the free memory is {most} MiB",
            needed=needed >> 20, most=self._most_bytes >> 20,
        )  # fmt: skip


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
                     "nan": "n" in tape.kinds[id], "format": dtype_name(leaf.dtype)}
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


def _overflows(tape: Tape, shadow: Shadow) -> str:
    """The format beyond whose range the operation went that made the first NaN or Inf; '' where that is not why."""
    origin = shadow.origin
    if origin is None or not origin.precision_is_to_blame or origin.culprit is not origin.operation:
        return ""
    values = [tape.value(each) for each in origin.operation.outputs if each is not None]
    return next((dtype_name(each.dtype) for each in values if each is not None), "")


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
            "left_out_by": left_out_by(tape, shadow.origin.operation) if shadow.origin is not None else "",
            "overflows": _overflows(tape, shadow),
        }
    }  # fmt: skip


__all__ = ["examined"]
