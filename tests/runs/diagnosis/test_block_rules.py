"""Rules on formats with a scale for each row or block, and on angles in 16 bits."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from precgui.config import RunConfig
from precgui.events import EXPONENT_BINS, Event, ModelDescribed, ModuleInfo, ParameterInfo, RunStarted
from precgui.formats.blocks import quantize_blocks_array
from precgui.runs.diagnosis import Diagnosis, diagnose, examine
from precgui.runs.diagnosis.block_rules import _below, _octaves, block_format_of
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.live import LiveRun
from tests.runs.diagnosis.test_rules import FALLING, run_of, steps, tensors


def counted(values: np.ndarray) -> np.ndarray:
    """The histogram of FP32 exponents, shape (1, 256)."""
    exponents = np.frexp(np.abs(values[values != 0]))[1] + 126
    return np.bincount(exponents, minlength=EXPONENT_BINS)[None, :].astype(float)


def judged(precision: str, values: np.ndarray) -> Diagnosis:
    run = LiveRun(RunConfig(precision=precision), run_id="1", created="", machine={}, environment={})
    event = tensors(5, "activation", {"fc": {"amax": float(np.abs(values).max()), "count": float(values.size)}})
    bins = counted(values)[0].astype("<u4").tobytes()
    with_bins = type(event)(*(bins if name == "exponents" else getattr(event, name) for name in event.__slots__))
    run.extend([RunStarted(0.0, 0, 0, "cpu"), *steps(FALLING), with_bins])
    return examine(run)


@pytest.mark.parametrize("precision", ["mxfp4", "nvfp4", "mxfp8"])
def test_that_no_more_elements_become_zero_in_blocks_than_the_bound_says(precision: str) -> None:
    rng = np.random.default_rng(1)
    for values in (rng.normal(size=4096), rng.normal(size=4096) * np.exp(3 * rng.normal(size=4096))):
        run = LiveRun(RunConfig(precision=precision), run_id="1", created="", machine={}, environment={})
        chosen = block_format_of(Measurements(run))
        assert chosen is not None
        flushed = float(quantize_blocks_array(values.astype(np.float32), chosen.name).flushed.mean())
        assert flushed <= float(_below(counted(values), _octaves(chosen))[0]) + 0.01


def test_that_outliers_are_an_info_and_normal_numbers_rule_them_out() -> None:
    rng = np.random.default_rng(2)
    normal = rng.normal(size=(64, 64))
    outliers = normal.copy()
    outliers[:, 0] *= 300
    [finding] = [each for each in judged("nvfp4", outliers).findings if each.rule == "outliers-in-blocks"]
    assert (finding.severity, finding.module, finding.precision_is_to_blame) == ("info", "fc", None)
    assert "--layers nvfp4,fp32" in finding.needs
    healthy = judged("nvfp4", normal)
    assert "outliers-in-blocks" in {each.rule for each in healthy.ruled_out}
    assert "outliers-in-blocks" not in {each.rule for each in judged("fp32", outliers).findings}


def padded(zeros: float, operations: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The rules of a run whose second layer, of 8 inputs, computes NaN in step 10."""
    events: list[Event] = [
        *steps([*FALLING[:9], math.nan]),
        tensors(10, "activation", {"act": {"amax": 1.5, "zeros": zeros}, "fc": {"amax": 1.5, "nan": 4.0}}),
    ]
    modules = (ModuleInfo("act", "torch.nn.ReLU", 0), ModuleInfo("fc", "mine.Scaled", 1))
    weight = ParameterInfo("fc.weight", "parameter", "fp32", (4, 8), True, True, 0)
    run = run_of([*events, ModelDescribed(0.0, modules, (weight,))], census={"operations": operations})
    return [each.rule for each in diagnose(run) if each.is_problem]


def test_that_zeros_enough_for_a_row_explain_nan_in_fp8_only() -> None:
    fp8 = {"_to_copy": {"e4m3fn": 2, "fp32": 2}}
    assert padded(8.0, fp8) == ["zero-row"]
    assert padded(7.0, fp8) == ["undefined-operation"]
    assert padded(8.0, {"mm": {"fp32": 2}}) == ["undefined-operation"]


@pytest.mark.parametrize(
    ("angle", "severity"),
    [({"radians": 2047.0, "format": "bf16", "module": "rope"}, "warning"), ({"radians": 12.0, "format": "bf16"}, ""),
     ({"radians": 900.0, "format": "fp16"}, ""), ({"radians": "wide", "format": "bf16"}, ""), ("wide", "")],
)  # fmt: skip
def test_that_angles_in_16_bits_are_judged_by_their_error(angle: object, severity: str) -> None:
    operations = {"sin": {"bf16": 1}}
    result = examine(run_of(steps(FALLING), census={"operations": operations, "angle": angle}))
    severities = [each.severity for each in result.findings if each.rule == "coarse-angles"]
    assert severities == ([severity] if severity else [])
    assert ("coarse-angles" in {each.rule for each in result.ruled_out}) is not bool(severity)
