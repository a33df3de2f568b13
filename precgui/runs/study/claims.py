"""Claims of guides and papers beside what a study measured here: holds, does not hold, not decided, not tested."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from precgui.runs.study.guide_claims import GuideClaim, Quantity, guide_claims
from precgui.runs.study.result import Group, Study
from precgui.runs.study.run_figures import RunFigures
from precgui.runs.verdict.paired import paired_difference
from precgui.runs.verdict.quantiles import share_interval
from precgui.sentences import L_, Sentence

ClaimVerdict = Literal["holds here", "does not hold here", "not decided here", "not tested here"]
CLAIM_VERDICTS = (
    L_("holds here"), L_("does not hold here"), L_("not decided here"), L_("not tested here"),
)  # fmt: skip
FEWEST = 3  # seeds
_TOO_FEW = Sentence("{seeds} seeds at least are needed", seeds=FEWEST)
_FIGURES = {"memory_saved": "memory_bytes", "energy_saved": "joules_per_sample"}  # of the others: the time of a step


@dataclass(frozen=True)
class ClaimResult:
    """A claim with what was measured here; `value` and `ci` are in the unit of the claim, None where not tested."""

    id: str
    sentence: str
    source: str
    group: str
    verdict: ClaimVerdict
    value: float | None
    ci: tuple[float, float] | None
    measured: str
    why: str
    url: str = ""


def judge_claims(study: Study, runs: Sequence[RunFigures]) -> list[ClaimResult]:
    """Every claim, tested ones first: on the first group of its precision where there is one."""
    results = [_judged(claim, study, runs) for claim in guide_claims()]
    return sorted(results, key=lambda result: result.verdict == "not tested here")


def untested_claims(why: str) -> list[ClaimResult]:
    """Every claim as not tested here, for the same reason."""
    return [_untested(claim, why) for claim in guide_claims()]


def _judged(claim: GuideClaim, study: Study, runs: Sequence[RunFigures]) -> ClaimResult:
    groups = [g for g in study.groups if g.precision in claim.precisions and g.baseline != g.group]
    if not groups:
        return _untested(claim, Sentence("no runs in {precisions}", precisions=" or ".join(claim.precisions)))
    results = [_on_group(claim, group, study, [run for run in runs if run.group == group.group]) for group in groups]
    return next((result for result in results if result.verdict != "not tested here"), results[0])


def _on_group(claim: GuideClaim, group: Group, study: Study, runs: Sequence[RunFigures]) -> ClaimResult:
    base = next((g for g in study.groups if g.group == group.baseline), None)
    if base is None or base.precision != "fp32":
        return _untested(claim, L_("the claim is about FP32 as baseline, and the baseline is another"), group.group)
    if why := _other_device(claim, runs):
        return _untested(claim, why, group.group)
    value, ci, why = _measured(claim.quantity, group, study, runs)
    if value is None or ci is None:
        return _untested(claim, why, group.group)
    low, high = -math.inf if claim.low is None else claim.low, math.inf if claim.high is None else claim.high
    verdict: ClaimVerdict = "not decided here"
    if low <= ci[0] and ci[1] <= high:
        verdict = "holds here"
    elif ci[1] < low or ci[0] > high:
        verdict = "does not hold here"
    return ClaimResult(
        claim.id,
        claim.sentence,
        claim.cited,
        group.group,
        verdict,
        value,
        ci,
        _text(claim.quantity, value, ci),
        "",
        claim.url,
    )


def _untested(claim: GuideClaim, why: str, group: str = "") -> ClaimResult:
    return ClaimResult(claim.id, claim.sentence, claim.cited, group, "not tested here", None, None, "", why, claim.url)


def _other_device(claim: GuideClaim, runs: Sequence[RunFigures]) -> str:
    requested, name = claim.conditions.get("device"), claim.conditions.get("device_name", "")
    devices = {run.device for run in runs}
    kinds = {"cuda" if run.device_kind.startswith("cuda") else run.device_kind for run in runs}
    if requested and kinds != {requested}:
        devices_text = ", ".join(sorted(devices))
        if requested == "cuda":
            return Sentence("the claim is about a GPU, this was {devices}", devices=devices_text)
        return Sentence("the claim is about {device}, this was {devices}", device=requested, devices=devices_text)
    if name and not all(name in device for device in devices):
        text = ", ".join(sorted(devices))
        return Sentence("the claim is about {device}, this was {devices}", device=name, devices=text)
    return ""


Measured = tuple[float | None, tuple[float, float] | None, str]


def _measured(quantity: Quantity, group: Group, study: Study, runs: Sequence[RunFigures]) -> Measured:
    if quantity == "failed_share":
        ended = group.n + group.failed
        if ended < FEWEST:
            return None, None, _TOO_FEW
        low, high = share_interval(group.failed, ended)
        return group.failed / ended, (low, high), ""
    if quantity == "skipped_share":
        return _skipped(runs)
    if quantity == "points_lost":
        return _points(group, study)
    return _saved(quantity, group)


def _saved(quantity: Quantity, group: Group) -> Measured:
    """From the ratio to the baseline: the speed-up is one over it, a saving one less it."""
    busy = group.verdicts.get("speedup")  # by the clock that the study compares
    if quantity in ("speedup", "time_saved") and busy is not None:
        value, ci = busy.value, busy.ci
        if quantity == "time_saved" and value is not None and ci is not None:
            value, ci = 1 - 1 / value, (1 - 1 / ci[0], 1 - 1 / ci[1])
        return value, ci, busy.why or L_("one pair")
    figure = group.metrics[_FIGURES.get(quantity, "step_s")]
    if figure.ratio is None or figure.ratio_ci95 is None:
        return None, None, figure.withheld or _TOO_FEW
    low, high = figure.ratio_ci95
    if quantity == "speedup":
        return 1 / figure.ratio, (1 / high, 1 / low), ""
    return 1 - figure.ratio, (1 - high, 1 - low), ""


def _points(group: Group, study: Study) -> Measured:
    if study.metric.get("unit") != "%":
        metric = str(study.metric.get("title"))
        return None, None, Sentence("the claim is about accuracy, and the metric here is {metric}", metric=metric)
    figure = group.metrics["metric"]
    if figure.difference is None or figure.difference_ci95 is None:
        return None, None, figure.withheld or _TOO_FEW
    way = -1 if study.metric.get("higher_is_better", True) else 1
    low, high = sorted(way * bound for bound in figure.difference_ci95)
    return way * figure.difference, (low, high), ""


def _skipped(runs: Sequence[RunFigures]) -> Measured:
    shares = [
        run.skipped_steps / run.work.steps
        for run in runs
        if run.kind == "run" and run.skipped_steps is not None and run.work.steps
    ]
    if len(shares) < FEWEST:
        return None, None, _TOO_FEW
    spread = paired_difference(shares)
    return spread.mean, spread.interval(0.95), ""


def _text(quantity: Quantity, value: float, ci: tuple[float, float]) -> str:
    if quantity == "speedup":
        return f"{value:.2f}x [{ci[0]:.2f}, {ci[1]:.2f}]"
    shown = f"{100 * value:z.2f}", f"[{100 * ci[0]:z.2f}, {100 * ci[1]:z.2f}]"
    if quantity == "points_lost":
        return Sentence("{number} points {interval}", number=shown[0], interval=shown[1])
    return " % ".join(shown)
