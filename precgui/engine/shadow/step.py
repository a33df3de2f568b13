"""`precgui.shadow`: one training step with FP64 beside it, the share of each line in its error, and what to change."""

from __future__ import annotations

import linecache
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from precgui.engine.errors import EngineError
from precgui.engine.shadow.attribution import is_cast
from precgui.engine.shadow.measures import StepMeasures
from precgui.engine.shadow.record import Parameters, RecordedStep, record_step
from precgui.engine.shadow.tape import NO_LINE_LABEL, SourceLine
from precgui.engine.shadow.unavoidable_error import by_line
from precgui.engine.shadow.verdict import LEAST_FLIPS, judge
from precgui.sentences import L_, Sentence, together

Verdict = Literal["healthy", "problems", "not explained"]


def shadow(step_fn: Callable[[], Any], parameters: Parameters) -> Shadow:
    """Run one step with FP64 beside it.

    `step_fn` does forward and backward and returns the loss; it runs once, on clear gradients. `parameters` are those
    whose gradients are compared: tensors, pairs of names and tensors, or a module. Raises EngineError when they are
    something else, and when the step leaves no loss or no gradient.
    """
    return Shadow(record_step(step_fn, parameters))


@dataclass(frozen=True)
class ShadowLine:
    """The part of a source line in the error of the gradient.

    `share` of the squared error, `avoidable` the part of it that better arithmetic in this line saves; `left_predicted`
    the error left when the line runs in FP64, 0 to 1, None where the shares do not add up; `left_measured` the same
    computed, None where it was not.
    """

    line: str
    source: str
    module: str
    share: float
    avoidable: float
    left_predicted: float | None
    left_measured: float | None
    flush: float
    casts: float


@dataclass(frozen=True)
class NonFinitePlace:
    """An operation that made NaN or Inf."""

    operation: str
    module: str
    line: str
    backward: bool


