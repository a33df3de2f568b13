"""Results of `precgui twin`: the judged branches of a run, in a side file that is readable without torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from precgui.runs.side_files import SideFilePart, SideFiles, Text
from precgui.runs.verdict.branches import ALPHA, LEVEL, MARGIN, Drift, DriftVerdict, judge_drift
from precgui.sentences import L_, Sentence, together

BAND_FACTOR = 2.0  # on the largest distance of a twin: its band
_Text = Annotated[str, Field(max_length=1000)]
_Sentence = Annotated[Text, Field(max_length=1000)]
_Values = Annotated[list[float | None], Field(max_length=10_000)]


class BranchedPoint(SideFilePart):
    """One branch point: held-out losses before, and after the branch in FP32, in the precision and of the twins."""

    step: Annotated[int, Field(ge=0)]
    before: float
    reference: float
    low: float | None
    twins: Annotated[list[float | None], Field(max_length=100)]


class DistanceBand(SideFilePart):
    """Distances from FP32 by step of a branch: the middle one of the precision, and the largest one of the twins."""

    name: _Text
    low: _Values
    twin: _Values

    @property
    def leaves_at(self) -> int | None:
        """The first step of a branch, from 1, at which the precision is outside the band of the twins."""
        for place, (low, twin) in enumerate(zip(self.low, self.twin, strict=False)):
            if twin is not None and (low is None or low > BAND_FACTOR * twin):
                return place + 1
        return None


class TwinResult(SideFilePart):
    """Branches of one run in FP32 and one other precision."""

    format_version: Literal[1] = 1
    precision: _Text
    reference: _Text = "fp32"
    steps: Annotated[int, Field(ge=1)]
    samples: int = 0
    branches: Annotated[list[BranchedPoint], Field(min_length=2, max_length=10_000)]
    drift: Drift
    twin: Drift
    loss: DistanceBand
    tensors: Annotated[list[DistanceBand], Field(max_length=20_000)]
    skipped: int = 0
    verdict: DriftVerdict
    message: _Sentence
    notes: Annotated[list[_Sentence], Field(max_length=100)] = Field(default_factory=list)

    @property
    def verdict_text(self) -> str:
        """The message, made anew from the numbers, to be shown in the reader's language."""
        return _message(self.precision, self.steps, self.drift, self.twin)

    @property
    def first_step_outside(self) -> int | None:
        """The first step of a branch at which the loss or any tensor is outside the band of the twins."""
        return min((at for band in (self.loss, *self.tensors) if (at := band.leaves_at) is not None), default=None)

    def tensors_outside(self) -> list[DistanceBand]:
        """Tensors that are outside the band at the first step at which any is, the farthest one first."""
        left = [(band.leaves_at, band) for band in self.tensors]
        first = min((at for at, _ in left if at is not None), default=None)
        return sorted((band for at, band in left if at == first and at is not None), key=_excess, reverse=True)

    def document(self) -> dict[str, Any]:
        """The keys of `precgui twin --json`."""
        outside = self.tensors_outside()
        return self.model_dump(exclude={"format_version"}) | {
            "first_step_outside": self.first_step_outside,
            "first_tensor_outside": outside[0].name if outside else None,
            "tensors_outside": len(outside),
        }


def _excess(band: DistanceBand) -> float:
    """How many times the band of the twins the precision is away, at its first step outside; Inf where not finite."""
    place = (band.leaves_at or 1) - 1
    low, twin = band.low[place], band.twin[place]
    return math.inf if low is None or not twin else low / twin


def twin_result(
    precision: str, steps: int, points: Sequence[Mapping[str, Any]], loss: DistanceBand,
    tensors: Sequence[DistanceBand], *, samples: int, skipped: int, notes: Sequence[str],
) -> TwinResult:  # fmt: skip
    """Judge branches; `points` have the keys of BranchedPoint. Raises ValueError for fewer than two."""
    branches = [BranchedPoint.model_validate(point) for point in points]
    progress = statistics.fmean(abs(point.reference - point.before) for point in branches)
    drift = judge_drift([_difference(point.low, point) for point in branches], progress)
    twin = judge_drift([_difference(value, point) for point in branches for value in point.twins], progress)
    return TwinResult(
        precision=precision, steps=steps, samples=samples, branches=branches, drift=drift, twin=twin,
        loss=loss, tensors=list(tensors), skipped=skipped,
        verdict=_verdict(drift, twin), message=str(_message(precision, steps, drift, twin)), notes=list(notes),
    )  # fmt: skip


