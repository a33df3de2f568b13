"""Sums of a tensor core, against a plain account of the same arithmetic; and as one operation of torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from precgui.engine.emulation.tensor_core import HOPPER, SCALED_MM, TensorCore
from tests.engine.matrix_unit import MatrixUnit

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ONE = torch.ones(())
LEAST = {E4M3: -6, E5M2: -14}


def operands(length: int, left: torch.dtype, size: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(24, length, generator=generator), torch.randn(length, 40, generator=generator)
    return (a * size).to(left), (b * size).to(E4M3)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("left", [E4M3, E5M2])
@pytest.mark.parametrize(("length", "size"), [(16, 1.0), (48, 0.01), (128, 1.0), (160, 20.0), (512, 1.0)])
@pytest.mark.parametrize("unit", [HOPPER, TensorCore(12, 16, 64, "")])
def test_that_sums_are_those_of_a_plain_account(
    unit: TensorCore, length: int, size: float, left: torch.dtype, fast: bool
) -> None:
    a, b = operands(length, left, size)
    ours = unit.scaled_mm(a, b, ONE, ONE, fast=fast)
    plain = MatrixUnit(unit.bits, unit.terms, None if fast else unit.promoted_every, least=(LEAST[left], -6))
    np.testing.assert_array_equal(ours.double().numpy(), plain.product(a.double().numpy(), b.double().numpy()))
    assert ours.dtype == torch.float32


def test_that_scales_multiply_the_sum() -> None:
    a, b = operands(64, E4M3)
    scaled = HOPPER.scaled_mm(a, b, torch.tensor(0.5), torch.tensor(3.0), fast=True)
    torch.testing.assert_close(scaled, HOPPER.scaled_mm(a, b, ONE, ONE, fast=True) * 1.5)


def test_that_a_large_term_swallows_the_small_ones_of_its_part_of_the_sum() -> None:
    """The example of a promoted sum: 1 term of 2^16 and 511 of 1, which are more than 2^-13 of it together."""
    a, b = torch.ones(1, 512), torch.ones(512, 1)
    a[0, 0], b[0, 0] = 256, 256
    a, b = a.to(E4M3), b.to(E4M3)
    assert HOPPER.scaled_mm(a, b, ONE, ONE, fast=True).item() == 2**16
    assert HOPPER.scaled_mm(a, b, ONE, ONE, fast=False).item() == 2**16 + 384


def test_that_zeros_and_nothing_at_all_are_zero_and_nan_stays() -> None:
    a, b = (torch.zeros(16, 64).to(E4M3), torch.zeros(64, 16).to(E4M3))
    assert HOPPER.scaled_mm(a, b, ONE, ONE, fast=True).abs().max() == 0
    assert HOPPER.scaled_mm(a[:0], b, ONE, ONE, fast=True).shape == (0, 16)
    a = a.float().index_fill(0, torch.tensor([3]), torch.nan).to(E4M3)
    result = HOPPER.scaled_mm(a, b, ONE, ONE, fast=False)
    assert result[3].isnan().all()
    assert not result[:3].isnan().any()


def test_that_it_is_one_operation_whose_work_is_counted() -> None:
    a, b = operands(64, E4M3)
    with FlopCounterMode(display=False) as counter:
        HOPPER.scaled_mm(a, b, ONE, ONE, fast=True)
    assert counter.get_flop_counts()["Global"] == {SCALED_MM.overloadpacket: 2 * 24 * 64 * 40}
