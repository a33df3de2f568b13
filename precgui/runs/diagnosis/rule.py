"""A rule: its name, its question and the function that answers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from precgui.runs.diagnosis.findings import Finding, RuledOut, Undecided
from precgui.runs.diagnosis.measurements import Measurements

Answer = list[Finding] | RuledOut | Undecided | None  # None: the question does not arise in this run


@dataclass(frozen=True)
class Rule:
    """`group`: A range, B digits, C not precision, D bookkeeping, E its gain in time and memory.

    `by_phase`: its answer depends on the precision, so that a run with a schedule is judged in each of its phases.
    """

    name: str
    group: str
    question: str
    judge: Callable[[Measurements], Answer]

    @property
    def by_phase(self) -> bool:
        return self.group in ("A", "B") or self.name == "scaler-set-anew"
