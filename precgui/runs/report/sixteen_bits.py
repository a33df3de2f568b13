"""FP16 or BF16 for one training: range of its gradients, loss scale, stability, speed and memory, and a verdict.

The statistics are those of the study; the two arms are judged beside FP32, then BF16 is compared with FP16 in pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isnan
from pathlib import Path
from typing import Final, Literal

from precgui.events import Metric
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import open_run
from precgui.runs.report.group_table import Row, group_rows
from precgui.runs.study.groups import make_study
from precgui.runs.study.result import Group, Study
from precgui.runs.study.run_figures import RunFigures
from precgui.runs.tensors.confidence import scale_text, share_text, spread_text
from precgui.runs.tensors.gradient_range import GradientRange, gradient_range
from precgui.runs.tensors.what_if_table import WhatIfRow
from precgui.sentences import L_, Sentence, filled, together

FP32: Final = "fp32"
FP16: Final = "fp16-amp"
BF16: Final = "bf16-amp"
SEEDS = 5  # the first number with verdicts
TENSOR_COLUMNS = (L_("gradient of"), L_("largest"), L_("FP16, no loss scale"), L_("FP16, with it"), "BF16")
NOT_BOTH = L_("FP16 and BF16 are not both there: a study of fp32, fp16-amp and bf16-amp has ended runs of each")
_NOT_NEEDED = L_("not needed")
_NOTHING = ("not measured", "withheld", "not measurable")
Choice = Literal["fp16-amp", "bf16-amp", "either", "neither", "not decided"]
State = Literal["keeps", "fails", "loses", "open"]
_SENTENCES: dict[Choice, str] = {
    "fp16-amp": L_("Of the two, use fp16-amp here: {why}."),
    "bf16-amp": L_("Of the two, use bf16-amp here: {why}."),
    "either": L_("Either of the two does here: {why}. bf16-amp needs no loss scale."),
    "neither": L_("Neither keeps the result of FP32 here: {why}."),
    "not decided": L_("Not decided: {why}."),
}
_STATES: dict[State, str] = {
    "keeps": L_("{arm} keeps the result of FP32"),
    "fails": L_("{arm}: {failures}"),
    "loses": L_("{arm} loses more of the metric than the target allows"),
    "open": L_("whether {arm} keeps the result of FP32 was not shown"),
}


@dataclass(frozen=True)
class SixteenBits:
    """The verdict with its caveats. `rows` have a cell for FP16 and one for BF16; `beside` compares BF16 with FP16.

    `tensors` are rows of `TENSOR_COLUMNS`, those that lose most. `gradients` is None where `no_gradients` says why.
    `needs_scaling` is None where that is not known. `more_seeds` would probably decide; 0 where all is decided.
    """

    choice: Choice
    sentence: str
    caveats: tuple[str, ...]
    rows: tuple[Row, ...]
    beside: tuple[tuple[str, str], ...]
    tensors: tuple[tuple[str, ...], ...]
    gradients: GradientRange | None
    no_gradients: str
    needs_scaling: bool | None
    more_seeds: int


def sixteen_bits(study: Study, runs: Sequence[RunFigures]) -> SixteenBits | None:
    """The page on a study; None unless it has an arm in FP16 and one in BF16, both with the same baseline."""
    fp16, bf16 = (next((g for g in study.groups if g.precision == name), None) for name in (FP16, BF16))
    if fp16 is None or bf16 is None or not (fp16.n + fp16.failed and bf16.n + bf16.failed):
        return None
    base = next((g for g in study.groups if g.group == fp16.baseline == bf16.baseline), None)
    arms = [run for run in runs if run.group in (fp16.group, bf16.group)]
    direct = next(g for g in make_study(arms, baseline=fp16.group).groups if g.group == bf16.group)
    gradients, why = _gradients([run for run in runs if run.group in (fp16.baseline, bf16.group)])
    choice, reason = _choice(fp16, bf16, base, direct)
    metric = Metric(**study.metric)
    return SixteenBits(
        choice=choice,
        sentence=filled(_SENTENCES[choice], why=reason),
        caveats=tuple(_caveats(choice, fp16, bf16, runs, gradients)),
        rows=(*_own_rows(fp16, bf16, arms, gradients), *_group_rows([fp16, bf16], metric)),
        beside=tuple((row.title, row.cells[0]) for row in group_rows([direct], metric, fp16.group) if row.beside),
        tensors=_tensor_rows(gradients),
        gradients=gradients,
        no_gradients=why,
        needs_scaling=gradients.needs_scaling if gradients is not None else None,
        more_seeds=max(_seeds_needed(group) for group in (fp16, bf16)),
    )


# The verdict ---------------------------------------------------------------------------------------------------


def _choice(fp16: Group, bf16: Group, base: Group | None, direct: Group) -> tuple[Choice, str]:
    """The choice with its reason."""
    if base is None or base.precision != FP32 or base.group in (fp16.group, bf16.group):
        return "not decided", L_("FP32 is not the baseline of both, so that nothing says what is lost")
    if base.failed or not base.n:
        failures = Sentence("the baseline itself has {failures}", failures=base.success)
        return "not decided", failures if base.failed else L_("no run of it has ended")
    states = {group.group: _state(group) for group in (fp16, bf16)}
    keeping = [group for group in (fp16, bf16) if states[group.group] == "keeps"]
    reasons = together(*(_reason(group, states[group.group]) for group in (fp16, bf16)), between="; ")
    if len(keeping) == 2:
        return _of_two(fp16, bf16, direct)
    if len(keeping) == 1:
        return (FP16 if keeping[0] is fp16 else BF16), reasons
    if "open" in states.values():
        return "not decided", reasons
    return "neither", reasons


def _state(group: Group) -> State:
    failures, lost = group.verdicts.get("failures"), group.verdicts.get("accuracy_lost")
    if (failures.verdict == "missed") if failures is not None else group.failed:
        return "fails"
    if lost is not None and lost.verdict == "missed":
        return "loses"
    sure = failures is None or failures.verdict == "met"
    return "keeps" if sure and lost is not None and lost.verdict == "met" else "open"


def _reason(group: Group, state: State) -> str:
    text = filled(_STATES[state], arm=group.group, failures=group.success)
    verdict = group.verdicts.get("accuracy_lost")
    if state != "open" or verdict is None:
        return text
    return Sentence("{value} ({remark})", value=text, remark=verdict.text)


def _group_rows(groups: Sequence[Group], metric: Metric) -> list[Row]:
    """The figures of both beside the baseline, as the report has them, without those that neither has."""
    rows = group_rows(groups, metric, groups[0].baseline)
    return [(row.title, row.cells) for row in rows if not all(cell.startswith(_NOTHING) for cell in row.cells)]


def _of_two(fp16: Group, bf16: Group, direct: Group) -> tuple[Choice, str]:
    """Both keep the result: the faster one, else the one that is not emulated."""
    if bool(fp16.emulated) != bool(bf16.emulated):
        native: Choice = BF16 if fp16.emulated else FP16
        emulated = FP16 if fp16.emulated else BF16
        return native, Sentence(
            "both keep the result of FP32, and {precision} is emulated on this machine", precision=emulated
        )
    if fp16.emulated:
        return "either", L_(
            "both keep the result of FP32, and both are emulated on this machine, which tells nothing about their speed"
        )
    speed = direct.verdicts.get("speedup")
    if speed is None or speed.ci is None or speed.value is None or speed.ci[0] <= 1 <= speed.ci[1]:
        return "either", L_("both keep the result of FP32, and no difference of their speed was shown")
    faster: Choice = BF16 if speed.value > 1 else FP16
    return faster, Sentence(
        "both keep the result of FP32, and it was {ratio:.3g} times as fast as {precision}",
        ratio=max(speed.value, 1 / speed.value),
        precision=FP16 if faster == BF16 else BF16,
    )


def _seeds_needed(group: Group) -> int:
    verdict = group.verdicts.get("accuracy_lost")
    return (verdict.seeds_needed or 0) if verdict is not None else 0


def _caveats(
    choice: Choice, fp16: Group, bf16: Group, runs: Sequence[RunFigures], gradients: GradientRange | None
) -> list[str]:
    said: list[str] = []
    for group in (fp16, bf16):
        if group.emulated:
            said.append(
                Sentence(
                    "The speed, memory and energy of {group} are not measurable here: {why}",
                    group=group.group,
                    why=group.emulated,
                )
            )
        elif slow := _slow(group, runs):
            said.append(Sentence("{group} is slow here: {why}", group=group.group, why=slow))
        elif choice in (group.precision, "either") and not any(
            _is_met(group, target) for target in ("speedup", "memory_saved")
        ):
            said.append(
                Sentence("{group} met neither the target of speed nor that of memory beside FP32.", group=group.group)
            )
    steps = max((run.work.steps for run in runs if run.kind == "run"), default=0)
    said.append(
        Sentence("The runs had {steps} steps: what comes later, such as smaller gradients, was not seen.", steps=steps)
    )
    if needed := max(_seeds_needed(group) for group in (fp16, bf16)):
        said.append(Sentence("About {seeds} more seeds would probably decide on the metric.", seeds=needed))
    if gradients is not None:
        said += [Sentence("Gradients: {note}", note=note) for note in gradients.notes]
        said.append(
            L_("Gradients are those of the parameters; those between layers are scaled by the same loss scale.")
        )
        if gradients.does_not_fit:
            said.append(L_("The gradients span more than FP16 holds: some become zero at every loss scale."))
    return said


def _is_met(group: Group, target: str) -> bool:
    verdict = group.verdicts.get(target)
    return verdict is not None and verdict.verdict == "met"


# The gradients -------------------------------------------------------------------------------------------------


def _gradients(runs: Sequence[RunFigures]) -> tuple[GradientRange | None, str]:
    """Of the first run in FP32 that has them, else of one in BF16; FP16 would have lost some already."""
    wanted = [run for name in (FP32, BF16) for run in runs if run.precision == name and run.kind == "run"]
    for run in wanted:
        if run.path is not None and (result := _of_file(run.path, run.run_id)) is not None:
            return result, ""
    return None, L_("no run in FP32 or BF16 recorded its gradients")


@lru_cache(maxsize=8)
def _of_file(path: Path, run_id: str) -> GradientRange | None:
    """A run that has ended does not change: `run_id` stands for its content."""
    try:
        with open_run(path) as run:
            return gradient_range(run)
    except RunFileError:
        return None


def _own_rows(fp16: Group, bf16: Group, arms: Sequence[RunFigures], gradients: GradientRange | None) -> list[Row]:
    rows: list[Row] = [(L_("computed here"), tuple(_computed(group, arms) for group in (fp16, bf16)))]
    if gradients is not None:
        own, scaled, other = gradients.fp16, gradients.fp16_scaled, gradients.bf16
        scale = scale_text(2.0**gradients.scale_log2)
        rows += [
            (L_("gradients that become zero, no loss scale"), (_zeroed(own), _zeroed(other))),
            (
                Sentence("gradients that become zero at a loss scale of {scale}", scale=scale),
                (_zeroed(scaled), _NOT_NEEDED),
            ),
            (
                L_("gradients that keep fewer digits, no loss scale"),
                tuple(share_text(row.subnormal) for row in (own, other)),
            ),
            (
                L_("gradients that do not fit, no loss scale"),
                tuple(share_text(row.overflow) for row in (own, other)),
            ),
            (L_("loss scale"), (_scaling_word(gradients), _NOT_NEEDED)),
        ]
    rows.append((L_("steps skipped for Inf or NaN"), tuple(_skipped(group, arms) for group in (fp16, bf16))))
    return rows


def _computed(group: Group, arms: Sequence[RunFigures]) -> str:
    if group.emulated:
        return L_("emulated")
    return L_("slowly") if _slow(group, arms) else L_("native")


def _slow(group: Group, arms: Sequence[RunFigures]) -> str:
    return next((run.slow for run in arms if run.group == group.group and run.slow), "")


def _zeroed(row: WhatIfRow) -> str:
    return spread_text(row.underflow, row.underflow_spread)


def _scaling_word(gradients: GradientRange) -> str:
    if gradients.needs_scaling:
        return L_("needed, and not enough") if gradients.does_not_fit else L_("needed")
    return L_("of no use") if gradients.does_not_fit else L_("not needed for these steps")


def _skipped(group: Group, arms: Sequence[RunFigures]) -> str:
    known = [run for run in arms if run.group == group.group and run.kind == "run" and run.skipped_steps is not None]
    if not known:
        return L_("not measured")
    skipped, steps = sum(run.skipped_steps or 0 for run in known), sum(run.work.steps for run in known)
    return Sentence("{n} of {runs}", n=skipped, runs=steps)


def _tensor_rows(gradients: GradientRange | None) -> tuple[tuple[str, ...], ...]:
    if gradients is None:
        return ()
    return tuple(
        (each.name, "–" if isnan(each.largest) else f"{each.largest:.2g}",
         *(share_text(share) for share in (each.fp16, each.fp16_scaled, each.bf16)))
        for each in gradients.tensors
    )  # fmt: skip