def distance_band(name: str, low: Sequence[Sequence[float]], twin: Sequence[Sequence[float]]) -> DistanceBand:
    """Distances [branches][steps] of the precision and of the twins, as a band by step."""

    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return DistanceBand(
        name=name,
        low=[finite(_median(column)) for column in zip(*low, strict=True)],
        twin=[finite(max(column)) for column in zip(*twin, strict=True)],
    )


def _median(values: Sequence[float]) -> float:
    """The middle value; not finite values count as infinitely far."""
    return statistics.median([value if math.isfinite(value) else math.inf for value in values])


def _difference(value: float | None, point: BranchedPoint) -> float:
    return math.nan if value is None else value - point.reference


def _verdict(drift: Drift, twin: Drift) -> DriftVerdict:
    """The verdict on the precision; undecided where even the rounding twin seems to be biased."""
    return "undecided" if twin.verdict in ("bias", "broken") and drift.verdict != "broken" else drift.verdict


def _message(precision: str, steps: int, drift: Drift, twin: Drift) -> str:
    """The verdict as sentences."""
    if drift.verdict == "broken":
        return Sentence(
            "{precision} breaks: in {broken} of {count} branches the held-out loss is not finite.",
            precision=precision,
            broken=drift.broken,
            count=drift.n,
        )
    if twin.verdict in ("bias", "broken"):
        return L_(
            "Nothing can be told: weights that only moved by one ulp drift as well, so the branches of this run are no "
            "fair sample."
        )
    sentences: list[str] = [_verdict_sentence(precision, steps, drift)]
    if drift.share and drift.verdict in ("bias", "negligible"):
        share = abs(drift.share)
        sentences.append(Sentence("That is {times:.2g} times the change that FP32 makes in a branch.", times=share))
    if drift.verdict == "bias":
        sentences.append(
            Sentence("Chance gives so large a drift in fewer than {share:.1%} of runs without bias.", share=ALPHA)
        )
    if drift.verdict == "undecided":
        sentences.append(_needed_text(drift))
    return together(*sentences)


def _verdict_sentence(precision: str, steps: int, drift: Drift) -> Sentence:
    size = _size(steps, drift)
    match drift.verdict:
        case "bias":
            return Sentence(
                "{precision} is biased: its held-out loss is on average {size}.", precision=precision, size=size
            )
        case "negligible":
            return Sentence(
                "{precision} drifts, but not so that it matters: its held-out loss is {size}.",
                precision=precision,
                size=size,
            )
        case "no bias":
            return Sentence(
                "No bias of {precision} is shown: its held-out loss is on average {size}; a bias of more than "
                "{margin:.0%} of the change in a branch is ruled out.",
                precision=precision,
                size=size,
                margin=MARGIN,
            )
    return Sentence(
        "It is undecided whether {precision} is biased: its held-out loss is on average {size}.",
        precision=precision,
        size=size,
    )


def _size(steps: int, drift: Drift) -> Sentence:
    mean, low, high = drift.mean or 0.0, drift.low or 0.0, drift.high or 0.0
    if mean > 0:
        return Sentence(
            "{size:.2g} higher than in FP32 after {steps} steps ({level:.0%} interval {low:+.2g} to {high:+.2g})",
            size=abs(mean),
            steps=steps,
            level=LEVEL,
            low=low,
            high=high,
        )
    return Sentence(
        "{size:.2g} lower than in FP32 after {steps} steps ({level:.0%} interval {low:+.2g} to {high:+.2g})",
        size=abs(mean),
        steps=steps,
        level=LEVEL,
        low=low,
        high=high,
    )


def _needed_text(drift: Drift) -> str:
    if drift.needed is None:
        return L_("A thousand branches would not rule out a bias that matters, either.")
    return Sentence("About {count} branches would rule out a bias that matters, if there is none.", count=drift.needed)


def p_text(p: float) -> str:
    """A p value with its sign: `= 0.012`, or `< 0.001`."""
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


TWINS = SideFiles("twin", TwinResult, 1 << 24, mark="precision")
