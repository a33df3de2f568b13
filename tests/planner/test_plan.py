"""Arithmetic of plans: what each slider does, what fits, what to change first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precgui.planner.ledger import PARTS, Ledger, Owner, difference_sentence, largest_owners, residual
from precgui.planner.network import NETWORKS
from precgui.planner.plan import (
    PlanRequest,
    changes,
    device_bytes,
    first_change,
    largest_batch,
    plan,
    usable_bytes,
)

GPT2 = PlanRequest(NETWORKS["gpt2"], batch=8, precision="fp32")


def _ledger(**parts: int) -> Ledger:
    return Ledger({name: parts.get(name, 0) for name in PARTS}, sum(parts.values()), "backward", "test")


def test_that_parts_add_up_to_the_total() -> None:
    made = plan(replace(GPT2, precision="bf16-amp", checkpointing=True))
    assert made.total_bytes == sum(made.parts.values()) > 0
    assert set(made.parts) == set(PARTS)


@pytest.mark.parametrize(
    "values",
    [
        {"precision": "bf16-amp"},
        {"precision": "bf16-pure"},
        {"checkpointing": True},
        {"batch": 4},
        {"optimizer": "sgd"},
        {"optimizer": "adamw-8bit"},
        {"offload": "optimizer"},
        {"zero_stage": 1, "ranks": 8},
        {"lora_rank": 8},
    ],
)
def test_that_each_slider_lowers_the_peak(values: dict[str, object]) -> None:
    assert plan(replace(GPT2, **values)).total_bytes < plan(GPT2).total_bytes


def test_that_accumulation_keeps_gradients_beside_activations() -> None:
    once, twice = plan(GPT2), plan(replace(GPT2, accumulation=2))
    assert twice.total_bytes - once.total_bytes == GPT2.network.parameters * 4


def test_that_off_loaded_state_lies_in_the_host() -> None:
    made = plan(replace(GPT2, offload="optimizer"))
    assert made.parts["optimizer"] == 0
    assert made.host_bytes == 8 * GPT2.network.parameters


def test_that_the_largest_batch_is_the_last_that_fits() -> None:
    size = device_bytes("24GB")
    most = largest_batch(GPT2, size)
    assert plan(replace(GPT2, batch=most)).fits(size)
    assert not plan(replace(GPT2, batch=most + 1)).fits(size)


def test_that_nothing_is_to_change_where_it_fits() -> None:
    assert first_change(GPT2, device_bytes("80GB")) is None
    assert first_change(GPT2, None) is None


def test_that_the_first_change_is_the_cheapest_that_makes_it_fit() -> None:
    size = device_bytes("24GB")
    request = replace(GPT2, batch=largest_batch(GPT2, size) + 1)
    wanted = first_change(request, size)
    assert wanted is not None
    assert wanted.settings == {"precision": "bf16-amp"}
    assert wanted.fits


def test_that_the_change_that_saves_most_comes_first_where_none_is_enough() -> None:
    request = PlanRequest(NETWORKS["gpt3-175b"], precision="bf16-master")
    size = device_bytes("24GB")
    wanted = first_change(request, size)
    assert wanted is not None
    assert wanted.plan.total_bytes == min(change.plan.total_bytes for change in changes(request, size))


@pytest.mark.parametrize(
    ("text", "expected"), [("24GB", 24 * 2**30), ("80 GiB", 80 * 2**30), ("1.5g", 1.5 * 2**30), ("512MB", 2**29)]
)
def test_that_sizes_are_read_as_card_makers_write_them(text: str, expected: float) -> None:
    assert device_bytes(text) == expected


@pytest.mark.parametrize("text", ["24", "GB", "-3GB", "0GB", "24 apples"])
def test_that_other_text_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="write 24GB"):
        device_bytes(text)


def test_that_a_margin_and_the_context_stay_free() -> None:
    assert usable_bytes(24 * 2**30) == pytest.approx(24 * 2**30 * 0.95 - 600 * 2**20, abs=1)


@pytest.mark.parametrize(
    "values", [{"optimizer": "lion"}, {"base_format": "q2"}, {"zero_stage": 4}, {"offload": "disk"}]
)
def test_that_what_cannot_be_planned_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"choose|at least 1"):
        plan(replace(GPT2, **values))


def test_that_a_ledger_survives_json() -> None:
    ledger = replace(_ledger(weights=3, activations=5), owners=(Owner("weights", "head", 3, 1, "float32", (3,)),))
    assert Ledger.from_json(ledger.to_json()) == ledger
    assert ledger.to_json()["parts"]["weights_bytes"] == 3


def test_that_the_difference_of_two_ledgers_is_one_sentence_with_the_largest_part_first() -> None:
    fp32, amp = (
        _ledger(weights=2**30, activations=4 * 2**30),
        _ledger(weights=2**30, activations=2**31, cast_cache=2**29),
    )
    told = difference_sentence(fp32, amp, "bf16-amp")
    assert told.startswith("bf16-amp needs 0.70 times the memory of fp32: activations")
    assert told.index("-2 GiB") < told.index("+512 MiB")


def test_that_equal_ledgers_are_said_to_be_equal() -> None:
    assert "no part" in difference_sentence(_ledger(weights=9), _ledger(weights=9), "tf32")


def test_that_the_residual_is_a_share_of_the_measured_peak() -> None:
    assert residual(_ledger(weights=90), _ledger(weights=100)) == pytest.approx(0.1)


def test_that_small_owners_are_summed_up_by_part() -> None:
    owners = [Owner("weights", str(number), number, 1) for number in range(1, 6)]
    kept = largest_owners(owners, most=2)
    assert [owner.size_bytes for owner in kept] == [5, 4, 6]
    assert kept[-1].module == "(others)"
