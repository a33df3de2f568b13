"""The floor of a study: how far runs are from themselves when their start weights move by one ulp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from precgui.runs.figures import FIGURES, metric_figure
from precgui.runs.metric import ACCURACY
from precgui.runs.study.figures import RunFigures
from precgui.runs.study.pairs import PairedArm, curve_distance
from precgui.sentences import L_, counted, filled, together

_COMPARED = [each for each in (metric_figure(ACCURACY), *FIGURES.values()) if each.compared_by == "difference"]
_IN_WORDS = {
    "metric": L_("{value} in the metric"), "val_loss": L_("{value} in the validation loss"),
    "train_loss": L_("{value} in the training loss"), "curve_distance": L_("{value} in the distance of the curves"),
}  # fmt: skip


@dataclass(frozen=True)
class TwinFloor:
    """How far runs are from themselves when their start weights move by one ulp: `largest` over `n` twins."""

    n: int
    largest: dict[str, float]
    text: str


def twins_of(runs: Sequence[RunFigures]) -> tuple[RunFigures, ...]:
    """The twins as if they were runs of an arm of their own."""
    return tuple(replace(run, kind="run") for run in runs if run.kind == "twin")


def twin_floor(arms: Sequence[PairedArm]) -> TwinFloor:
    results: dict[str, list[float]] = {}
    count = 0
    for arm in arms:
        base = {run.seed: run for run in arm.baseline if run.kind == "run" and run.came_through}
        for twin in arm.runs:
            if twin.seed in base and twin.came_through:
                count += 1
                for name, distance in _distances(twin, base[twin.seed]).items():
                    results.setdefault(name, []).append(distance)
    largest = {name: max(values) for name, values in results.items()}
    return TwinFloor(count, largest, _twin_text(count, largest))


def _distances(twin: RunFigures, base: RunFigures) -> dict[str, float]:
    pairs = {figure.key: (figure.value(twin), figure.value(base)) for figure in _COMPARED}
    results = {name: abs(a - b) for name, (a, b) in pairs.items() if a is not None and b is not None}
    curve = curve_distance(twin, base)
    return results | ({"curve_distance": curve} if curve is not None else {})


def _twin_text(count: int, largest: Mapping[str, float]) -> str:
    if not count:
        return L_("no rounding twin was run: it is not known which differences are rounding alone")
    distances = (filled(_IN_WORDS[name], value=f"{value:.4g}") for name, value in largest.items())
    return counted(
        "runs whose start weights moved by one ulp differ by up to {distances} ({count} twin): less is rounding alone",
        "runs whose start weights moved by one ulp differ by up to {distances} ({count} twins): less is rounding alone",
        count,
        distances=together(*distances, between=", "),
    )
