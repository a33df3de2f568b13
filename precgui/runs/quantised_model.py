"""Measurements of a run's integer model, as tables; a damaged file gives fewer figures, never an error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precgui.runs.run import Run
from precgui.sentences import L_

_MODELS = (
    ("FP32", "fp32"),
    (L_("BF16 autocast"), "bf16"),
    (L_("Rounded as in training"), "fake"),
    (L_("Integers"), "integer"),
)


@dataclass(frozen=True)
class MeasuredModel:
    """One form of the trained model; `latency_s` by samples in a batch. None is what was not measured."""

    title: str
    size_bytes: int | None
    loss: float | None
    metric: float | None
    latency_s: Mapping[int, float]


@dataclass(frozen=True)
class LayerError:
    """Relative errors in the L2 norm."""

    name: str
    bits: int
    weight_error: float
    output_error: float


@dataclass(frozen=True)
class IntegerModel:
    """The forms that were compared, the integers last, and the layers, the worst first.

    `arithmetic` is the sentence that says what multiplied the integers, empty in files of older versions; `file` is
    where the model was saved and still is, `kept` whether it was saved.
    """

    models: tuple[MeasuredModel, ...]
    layers: tuple[LayerError, ...]
    batches: tuple[int, ...]
    backend: str
    samples: int
    threads: int
    native_layers: int
    arithmetic: str
    kept: bool
    file: Path | None


def integer_model(run: Run) -> IntegerModel | None:
    """The figures of a run's integer model; None where there are none."""
    facts = run.environment.get("quantised")
    if not isinstance(facts, Mapping):
        return None
    measured = _table(facts.get("latency_s")).items()
    latencies = {int(size): _table(times) for size, times in measured if size.isdecimal() and len(size) < 9}
    models = tuple(_model(facts, title, name, latencies) for title, name in _MODELS)
    layers = sorted(_layers(_table(facts.get("layers"))), key=lambda layer: -layer.output_error)
    named = facts.get("file")
    return IntegerModel(
        models,
        tuple(layers),
        tuple(sorted(latencies)),
        str(facts.get("backend", "own")),
        _whole(facts.get("evaluated_samples")),
        _whole(facts.get("threads")),
        _whole(facts.get("native_layers")),
        str(facts.get("arithmetic", "")),
        isinstance(named, str),
        _model_path(named, run.path) if isinstance(named, str) else None,
    )


def _model(
    facts: Mapping[str, Any], title: str, name: str, latencies: Mapping[int, Mapping[str, Any]]
) -> MeasuredModel:
    evaluation = _table(_table(facts.get("evaluation")).get(name))
    size = _number(_table(facts.get("bytes")).get(name))
    times = {count: _number(each.get(name)) for count, each in latencies.items()}
    return MeasuredModel(
        title,
        None if size is None else int(size),
        _number(evaluation.get("loss")),
        _number(evaluation.get("metric")),
        {count: time_s for count, time_s in times.items() if time_s},
    )


def _layers(table: Mapping[str, Any]) -> list[LayerError]:
    results = []
    for name, errors in table.items():
        values = [_number(_table(errors).get(key)) for key in ("bits", "weight_error", "output_error")]
        if all(value is not None for value in values):
            bits, weight, output = (float(value or 0) for value in values)
            results.append(LayerError(name, int(bits), weight, output))
    return results


def _model_path(named: str, run: Path | None) -> Path | None:
    """Where the model is: where it was written, or beside a run file that was moved with it."""
    places = [Path(named), *([run.with_name(Path(named).name)] if run else [])]
    return next((place for place in places if place.is_file()), None)


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else None


def _whole(value: Any) -> int:
    return int(_number(value) or 0)
