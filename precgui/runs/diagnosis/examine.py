"""All rules on one run."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from precgui.runs.diagnosis import (
    accumulation_rules,
    block_rules,
    bookkeeping_rules,
    chance_rules,
    choice_rules,
    constant_rules,
    data_rules,
    dead_unit_rules,
    depth_rules,
    digit_rules,
    discarded_rules,
    exact_step_rules,
    gradient_rules,
    high_rate_rules,
    learning_rules,
    loop_rules,
    loss_argument_rules,
    loss_term_rules,
    lost_digit_rules,
    lost_value_rules,
    model_rules,
    moment_rules,
    order_rules,
    quantised_rules,
    range_rules,
    reload_rules,
    scale_rules,
    schedule_rules,
    setup_rules,
    signal_rules,
    speedup_rules,
    training_rules,
    trend_rules,
    update_rules,
    zero_gradient_rules,
)
from precgui.runs.diagnosis.checkpoint_rules import examine_scan
from precgui.runs.diagnosis.consequences import without_consequences
from precgui.runs.diagnosis.findings import Diagnosis, Finding, RuledOut, Undecided
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.phases import for_its_phase
from precgui.runs.diagnosis.rule import Answer, Rule
from precgui.runs.errors import RunFileError
from precgui.runs.models.model_file import holds_scan, read_effects, read_model_file
from precgui.runs.open import open_run_or_events
from precgui.runs.run import Run
from precgui.sentences import L_, Sentence, message_of, together

RULES: tuple[Rule, ...] = (
    *scale_rules.RULES,
    *range_rules.RULES,
    *block_rules.RULES,
    *digit_rules.RULES,
    *moment_rules.RULES,
    *lost_digit_rules.RULES,
    *update_rules.RULES,
    *lost_value_rules.RULES,
    *loss_argument_rules.RULES,
    *exact_step_rules.RULES,
    *training_rules.RULES,
    *dead_unit_rules.RULES,
    *zero_gradient_rules.RULES,
    *gradient_rules.RULES,
    *learning_rules.RULES,
    *chance_rules.RULES,
    *high_rate_rules.RULES,
    *depth_rules.RULES,
    *constant_rules.RULES,
    *data_rules.RULES,
    *signal_rules.RULES,
    *choice_rules.RULES,
    *loss_term_rules.RULES,
    *schedule_rules.RULES,
    *setup_rules.RULES,
    *loop_rules.RULES,
    *order_rules.RULES,
    *reload_rules.RULES,
    *discarded_rules.RULES,
    *accumulation_rules.RULES,
    *model_rules.RULES,
    *quantised_rules.RULES,
    *trend_rules.RULES,
    *speedup_rules.RULES,
    *bookkeeping_rules.RULES,
)
_BEGINS = L_("the training has begun, and no step of it has ended yet.")


@np.errstate(all="ignore")  # a file may hold any number; each rule judges what comes out
def examine(run: Run) -> Diagnosis:
    """Findings, the weightiest first, and what is ruled out. A run file is read, nothing else; needs no torch.

    The scan of a model has rules of its own.
    """
    if holds_scan(run) and run.path is not None:
        try:
            scan, effects = read_model_file(run.path), read_effects(run.path)
        except RunFileError as error:
            return Diagnosis((), (), (), 0, why_not=message_of(error))
        if scan is None:
            return Diagnosis((), (), (), 0, why_not=_no_scan(run.path))
        return examine_scan(scan, effects)
    m = Measurements(run)
    findings: list[Finding] = []
    ruled_out: list[RuledOut] = []
    undecided: list[Undecided] = []
    for rule in RULES if m.n else RULES[-1:]:
        answer = _answer(rule, m)
        if isinstance(answer, list):
            findings += [for_its_phase(each, m.phases, m.config.precision_schedule) for each in answer]
        elif isinstance(answer, RuledOut):
            ruled_out.append(answer)
        elif isinstance(answer, Undecided):
            undecided.append(answer)
    kept = without_consequences(findings)
    named = {outcome.rule for outcome in findings}
    return Diagnosis(
        tuple(sorted(kept, key=lambda result: result.order)),
        tuple(each for each in ruled_out if each.rule not in named),
        tuple(undecided),
        m.n,
        why_not=_BEGINS if not m.n and run.status == "running" else "",
    )


def _no_scan(path: Path) -> str:
    return Sentence("{path} is the scan of a model without its figures; scan the model again.", path=path)


def _answer(rule: Rule, m: Measurements) -> Answer:
    """The answer of a rule; where it depends on a precision that changed, the answers for all phases as one."""
    if not rule.by_phase or len(m.parts) == 1:
        return rule.judge(m.parts[0] if rule.by_phase else m)
    answers = [(part.phase_text, rule.judge(part)) for part in m.parts]
    findings = [
        replace(each, title=Sentence("{title} ({phase})", title=each.title, phase=text))
        for text, answer in answers if isinstance(answer, list) for each in answer
    ]  # fmt: skip
    if findings:
        return findings
    reasons = [
        Sentence("{reason} ({phase})", reason=answer.why, phase=text)
        for text, answer in answers
        if isinstance(answer, RuledOut)
    ]
    if reasons:
        return RuledOut(rule.name, together(*reasons, between="; "))
    return next((answer for _, answer in answers if isinstance(answer, Undecided)), None)


def diagnose(run: Run | str | os.PathLike[str]) -> list[Finding]:
    """The findings on a run or on a run file, the weightiest first; an empty list, or infos only, is a healthy run.

    Raises RunFileError for a path at which no run lies, and TypeError for what is neither a run nor a path.
    """
    if isinstance(run, str | os.PathLike):
        with open_run_or_events(Path(run)) as opened:
            return diagnose(opened)
    if not hasattr(run, "series"):
        kind = type(run).__name__
        raise TypeError(f"diagnose takes a run, as open_run returns it, or the path of a run file, but got: {kind}")
    return list(examine(run).findings)
