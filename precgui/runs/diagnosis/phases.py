"""The parts of a run with a precision schedule: the steps that were made in each precision."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from precgui.config.names import check_precision
from precgui.config.schedule import changes_of
from precgui.runs.diagnosis.findings import Finding
from precgui.runs.recorded_facts import rows_of
from precgui.runs.run import Run
from precgui.sentences import Sentence

OF_EACH_PHASE = ("census", "certificate")  # facts that a change of the precision makes anew


@dataclass(frozen=True)
class Phase:
    """Steps `first` to `last`, both included, in one precision.

    `facts` holds what was recorded at the change to it: the census of its first step, the certificate of FP32 products.
    """

    precision: str
    first: int = 0
    last: float = math.inf
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The precision and its steps, for a sentence."""
        if self.last < math.inf:
            return Sentence(
                "{precision}, steps {first} to {last:.0f}", precision=self.precision, first=self.first, last=self.last
            )
        return Sentence("{precision}, from step {first} on", precision=self.precision, first=self.first)


def phases_of(run: Run) -> tuple[Phase, ...]:
    """The phases of a run, one where its precision never changed; entries of the file that make no sense count not."""
    phases = [Phase(run.config.precision)]
    for step, precision, facts in _changes(run.environment.get("precision_changes")):
        if step > phases[-1].first:
            phases[-1] = replace(phases[-1], last=step - 1)
            phases.append(Phase(precision, step, facts=facts))
    if len(phases) > 1:
        phases[0] = replace(phases[0], first=1)
    return tuple(phases)


def _changes(entries: object) -> Iterator[tuple[int, str, dict[str, Mapping[str, Any]]]]:
    for entry in rows_of(entries):
        step, name = entry.get("step"), entry.get("precision")
        if not isinstance(step, int) or not isinstance(name, str):
            continue
        try:
            check_precision(name)
        except ValueError:  # of a later version
            continue
        yield step, name, {fact: entry[fact] for fact in OF_EACH_PHASE if isinstance(entry.get(fact), Mapping)}


def for_its_phase(finding: Finding, phases: tuple[Phase, ...], schedule: Mapping[str, str]) -> Finding:
    """A finding whose change of the precision is made where the precision of its steps is set: in the schedule."""
    place = max((i for i, phase in enumerate(phases) if phase.first <= max(finding.first_step, 1)), default=0)
    keys = list(schedule)
    if place == 0 or "precision" not in finding.config_change or place > len(keys):
        return finding
    change = dict(finding.config_change)
    later = dict(schedule) | {keys[place - 1]: change.pop("precision")}
    if changes_of(later)[place - 1].precision == phases[place].precision:
        return finding
    text = ",".join(f"{key}={precision}" for key, precision in later.items())
    return replace(finding, config_change=change | {"precision_schedule": text})
