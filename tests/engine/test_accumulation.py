"""The arithmetic of sums: planted in a simulated matrix unit, and found."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from precgui.engine import accumulation
from precgui.engine.accumulation import OPERANDS, SumArithmetic, measure, multiply_on
from tests.engine.matrix_unit import MatrixUnit

CPU = torch.device("cpu")


def found_of(unit: MatrixUnit, monkeypatch: pytest.MonkeyPatch, fmt: str = "e4m3fn") -> SumArithmetic:
    """The sums of a simulated unit, in small products."""
    monkeypatch.setattr(accumulation, "scaled_mm", unit.scaled_mm)
    monkeypatch.setattr(accumulation, "SIDE", 32)
    return measure(multiply_on(CPU, OPERANDS[fmt], fast=False), OPERANDS[fmt])


@pytest.mark.parametrize(
    ("bits", "terms", "promoted_every"),
    [(14, 32, None), (14, 32, 128), (14, 32, 64), (14, 16, 256), (12, 4, None), (20, 8, 128)],
)
def test_that_bits_terms_and_promotion_of_a_short_accumulator_are_found(
    bits: int, terms: int, promoted_every: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = found_of(MatrixUnit(bits, terms, promoted_every), monkeypatch)
    assert (found.bits, found.block_bits, found.terms, found.promoted_every) == (bits, bits, terms, promoted_every)
    assert found.rounding == "toward_zero"
    assert found.order_matters
    assert found.is_deterministic


@pytest.mark.parametrize("rounding", ["toward_zero", "down", "up", "nearest_even"])
@pytest.mark.parametrize(("bits", "sum_bits"), [(14, 14), (26, 24)])
def test_that_the_rounding_of_terms_and_of_the_sum_is_told_by_its_name(
    rounding: str, bits: int, sum_bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = found_of(MatrixUnit(bits, 16, rounding=rounding, sum_bits=sum_bits), monkeypatch)
    assert (found.bits, found.rounding) == (sum_bits, rounding)


def test_that_gradients_times_activations_are_found_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    found = found_of(MatrixUnit(14, 32, 128, least=(-14, -6)), monkeypatch, "e5m2")
    assert (found.bits, found.rounding, found.terms, found.promoted_every) == (14, "toward_zero", 32, 128)


def test_that_a_unit_without_subnormal_operands_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found_of(MatrixUnit(14, 32), monkeypatch).keeps_subnormals
    assert not found_of(MatrixUnit(14, 32, flushes_below=2.0**-6), monkeypatch).keeps_subnormals


def test_that_a_unit_that_is_not_the_same_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    units = iter([MatrixUnit(14, 32), MatrixUnit(14, 16)] * 50)
    monkeypatch.setattr(accumulation, "scaled_mm", lambda *args, **keywords: next(units).scaled_mm(*args, **keywords))
    monkeypatch.setattr(accumulation, "SIDE", 32)
    assert not measure(multiply_on(CPU, OPERANDS["e4m3fn"], fast=False), OPERANDS["e4m3fn"]).is_deterministic


def multiplies_subnormals(dtype: torch.dtype) -> bool:
    """Whether products of this processor count them: those of FP32 and FP64 do; AVX512-BF16 and AMX take them for 0."""
    least = torch.full((64, 64), torch.finfo(dtype).smallest_normal / 2, dtype=dtype)
    counts = bool((least @ torch.full_like(least, 2.0**8)).all())
    return counts or dtype in (torch.float32, torch.float64)


@pytest.mark.parametrize(("fmt", "bits"), [("fp64", 53), ("fp32", 24), ("bf16", 24)])
def test_that_a_processor_adds_in_the_format_that_ieee_754_has(fmt: str, bits: int) -> None:
    found = measure(multiply_on(CPU, OPERANDS[fmt], fast=False), OPERANDS[fmt])
    assert (found.bits, found.rounding, found.promoted_every) == (bits, "nearest_even", None)
    assert found.keeps_subnormals == multiplies_subnormals(OPERANDS[fmt].left)
    assert found.is_deterministic


def test_that_a_sum_that_loses_nothing_has_no_bits_and_no_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    found = found_of(MatrixUnit(50, 64, sum_bits=50), monkeypatch)
    assert (found.bits, found.rounding, found.terms, found.promoted_every) == (None, None, None, None)


def test_that_measuring_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    measure(multiply_on(CPU, OPERANDS["fp32"], fast=False), OPERANDS["fp32"])
    assert torch.equal(torch.get_rng_state(), before)


def test_that_parts_side_by_side_are_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kernel that gives every second 32 terms to another thread, each of which adds one after the other."""
    unit = MatrixUnit(24, 1, rounding="nearest_even")

    def by_two(a: torch.Tensor, b: torch.Tensor, **keywords: Any) -> torch.Tensor:
        order = torch.arange(a.shape[1]).view(-1, 2, 32)
        parts = [order[:, part].flatten() for part in (0, 1)]
        return sum(unit.scaled_mm(a[:, part], b[part], **keywords) for part in parts)  # type: ignore[return-value]

    monkeypatch.setattr(accumulation, "scaled_mm", by_two)
    monkeypatch.setattr(accumulation, "SIDE", 32)
    found = measure(multiply_on(CPU, OPERANDS["e4m3fn"], fast=False), OPERANDS["e4m3fn"])
    assert (found.bits, found.rounding, found.terms) == (24, "nearest_even", None)
