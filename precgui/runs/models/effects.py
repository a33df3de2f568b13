"""The measured effect of formats on a model, as a document of built-in types, and what is read from one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from precgui.runs.verdict.paired import PairedDifference
from precgui.sentences import L_

LEVEL = 0.95
ROUNDED = {"weights": L_("Weights"), "inputs": L_("weights and inputs"), "k": L_("keys"), "v": L_("values")}
TRUTHS = {
    "kl": L_("Kullback-Leibler divergence of the outputs"),
    "output_error": L_("squared error of the outputs"),
    "loss": L_("rise of the loss"),
}
SCORES = {
    "output_fisher": L_("Fisher information of outputs"), "weight_fisher": L_("Fisher information of weights"),
    "first_order": L_("first order, magnitude"), "first_and_second": L_("first and second order"),
    "sqnr": L_("noise to signal of the weight"), "weight_error": L_("squared error of the weight"),
}  # fmt: skip


def rise_row(rise: float, error: float, units: int) -> dict[str, Any]:
    """A rise of the loss with its standard error of paired differences, its interval, and whether it may be none."""
    if units < 2 or not math.isfinite(error) or not math.isfinite(rise):
        return {"rise": _number(rise), "error": None, "interval": None, "within_noise": None}
    low, high = PairedDifference(units, rise, error * math.sqrt(units), error).interval(LEVEL)
    return {"rise": rise, "error": error, "interval": [low, high], "within_noise": low <= 0 <= high}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class WholeRow:
    """All layers in one format; `rise` is None where nothing was measured, with the reason in `why_not`."""

    format: str
    method: str
    rounded: str
    nbytes: int
    rise: float | None
    error: float | None
    within_noise: bool | None
    distance: float | None
    left_out: int
    why_not: str


@dataclass(frozen=True)
class LayerRow:
    """One layer alone in one format."""

    layer: str
    format: str
    rise: float | None
    error: float | None
    within_noise: bool | None
    distance: float | None
    scores: Mapping[str, float]


@dataclass(frozen=True)
class PlanSpeed:
    """Bytes of the layers of a plan, and in FP32; ratios: by inputs, seconds of products over those in FP32."""

    nbytes: int
    plain_bytes: int
    layers: tuple[str, ...]
    ratios: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class ModelEffects:
    """All measurements of a model. `document` is the whole of it as `precgui quantize --json` prints it.

    inputs: how many inputs of the calibration data reached each layer, where that is known.
    """

    document: Mapping[str, Any]
    whole: tuple[WholeRow, ...]
    layers: tuple[LayerRow, ...]
    loss: float
    samples: int
    truth: str
    agreement: Mapping[str, float] = field(default_factory=dict)
    ceiling: float | None = None
    inputs: Mapping[str, int] = field(default_factory=dict)
    speed: PlanSpeed | None = None

    def of_layer(self, name: str) -> list[LayerRow]:
        """The rows of a tensor: of a layer, or of its `weight`."""
        return [row for row in self.layers if name in (row.layer, f"{row.layer}.weight")]


def effects_of(document: Mapping[str, Any]) -> ModelEffects:
    """Read a document. Raises KeyError, TypeError or ValueError for one that is none."""
    whole = tuple(
        WholeRow(str(row["format"]), str(row["method"]), str(row["round"]), int(row["bytes"]), _of(row, "rise"),
                 _of(row, "error"), _said(row), _of(row, "distance"), len(row["left_out"]), str(row["why_not"]))
        for row in _rows(document, "whole")
    )  # fmt: skip
    layers = tuple(
        LayerRow(str(row["name"]), str(row["format"]), _of(row, "rise"), _of(row, "error"), _said(row),
                 _of(row, "distance"), {str(name): float(value) for name, value in dict(row["scores"]).items()
                                        if value is not None})
        for row in _rows(document, "layers")
    )  # fmt: skip
    agreement = dict(document["rank_agreement"] or {})
    return ModelEffects(
        document, whole, layers, float(document["baseline"]["loss"]), int(document["samples"]), str(document["truth"]),
        {str(name): float(value) for name, value in agreement.items() if value is not None}, _of(document, "ceiling"),
        {str(name): int(count) for name, count in dict(document.get("calibration") or {}).items() if count is not None},
        _speed_of(document.get("speed"), document.get("plan")),
    )  # fmt: skip


def _speed_of(found: Any, plan: Any) -> PlanSpeed | None:
    if not found:
        return None
    ratios = tuple((int(row["inputs"]), float(row["times_as_long"])) for row in found["products"])
    return PlanSpeed(int(found["bytes"]), int(found["fp32_bytes"]), tuple(map(str, plan or ())), ratios)


def _rows(document: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    rows = document[key]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{key} is no list of rows")
    return rows


def _of(row: Mapping[str, Any], key: str) -> float | None:
    value = row[key]
    return None if value is None else float(value)


def _said(row: Mapping[str, Any]) -> bool | None:
    value = row["within_noise"]
    return None if value is None else bool(value)
