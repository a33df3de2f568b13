"""The targets of a study: what a person wants of a precision, with defaults, from a TOML file that can be edited."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from precgui.config.toml_file import read_toml, toml_fault
from precgui.errors import SentenceError
from precgui.runs.verdict.judge import Criterion
from precgui.sentences import L_, Sentence, recased

SENSOR_ERROR = 0.05  # of an energy reading; it is the same in every run and does not shrink with more of them

Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class TargetError(SentenceError, ValueError):
    """The file of targets cannot be used; the message is one sentence with the cure."""


class Targets(BaseModel):
    """One bound for each target; None where a target is not asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    speedup: Positive | None = Field(2.0, description=L_("Faster than the baseline by this factor at least."))
    memory_saved: Share | None = Field(0.30, description=L_("Share of the baseline's peak that is saved, at least."))
    accuracy_lost: Positive | None = Field(
        0.005, description=L_("Less than this is lost of a metric that is a share: 0.005 are 0.5 points.")
    )
    metric_lost: Share | None = Field(
        0.01, description=L_("Less than this share of the baseline's value is lost, of a metric that is no share.")
    )
    tensor_use: Share | None = Field(0.80, description=L_("Share of the time in which tensor cores work, at least."))
    energy_saved: Share | None = Field(0.20, description=L_("Share of the baseline's energy that is saved, at least."))
    curve_distance: Positive | None = Field(
        0.10, description=L_("Mean distance of the training loss from the baseline's, as a share of it, at most.")
    )
    failures: int | None = Field(0, ge=0, description=L_("Runs that fail or whose loss becomes NaN or Inf, at most."))


DEFAULT_TARGETS = Targets()


def load_targets(path: Path) -> Targets:
    """The targets of a TOML file; `false` in place of a number switches a target off. Raises TargetError."""
    try:
        return make_targets(read_toml(path))
    except TargetError as error:
        raise TargetError(Sentence("{file}: {error}", file=path, error=error)) from None
    except (OSError, ValueError) as error:
        raise TargetError(toml_fault(path, error, L_("a TOML file"))) from None


def make_targets(tree: Mapping[str, Any]) -> Targets:
    """Targets from plain values; False switches one off, and one that is not named keeps its default.

    Raises TargetError.
    """
    try:
        return Targets.model_validate({key: None if value is False else value for key, value in tree.items()})
    except ValidationError as error:
        raise TargetError(_sentence(error)) from None


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    known = ", ".join(Targets.model_fields)
    if first["type"] == "extra_forbidden":
        return Sentence("{name} is not a target; the targets are {known}", name=name, known=known)
    setting = f"{name} = {first['input']!r}"
    return Sentence("{setting}: {fault}", setting=setting, fault=recased(first["msg"], "lower"))


def targets_toml(targets: Targets = DEFAULT_TARGETS) -> str:
    """The targets as a TOML file with a comment for each, which `load_targets` reads back."""
    lines = ["# Targets of a study. `false` in place of a number switches one off."]
    for name, field in Targets.model_fields.items():
        value = getattr(targets, name)
        lines += [f"\n# {field.description}", tomli_w.dumps({name: False if value is None else value}).strip()]
    return "\n".join(lines) + "\n"


def goals(targets: Targets, *, metric_is_share: bool, baseline_value: float | None) -> list[Criterion]:
    """The targets as goals on paired quantities; `failures` is none of them, see `runs.verdict.success`.

    Losses are positive when the arm is worse than the baseline. `baseline_value` is the mean of the baseline's metric,
    by which a metric without a unit is measured.
    """
    results = [
        _ratio("speedup", 1, targets.speedup, L_("one seed: not a measurement of speed")),
        _saving("memory_saved", targets.memory_saved, L_("one seed: not a measurement of memory"), repeatable=True),
        _loss(targets, metric_is_share, baseline_value),
        _plain("tensor_use", 1, targets.tensor_use, L_("one seed: not a measurement of tensor-core use")),
        _saving(
            "energy_saved",
            targets.energy_saved,
            L_("one seed: not a measurement of energy"),
            systematic=math.log1p(SENSOR_ERROR),
        ),
        _plain(
            "curve_distance", -1, targets.curve_distance, L_("one seed: not a measurement of the distance of curves")
        ),
    ]
    return [goal for goal in results if goal is not None]


def _loss(targets: Targets, is_share: bool, baseline_value: float | None) -> Criterion | None:
    if is_share:
        return _plain("accuracy_lost", -1, targets.accuracy_lost, L_("one seed: not a measurement of accuracy"))
    if targets.metric_lost is None or not baseline_value:
        return None
    bound = targets.metric_lost * abs(baseline_value)
    return _plain("accuracy_lost", -1, bound, L_("one seed: not a measurement of the metric"))


def _ratio(name: str, side: int, bound: float | None, one_seed: str) -> Criterion | None:
    if bound is None:
        return None
    return Criterion(name, 1 if side > 0 else -1, math.log(bound), one_seed, log=True)


def _saving(
    name: str, share: float | None, one_seed: str, *, repeatable: bool = False, systematic: float = 0.0
) -> Criterion | None:
    """A saving of a share s is a ratio to the baseline below 1 - s."""
    if share is None:
        return None
    bound = math.log1p(-share)
    return Criterion(name, -1, bound, one_seed, log=True, repeatable=repeatable, systematic=systematic)


def _plain(name: str, side: int, bound: float | None, one_seed: str) -> Criterion | None:
    return None if bound is None else Criterion(name, 1 if side > 0 else -1, bound, one_seed)
