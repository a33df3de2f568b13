"""A finding: a verdict on a run that carries its proof; its twin, why a fault is ruled out; the cause of a bad step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from precgui.events import Severity
from precgui.sentences import L_, Sentence, counted

Certainty = Literal["exact", "estimate", "lower bound"]
Verdict = Literal["healthy", "problems", "cannot be told"]
CERTAINTIES: dict[Certainty, str] = {"exact": L_("exact"), "estimate": L_("estimate"), "lower bound": L_("lower bound")}
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
PROBLEMS = ("error", "warning")
REPLAY = "precgui replay RUN.h5"
BLAME = {
    True: L_("precision is to blame"),
    False: L_("precision is not to blame"),
    None: L_("whether precision is to blame cannot be told"),
}
_BLAME_ALONE = {
    True: L_("Precision is to blame."),
    False: L_("Precision is not to blame."),
    None: L_("Whether precision is to blame cannot be told."),
}


@dataclass(frozen=True)
class Evidence:
    """A formula with the numbers of this run in it. `text` is the sentence to read.

    `series` are the recorded numbers as (step, value), at most POINTS, `signal` says of what, `limit` where they cross
    the threshold (NaN where there is no single one).
    """

    formula: str
    values: Mapping[str, float | int | str]
    text: str
    signal: str = ""
    series: tuple[tuple[int, float], ...] = ()
    limit: float = math.nan


@dataclass(frozen=True)
class Blame:
    """Whether precision is to blame: None without a proof, which True and False both need.

    `proof` is a clause that says how it is known, `needs` what would decide it, or make it surer; `certainty` and
    `evidence` are those of the answer. Raises ValueError for an answer without a proof, and for a proof of nothing.
    """

    answer: bool | None = None
    proof: str = ""
    needs: str = ""
    certainty: Certainty = "exact"
    evidence: tuple[Evidence, ...] = ()

    def __post_init__(self) -> None:
        if (self.answer is None) == bool(self.proof):
            raise ValueError(f"precision is to blame: {self.answer}, but the proof of it is {self.proof!r}")


UNDECIDED = Blame()
IN_ANY_FORMAT = Blame(
    False, L_("what was seen are calls, settings, shapes or graphs, which are the same in any format")
)
NO_16_BITS = Blame(False, L_("nothing in these steps was computed or stored in fewer than 32 bits"))
COMPARED = Blame(
    True, L_("numbers of the run were compared with those that the same operands give without the rounding")
)
BEYOND_RANGE = Blame(True, L_("numbers of the run lie beyond the range of their format, or below it"))
TOO_FEW_DIGITS = Blame(
    True, L_("the distance between two numbers of the format is larger than what is to be told apart")
)


@dataclass(frozen=True)
class Finding:
    """One verdict. `rule` is a key of docs/diagnosis.md, steps count from 1, 0 stands for "before the first step".

    `module` is empty where the whole model is meant. `confidence` is a share of 1. `config_change` maps paths of the
    config to values. An `exact` finding is an `estimate` where its answer who is to blame is one.
    `scope` stands in the place of the steps where a finding has none, as on the weights of a model.
    """

    rule: str
    severity: Severity
    title: str
    first_step: int
    last_step: int
    evidence: tuple[Evidence, ...]
    fix: str
    confidence: float
    source: str
    module: str = ""
    tensors: tuple[str, ...] = ()
    config_change: Mapping[str, Any] = field(default_factory=dict)
    certainty: Certainty = "exact"
    blame: Blame = UNDECIDED
    scope: str = ""

    def __post_init__(self) -> None:
        if self.certainty == "exact":
            object.__setattr__(self, "certainty", self.blame.certainty)

    @property
    def precision_is_to_blame(self) -> bool | None:
        """None where it is undecided."""
        return self.blame.answer

    @property
    def needs(self) -> str:
        """The record or replay that would decide whether precision is to blame, or make it surer; '' for none."""
        return self.blame.needs

    @property
    def is_problem(self) -> bool:
        return self.severity in PROBLEMS

    @property
    def steps(self) -> str:
        """The steps that it is about, in words."""
        return steps_text(self.first_step, self.last_step) if not self.scope else self.scope

    @property
    def replay_step(self) -> int | None:
        """The step that a replay in FP64 would decide, as `needs` says it; None where no replay is asked for."""
        command, _, remainder = self.needs.partition(" --step ")
        return int(remainder.split()[0]) if command.endswith(REPLAY) and remainder[:1].isdecimal() else None

    @property
    def order(self) -> tuple[int, float, int]:
        """Errors first, then by confidence, then by step."""
        return SEVERITIES.index(self.severity), -self.confidence, self.first_step


@dataclass(frozen=True)
class RuledOut:
    """A fault that the record excludes; `why` is a clause with a number."""

    rule: str
    why: str


@dataclass(frozen=True)
class Undecided:
    """A rule without the data to decide; `needs` says what must be recorded."""

    rule: str
    needs: str


@dataclass(frozen=True)
class Diagnosis:
    """All findings of a run, the weightiest first, and what is ruled out. `examined` says of what without steps.

    why_not: a sentence with its cure where the file could not be examined.
    """

    findings: tuple[Finding, ...]
    ruled_out: tuple[RuledOut, ...]
    undecided: tuple[Undecided, ...]
    steps: int
    examined: str = ""
    why_not: str = ""

    @property
    def problems(self) -> tuple[Finding, ...]:
        return tuple(result for result in self.findings if result.is_problem)

    @property
    def verdict(self) -> Verdict:
        if self.problems:
            return "problems"
        return "healthy" if self.steps else "cannot be told"

    @property
    def sentence(self) -> str:
        """The diagnosis in one or two sentences: no fault found, or the weightiest problem and how many more."""
        if self.verdict == "cannot be told":
            return Sentence("Cannot be told: {why}", why=self.why_not or L_("no step is recorded."))
        if not self.problems:
            steps = self.examined or counted("{count} step", "{count} steps", self.steps)
            hint = next((each for each in self.findings if each.rule == "chance-level"), None)
            if hint is not None:
                return Sentence(
                    "{title}. No fault was found that explains it: the signs of {count} known faults were looked for "
                    "in {steps} and not seen; others are possible.",
                    title=hint.title, count=len(self.ruled_out), steps=steps,
                )  # fmt: skip
            return Sentence(
                "No fault found. The signs of {count} known faults were looked for in {steps} and not seen; others are "
                "possible.",
                count=len(self.ruled_out),
                steps=steps,
            )
        first, remainder = self.problems[0], len(self.problems) - 1
        if not remainder:
            return Sentence("{title}.", title=first.title)
        return counted(
            "{title}. {count} more finding.", "{title}. {count} more findings.", remainder, title=first.title
        )


def steps_text(first: int, last: int) -> str:
    """The steps from one to another, both included, in words."""
    if first == last:
        return Sentence("step {step}", step=first)
    return Sentence("steps {first} to {last}", first=first, last=last)


def blame_alone(finding: Finding) -> str:
    """Whether precision is to blame, in a sentence without its proof."""
    return _BLAME_ALONE[finding.precision_is_to_blame]


def blame_sentence(finding: Finding) -> str:
    """Whether precision is to blame, and how that is known."""
    answer, proof = finding.precision_is_to_blame, finding.blame.proof
    if not proof or answer is None:
        return _BLAME_ALONE[answer]
    if answer:
        return Sentence("Precision is to blame: {proof}.", proof=proof)
    return Sentence("Precision is not to blame: {proof}.", proof=proof)


def as_json(finding: Finding) -> dict[str, Any]:
    """A finding in built-in types; numbers that are not finite as text."""
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "title": finding.title,
        "step": finding.first_step,
        "first_step": finding.first_step,
        "last_step": finding.last_step,
        "module": finding.module,
        "tensors": list(finding.tensors),
        "evidence": [_evidence(each) for each in finding.evidence],
        "fix": finding.fix,
        "config_change": dict(finding.config_change),
        "precision_is_to_blame": finding.precision_is_to_blame,
        "blame_proof": finding.blame.proof,
        "confidence": finding.confidence,
        "certainty": finding.certainty,
        "needs": finding.needs,
        "replay_step": finding.replay_step,
        "source": finding.source,
    }


def _evidence(each: Evidence) -> dict[str, Any]:
    values = {name: _plain(value) for name, value in each.values.items()}
    series = [[step, _plain(value)] for step, value in each.series]
    return {"formula": each.formula, "values": values, "text": each.text, "signal": each.signal, "series": series}


def _plain(value: float | int | str) -> float | int | str:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class Cause:
    """Of a step that is not finite: `rule` is the name of the finding, `short` a clause for titles."""

    rule: str
    short: str
    fix: str
    evidence: tuple[Evidence, ...] = ()
    module: str = ""
    config_change: Mapping[str, Any] = field(default_factory=dict)
    confidence: float = 0.8
    certainty: Certainty = "exact"
    tensors: tuple[str, ...] = ()
    blame: Blame = UNDECIDED
