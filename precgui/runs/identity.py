"""The identity of a training: its task, data, metric, batch, steps and start weights; and what must not be compared.

Two runs whose figures are set against each other must have done the same work. Where they did not, the figure is
withheld and the reason stands in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from precgui.config.tree import RunConfig
from precgui.events import Metric
from precgui.runs.metric import metric_of
from precgui.runs.run import Run
from precgui.sentences import L_, Sentence, filled

_HEX_DIGITS = 8
_FIELDS: tuple[tuple[str, Callable[[RunConfig], object]], ...] = (
    (L_("another task: {own}, not {base}"), lambda config: config.task),
    (L_("another model: {own}, not {base}"), lambda config: config.model_name),
    (L_("another model size: {own}, not {base}"), lambda config: config.model.size),
    (
        L_("another sequence length: {own}, not {base}"),
        lambda config: config.data.sequence_length if config.task == "text" else 0,
    ),
    (
        L_("another image size: {own}, not {base}"),
        lambda config: config.data.pixels if config.task not in ("text", "digits") else 0,
    ),
)


@dataclass(frozen=True)
class TrainingIdentity:
    """The work of one run; empty or 0 stands for "not recorded", which is held against no run."""

    config: RunConfig
    data: Mapping[str, Any]
    metric: Metric
    samples_per_step: int
    steps: int
    weights_sha256: str


def identity_of(run: Run) -> TrainingIdentity:
    """The work of a run, live or saved."""
    samples = run.series("samples")[1]
    samples = samples[np.isfinite(samples)]
    data, weights = run.environment.get("data"), run.environment.get("initial_weights_sha256")
    return TrainingIdentity(
        config=run.config,
        data=data if isinstance(data, Mapping) else {},
        metric=metric_of(run.environment),
        samples_per_step=int(np.median(samples)) if len(samples) else 0,
        steps=len(run.series("loss")[1]),
        weights_sha256=weights if isinstance(weights, str) else "",
    )


def other_work(run: TrainingIdentity, baseline: TrainingIdentity) -> str:
    """The reason for which not even times and memory may be compared, as "another task: text, not digits"; or empty."""
    if why := why_not_comparable(run.config, baseline.config):
        return why
    if run.data and baseline.data and dict(run.data) != dict(baseline.data):
        keys = sorted({*run.data, *baseline.data})
        other_keys = ", ".join(key for key in keys if run.data.get(key) != baseline.data.get(key))
        return Sentence("other data: {keys}", keys=other_keys)
    one, other = run.samples_per_step, baseline.samples_per_step
    if one and other and one != other:
        return Sentence("another batch: {own} samples a step, not {base}", own=one, base=other)
    return ""


def other_result(run: TrainingIdentity, baseline: TrainingIdentity) -> str:
    """The reason for which what was learned may not be compared; empty when there is none."""
    if why := other_work(run, baseline):
        return why
    if (run.metric.name, run.metric.unit) != (baseline.metric.name, baseline.metric.unit):
        return Sentence("another metric: {own}, not {base}", own=run.metric.title, base=baseline.metric.title)
    if run.steps != baseline.steps:
        return Sentence("other steps: {own}, not {base}", own=run.steps, base=baseline.steps)
    one, other = run.weights_sha256, baseline.weights_sha256
    is_twin = run.config.train.rounding_twin or baseline.config.train.rounding_twin  # differ on purpose
    if not one or not other or one == other or is_twin:
        return ""
    return Sentence("other start weights: {own}, not {base}", own=one[:_HEX_DIGITS], base=other[:_HEX_DIGITS])


def why_not_comparable(own: RunConfig, base: RunConfig) -> str:
    """The first setting in which the work of two runs differs, as "another task: text, not digits"; empty for none."""
    for template, value in _FIELDS:
        if value(own) != value(base):
            return filled(template, own=value(own), base=value(base))
    return ""
