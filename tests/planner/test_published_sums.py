"""The planner against published sums; formula and source stand beside each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precgui.planner.network import NETWORKS, Transformer
from precgui.planner.plan import PlanRequest, plan
from precgui.planner.storage import BASE_BITS, storage_of

GB = 10**9


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("gpt2", 124_439_808),  # openai-community/gpt2, numel of its weights
        ("gpt2-xl", 1_557_611_200),  # openai-community/gpt2-xl
        ("llama-7b", 6_738_415_616),  # meta-llama/Llama-2-7b-hf; LLaMA-1 has the same shape
        ("llama-13b", 13_015_864_320),
        ("llama-65b", 65_285_660_672),
        ("llama2-70b", 68_976_648_192),
        ("llama3-8b", 8_030_261_248),
    ],
)
def test_that_parameters_by_formula_are_the_published_count(name: str, published: int) -> None:
    assert NETWORKS[name].parameters == published


def _of_size(parameters: int) -> Transformer:
    """A network with about so many parameters, nearly all in its blocks."""
    return Transformer(
        layers=round(parameters / (12 * 4096**2 + 2 * 4096)), feed_forward=16384, gated=False, vocabulary=1
    )


def test_that_mixed_precision_adam_takes_16_bytes_a_parameter() -> None:
    """2 + 2 + 12 bytes (Rajbhandari et al. 2020, "ZeRO", section 3.1): at least 112 GB for 7 billion parameters."""
    network = NETWORKS["llama-7b"]
    made = plan(PlanRequest(network, precision="bf16-master"))
    assert made.states_bytes == 16 * network.parameters
    assert made.states_bytes == pytest.approx(107.8 * GB, rel=1e-3)


def test_that_autocast_with_adam_takes_16_bytes_and_2_of_cache() -> None:
    """FP32 weights, gradients and two moments: 4 + 4 + 8; autocast keeps a 16-bit copy of each weight meanwhile."""
    network = NETWORKS["llama-7b"]
    made = plan(PlanRequest(network, batch=64, precision="bf16-amp"))
    assert made.states_bytes == 16 * network.parameters
    assert made.parts["cast_cache"] == 2 * network.parameters


@pytest.mark.parametrize(("stage", "published_gb"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.88)])
def test_that_zero_shares_states_as_published(stage: int, published_gb: float) -> None:
    """7.5 billion parameters on 64 ranks, K = 12: 120, 31.4, 16.6 and 1.88 GB (Rajbhandari et al. 2020, figure 1)."""
    network = _of_size(7_500_000_000)
    made = plan(PlanRequest(network, precision="bf16-master", zero_stage=stage, ranks=64))
    per_parameter = made.states_bytes / network.parameters
    assert per_parameter * 7.5 == pytest.approx(published_gb, rel=0.01)


def test_that_zero_3_on_8_ranks_leaves_an_eighth() -> None:
    """16 bytes / 8 a parameter on each rank; and two blocks gathered in 16 bits, the one in use and the next."""
    network = NETWORKS["llama-7b"]
    made = plan(PlanRequest(network, precision="bf16-master", zero_stage=3, ranks=8))
    assert made.states_bytes == pytest.approx(16 / 8 * network.parameters, abs=4)
    assert made.parts["temporary"] >= 2 * 2 * network.largest_block


@pytest.mark.parametrize(("rank", "published"), [(1, 4_718_592), (8, 37_748_736)])
def test_that_adapters_of_gpt3_have_the_published_size(rank: int, published: int) -> None:
    """Rank on queries and values of 96 blocks of width 12288: 2 x 192 x 12288 x r, 4.7 M for r = 1 and 37.7 M for r = 8
    (Hu et al. 2021, "LoRA", table 4). The planner adapts all matrices, so its blocks are cut to those two here."""
    network = NETWORKS["gpt3-175b"]
    whole = network.adapter_parameters(rank)
    perceptron = network.layers * rank * 2 * (network.width + network.feed_forward)
    assert (whole - perceptron) // 2 == published


def test_that_the_frozen_base_of_gpt3_takes_350_gb_in_16_bits() -> None:
    """175 billion x 2 bytes (Hu et al. 2021, section 4.2: 350 GB)."""
    made = plan(PlanRequest(NETWORKS["gpt3-175b"], precision="bf16-pure", lora_rank=1, optimizer="adamw"))
    assert made.parts["weights"] == pytest.approx(350 * GB, rel=0.01)


def test_that_16_bit_finetuning_of_65_billion_needs_more_than_780_gb() -> None:
    """2 bytes of weight, 2 of gradient, 8 of Adam's state (Dettmers et al. 2023, "QLoRA", abstract: > 780 GB)."""
    storage = storage_of("bf16-pure")
    assert (storage.weight + storage.gradient + 2 * 4) * NETWORKS["llama-65b"].parameters > 780 * GB


def test_that_double_quantisation_costs_0_127_bits() -> None:
    """8/64 + 32/(64 x 256) = 0.127 bits a parameter (Dettmers et al. 2023, section 3)."""
    assert BASE_BITS["nf4"] - 4 == pytest.approx(0.127, abs=5e-4)


def test_that_qlora_of_65_billion_fits_into_48_gb_and_lora_in_16_bits_does_not() -> None:
    """Dettmers et al. 2023, abstract: a 65 B model on a single GPU of 48 GB, with checkpoints and sequences of 512."""
    network = replace(NETWORKS["llama-65b"], sequence=512)
    request = PlanRequest(network, precision="bf16-pure", lora_rank=64, base_format="nf4", checkpointing=True)
    assert plan(request).fits(48 * 2**30) is True
    assert plan(replace(request, base_format="bf16")).fits(48 * 2**30) is False


def test_that_activations_of_a_block_are_those_of_korthikanti() -> None:
    """34 sbh + 5 a s^2 b bytes with dropout masks (Korthikanti et al. 2022, eq. 1); without them 32 sbh + 4 a s^2 b."""
    network = replace(NETWORKS["gpt3-175b"], flash=False)
    s, b, h, a = network.sequence, 1, network.width, network.heads
    assert network.layer_bytes(b, storage_of("bf16-pure")) == 32 * s * b * h + 4 * a * s * s * b
