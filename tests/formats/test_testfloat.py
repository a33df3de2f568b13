"""Arithmetic in FP16, FP32 and FP64 against Berkeley TestFloat: bits of results, in every rounding but stochastic."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from precgui.formats.arithmetic import ArithmeticSettings, operate
from precgui.formats.codec import decode
from precgui.formats.registry import get
from precgui.formats.rounding import CastPolicy, RoundingMode
from tests.formats import make_testfloat

NAMES = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "sqrt": "sqrt", "mulAdd": "fma"}
MODES: dict[str, RoundingMode] = {
    "near_even": "nearest_even", "minMag": "toward_zero", "min": "down", "max": "up", "near_maxMag": "nearest_away",
    "odd": "to_odd",
}  # fmt: skip
GENERATOR = os.environ.get("TESTFLOAT_GEN", "")
FORMATS = {"f16": "fp16", "f32": "fp32", "f64": "fp64"}


def differences(kind: str, operation: str, rounding: str, cases: list[list[int]]) -> list[str]:
    """The cases whose result has other bits than SoftFloat's; every NaN is as good as another."""
    fmt, settings = get(FORMATS[kind]), ArithmeticSettings(cast_policy=lambda _: CastPolicy(MODES[rounding]))
    different = []
    for *operands, wanted in cases:
        reals = [[decode(code, fmt).real] for code in operands]
        ours = operate(NAMES[operation], reals, fmt, settings).stored
        if ours.code != wanted and not (ours.real.kind == decode(wanted, fmt).real.kind == "nan"):
            different.append(f"{' '.join(f'{code:x}' for code in operands)} gives {ours.code:x}, not {wanted:x}")
    return different


@pytest.mark.parametrize("rounding", make_testfloat.ROUNDINGS)
@pytest.mark.parametrize("operation", make_testfloat.OPERATIONS)
def test_that_results_have_the_bits_of_testfloat(operation: str, rounding: str) -> None:
    with np.load(make_testfloat.DATA, allow_pickle=False) as arrays:
        for kind in FORMATS:
            cases = arrays[f"{kind}_{operation}_r{rounding}"].tolist()
            assert len(cases) >= 60
            assert differences(kind, operation, rounding, cases) == []


@pytest.mark.skipif(not Path(GENERATOR).is_file(), reason="TESTFLOAT_GEN does not name Berkeley's testfloat_gen")
@pytest.mark.parametrize("rounding", make_testfloat.ROUNDINGS)
@pytest.mark.parametrize("operation", make_testfloat.OPERATIONS)
def test_that_results_have_the_bits_of_testfloat_in_full(operation: str, rounding: str) -> None:
    for kind in FORMATS:
        cases = make_testfloat.cases(GENERATOR, f"{kind}_{operation}", rounding)
        assert differences(kind, operation, rounding, cases) == []