class Shadow(StepMeasures):
    """One step and its FP64 shadow, with the verdict on it; see docs/shadow.md."""

    def __init__(self, step: RecordedStep) -> None:
        super().__init__(step)
        self._lines: dict[str, SourceLine] = {o.origin.line.label: o.origin.line for o in step.tape.operations}
        self._judgement = judge(self)

    def __repr__(self) -> str:
        return f"<Shadow: {self.verdict}. {self.message}>"

    @property
    def notes(self) -> list[str]:
        """Sentences on operations that ran otherwise than usual or were not followed."""
        opaque = sorted({o.name for o in self.step.tape.operations if o.opaque})
        reported: list[str] = [
            Sentence("{operation} has no FP64 form: its low result was used on both sides", operation=name)
            for name in opaque
        ]
        if self.is_finite and self.flips is None:
            reported.append(
                L_("how far decisions move the gradient is not known: in FP64 they change the shape of a value")
            )
        return [*self.step.tape.notes, *reported]

    @property
    def verdict(self) -> Verdict:
        return self._judgement.verdict

    @property
    def message(self) -> str:
        """The verdict, and how far decisions move the gradient where that is more than its error."""
        flips = self.flips if self.is_finite else 0.0
        if not flips or flips < max(self.gradient_error, LEAST_FLIPS) or f"{flips:.2e}" in self._judgement.message:
            return self._judgement.message
        moved = Sentence(
            "Decisions that turn out otherwise in FP64 (units on or off, which element is the largest) move the "
            "gradient by {flips:.2e}, which is not in these figures.",
            flips=flips,
        )
        return together(self._judgement.message, moved)

    @property
    def precision_is_to_blame(self) -> bool | None:
        """True: FP64 would have none of it. False: FP64 breaks, too, or nothing is wrong. None: not known."""
        return self._judgement.precision_is_to_blame

    @property
    def blamed(self) -> list[str]:
        """The lines that the verdict names, worst first."""
        return [line.label for line in self._judgement.lines]

    @property
    def mechanisms(self) -> dict[str, float | None]:
        """ErrorShares of the error by how it came about.

        flush, casts, overflow and rounding add up to `explained`; flips is |gradient moved by other decisions| squared
        over the sum of both errors squared, None where `flips` is.
        """
        if not self.is_finite:
            overflow = 1.0 if self.origin is not None and self.origin.precision_is_to_blame else 0.0
            return {"flush": 0.0, "rounding": 0.0, "casts": 0.0, "flips": 0.0, "overflow": overflow}
        shares, operations = self.shares, self.step.tape.operations
        flush, overflow = math.fsum(shares.flush.values()), math.fsum(shares.saturated.values())
        lost = {i: shares.flush.get(i, 0.0) + shares.saturated.get(i, 0.0) for i in shares.by_operation}
        casts = math.fsum(s - lost[i] for i, s in shares.by_operation.items() if is_cast(operations[i]))
        flips = None if self.flips is None else self.flips**2
        both = (flips or 0.0) + self.gradient_error**2
        return {
            "flush": flush, "rounding": self.explained - flush - overflow - casts, "casts": casts,
            "flips": None if flips is None else flips / both if both else 0.0, "overflow": overflow,
        }  # fmt: skip

    def lines(self) -> list[ShadowLine]:
        """The source lines by their share in the error of the gradient, largest first."""
        operations = self.step.tape.operations
        shares = by_line(self.step.tape, self.shares.by_operation)
        usual, flush = by_line(self.step.tape, self.unavoidable), by_line(self.step.tape, self.shares.flush)
        casts = by_line(self.step.tape, {i: s for i, s in self.shares.by_operation.items() if is_cast(operations[i])})
        ordered = sorted(shares, key=lambda line: -shares[line])
        return [
            ShadowLine(
                line.label, linecache.getline(line.file, line.number).strip(), self._module(line), shares[line],
                shares[line] - usual.get(line, 0.0), self.predicted([line]),
                self._left.get(frozenset(self.operations_of([line]))),
                flush.get(line, 0.0), casts.get(line, 0.0),
            )
            for line in ordered
        ]  # fmt: skip

    def measure_largest(self, count: int = 3) -> None:
        """Compute `left_measured` of the lines with the largest shares."""
        for line in self.lines()[:count]:
            if line.line != NO_LINE_LABEL:
                self.with_fp64(line)

    def _module(self, line: SourceLine) -> str:
        """The module of a line; `blocks.*.up` where several that differ by number run it."""
        names = Counter(o.origin.module for o in self.step.tape.operations if o.origin.line == line)
        if len(names) <= 1:
            return next(iter(names), "")
        patterns = Counter[str]()
        for name, count in names.items():
            patterns[re.sub(r"\b\d+\b", "*", name)] += count
        return patterns.most_common(1)[0][0]

    def with_fp64(self, lines: str | ShadowLine | Iterable[str | ShadowLine]) -> float:
        """The error of the gradient that is left when lines run in FP64, computed with the low kernels elsewhere.

        All operations of the lines are in FP64, matrix products among them, as in a line under `.double()`. The
        verdict asks less: it leaves products as they are, since a whole model may stand in one line.

        Relative to the error as it is: 1 is no help, 0 is exact. Where the step itself is not finite, the relative
        error of the gradient. Raises EngineError for a line that is not in the step.
        """
        several = [lines] if isinstance(lines, str | ShadowLine) else list(lines)
        return self.measured([self._find(one) for one in several])

    def _find(self, line: str | ShadowLine) -> SourceLine:
        name = line.line if isinstance(line, ShadowLine) else line
        if name in self._lines:
            return self._lines[name]
        ends = [known for text, known in self._lines.items() if text.endswith(f"/{name}")]
        if len(ends) != 1:
            raise EngineError(Sentence("{line} is no line of this step; lines() gives them, as file.py:12", line=name))
        return ends[0]

    @property
    def first_nonfinite(self) -> NonFinitePlace | None:
        """The operation that made the NaN or Inf of the step."""
        if self.origin is None:
            return None
        created = self.origin.operation
        return NonFinitePlace(created.name, created.origin.module, created.origin.line.label, created.origin.backward)

    def to_json(self, lines: int = 20) -> dict[str, Any]:
        """The keys of `precgui replay --json`, numbers that are not finite as None."""
        place = self.first_nonfinite
        return {
            "precision_is_to_blame": self.precision_is_to_blame,
            "gradient_error": _number(self.gradient_error),
            "ideal_error": _number(self.ideal_error),
            "explained": _number(self.explained),
            "mechanisms": self.mechanisms,
            "lines": [
                {"line": one.line, "module": one.module, "share": one.share, "left_predicted": one.left_predicted,
                 "left_measured": one.left_measured, "avoidable": one.avoidable, "source": one.source}
                for one in self.lines()[:lines]
            ],
            "first_nonfinite": None if place is None else vars(place),
            "verdict": self.verdict,
            "message": self.message,
            "blamed": self.blamed,
            "notes": self.notes,
        }  # fmt: skip


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


__all__ = ["NonFinitePlace", "Shadow", "ShadowLine", "shadow"]
