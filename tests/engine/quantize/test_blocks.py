"""Block formats on tensors against the array form, which is checked against gfloat."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import precgui
from precgui.engine.quantize import torch_form
from precgui.engine.quantize.block_kernels import fused_blocks
from precgui.engine.quantize.blocks import quantize_blocks
from precgui.formats.blocks import SCALE_RULES, ScaleRule, quantize_blocks_array
from precgui.formats.registry import UnknownFormatError, blocks, get
from precgui.formats.rounding import RoundingMode
from tests.formats.references import signal_to_noise_db

GENERATOR = np.random.default_rng(2)
NORMAL = GENERATOR.normal(size=(48, 96)).astype(np.float32)
WIDE = (NORMAL * 10.0 ** GENERATOR.integers(-44, 38, NORMAL.shape)).astype(np.float32)
SMALL = (NORMAL * np.float32(1e-38)).astype(np.float32)
EDGES = np.abs(NORMAL)
EDGES[:, 0] = 2.0 ** GENERATOR.integers(-140, 120, 48)
EDGES[:, 32] = EDGES[:, 0] * 1.75


@pytest.mark.parametrize("rule", SCALE_RULES)
@pytest.mark.parametrize("name", blocks())
def test_that_tensors_and_arrays_agree(name: str, rule: ScaleRule) -> None:
    for values in (NORMAL, WIDE, SMALL, EDGES, EDGES * np.float32(1e-20)):
        ours = quantize_blocks(torch.from_numpy(values), name, rule=rule).numpy()
        array = quantize_blocks_array(values, name, rule).values.astype(np.float32)
        assert np.array_equal(ours, array)


@pytest.mark.parametrize("rule", SCALE_RULES)
def test_that_the_fused_pass_and_the_torch_form_agree(rule: ScaleRule) -> None:
    for name in ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4"):
        chosen, element = blocks()[name], get(blocks()[name].element)
        for values in (NORMAL, WIDE, SMALL):
            fused = np.empty_like(values)
            fused_blocks(values.reshape(-1), fused.reshape(-1), element, rule, chosen.block)
            composed = torch_form.quantize_blocks(torch.from_numpy(values), name, rule=rule)
            assert np.array_equal(fused, composed.numpy())


def test_that_stochastic_blocks_are_unbiased_where_nothing_clips() -> None:
    values = torch.from_numpy(NORMAL)
    runs = [quantize_blocks(values, "mxfp4", rule="ceil", rounding="stochastic", seed=seed) for seed in range(64)]
    mean = torch.stack(runs).double().mean(0)
    assert float((mean - values).abs().mean()) < 0.05
    assert torch.equal(runs[0], quantize_blocks(values, "mxfp4", rule="ceil", rounding="stochastic", seed=0))


def test_that_the_axis_can_be_chosen_and_odd_sizes_are_padded() -> None:
    values = torch.from_numpy(NORMAL)
    assert torch.equal(quantize_blocks(values.t(), "mxfp4", axis=0), quantize_blocks(values, "mxfp4").t())
    odd = values[:, :37]
    assert quantize_blocks(odd, "nvfp4").shape == odd.shape
    assert quantize_blocks(torch.tensor(3.0), "mxfp4").shape == ()
    assert quantize_blocks(torch.zeros(0, 32), "nvfp4").shape == (0, 32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_that_other_dtypes_are_kept(dtype: torch.dtype) -> None:
    values = torch.from_numpy(NORMAL).to(dtype)
    result = quantize_blocks(values, "mxfp8_e4m3")
    assert result.dtype == dtype
    assert signal_to_noise_db(values.double().numpy(), result.double().numpy()) > 29


def test_that_poison_stays_in_its_block_and_the_gradient_passes() -> None:
    values = torch.ones(64, requires_grad=True)
    poisoned = torch.ones(64)
    poisoned[3] = float("inf")
    result = quantize_blocks(poisoned, "mxfp4")
    assert result[:32].isnan().all()
    assert (result[32:] == 1).all()
    (quantize_blocks(values * 1.3, "mxfp4") * 2).sum().backward()
    assert values.grad is not None
    assert torch.allclose(values.grad, torch.full((64,), 2.6))


def test_that_unknown_words_are_refused() -> None:
    with pytest.raises(UnknownFormatError):
        quantize_blocks(torch.zeros(32), "mxfp5")
    with pytest.raises(ValueError, match="no scale rule"):
        quantize_blocks(torch.zeros(32), "mxfp4", rule="round")


def test_that_the_package_offers_both_by_name() -> None:
    assert precgui.quantize_blocks is quantize_blocks
    assert precgui.quantize(torch.tensor(0.1), "fp16").item() == np.float16(0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rounding", ["nearest_even", "up"])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4"])
def test_that_pieces_with_the_largest_value_of_the_whole_are_those_of_the_whole(
    name: str, rounding: RoundingMode, dtype: torch.dtype
) -> None:
    tensor = (torch.from_numpy(NORMAL[:, :64]) * torch.logspace(-3, 3, 48)[:, None]).to(dtype)
    largest = float(tensor.abs().max())
    pieces = [quantize_blocks(piece, name, rounding=rounding, largest=largest) for piece in tensor.split(8)]
    assert torch.equal(torch.cat(pieces), quantize_blocks(tensor, name, rounding=rounding))
    scripted = [
        torch_form.quantize_blocks(piece, name, rounding=rounding, largest=largest) for piece in tensor.split(8)
    ]
    assert torch.equal(torch.cat(scripted), torch_form.quantize_blocks(tensor, name, rounding=rounding))
    if name == "nvfp4":
        alone = [quantize_blocks(piece, name, rounding=rounding) for piece in tensor.split(8)]
        assert not torch.equal(torch.cat(alone), torch.cat(pieces)), "each piece has a tensor scale of its own"


@pytest.mark.parametrize("largest", [-1.0, float("inf"), float("nan")])
def test_that_no_magnitude_is_refused(largest: float) -> None:
    with pytest.raises(ValueError, match="give the largest finite one of the whole tensor"):
        quantize_blocks(torch.randn(16), "nvfp4", largest=largest)
