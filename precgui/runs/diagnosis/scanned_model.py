"""A scanned model with the look-ups that its rules need, and the form of their findings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from precgui.events import Severity
from precgui.formats.checkpoints.survey import FIGURES, TensorSurvey
from precgui.formats.text import grouped
from precgui.runs.diagnosis.findings import UNDECIDED, Blame, Certainty, Evidence, Finding, RuledOut, Undecided
from precgui.runs.models.effects import ModelEffects
from precgui.runs.models.model_file import ModelScan
from precgui.sentences import L_, Sentence

Answer = Finding | RuledOut | Undecided | None  # None: the question does not arise in this model
_MOST_NAMED = 32
_SQNR = FIGURES.index("sqnr_db")
_SOURCE = "docs/diagnosis.md"


@dataclass(frozen=True)
class ScannedModel:
    """A scan, and what `precgui quantize` measured of the model where its file has that."""

    scan: ModelScan
    effects: ModelEffects | None = None

    @cached_property
    def rows(self) -> dict[str, dict[str, Any]]:
        return {str(row["name"]): row for row in self.scan.tensors}

    @cached_property
    def surveys(self) -> dict[str, TensorSurvey]:
        return {each.name: each for each in self.scan.surveys}

    def sqnr_db(self, each: TensorSurvey, name: str) -> float:
        """Signal to noise of a tensor in a format; NaN where the scan has none."""
        names = [fmt.name for fmt in self.scan.formats]
        return float(each.figures[names.index(name), _SQNR]) if name in names else math.nan


def model_finding(
    rule: str, severity: Severity, title: str, proof: Evidence, fix: str, tensors: Iterable[str], *,
    blame: Blame = UNDECIDED, certainty: Certainty = "exact", confidence: float = 1.0,
) -> Finding:  # fmt: skip
    """A finding on weights, which has no steps."""
    names = tuple(tensors)[:_MOST_NAMED]
    return Finding(
        rule, severity, title, 0, 0, (proof,), fix, confidence, _SOURCE, names[0] if names else "", names,
        certainty=certainty, blame=blame, scope="weights",
    )  # fmt: skip


def and_others(names: Sequence[str]) -> str:
    """ " and 3 more tensors" behind the first one."""
    more = len(names) - 1
    return (
        ""
        if more < 1
        else L_(" and 1 more tensor")
        if more == 1
        else Sentence(
            " and {more} more tensors",
            more=grouped(more),
        )
    )
