"""The plan: randomised complete blocks, twins, a warm-up, and the changes that people make."""

import collections

import pytest

from precgui.sweeps.errors import SweepError
from precgui.sweeps.plan import SweepPlan, extended, make_plan, member_config, parse_plan, plan_json
from tests.sweeps.sample_sweep import small_spec

SPEC = small_spec(seeds=5, precisions=("fp32", "bf16-amp", "tf32"), timing_rounds=2)


def _names(plan: SweepPlan) -> list[str]:
    return [member.name for member in plan.members]


def test_that_each_block_has_every_arm_once_and_comes_as_a_whole() -> None:
    plan = make_plan(SPEC)
    runs = [member for member in plan.members if member.kind in ("run", "twin")]
    blocks = [member.block for member in runs]
    assert blocks == sorted(blocks)
    for block in range(1, 6):
        arms = collections.Counter((m.kind, m.arm) for m in runs if m.block == block)
        assert set(arms.values()) == {1}
        assert {arm for kind, arm in arms if kind == "run"} == {"fp32", "bf16-amp", "tf32"}
        assert len({m.seed for m in runs if m.block == block}) == 1


def test_that_a_warm_up_comes_first_and_rounds_of_timing_last() -> None:
    plan = make_plan(SPEC)
    assert plan.members[0].kind == "warm-up"
    assert [m.kind for m in plan.members[-6:]] == ["timing"] * 6
    assert member_config(SPEC, "warm-up", SPEC.arms()[0], 0).train.max_steps == 20


def test_that_the_first_three_seeds_have_a_rounding_twin_of_the_baseline() -> None:
    twins = [member for member in make_plan(SPEC).members if member.kind == "twin"]
    assert [(m.block, m.arm, m.name) for m in twins] == [(n, "fp32", f"s0{n}-fp32-twin") for n in (1, 2, 3)]
    assert member_config(SPEC, "twin", SPEC.arms()[0], 0).train.rounding_twin


def test_that_orders_differ_between_blocks_and_are_the_same_each_time() -> None:
    plan = make_plan(SPEC)
    assert plan == make_plan(SPEC)
    orders = {tuple(m.arm for m in plan.members if m.block == n and m.kind == "run") for n in range(1, 6)}
    assert len(orders) > 1


def test_that_every_order_of_three_arms_comes_about_equally_often() -> None:
    plan = make_plan(small_spec(seeds=600, precisions=("fp32", "bf16-amp", "tf32"), twins=0))
    arms: dict[int, list[str]] = collections.defaultdict(list)
    for member in plan.members[1:]:
        arms[member.block].append(member.arm)
    orders = collections.Counter(map(tuple, arms.values()))
    assert len(orders) == 6
    assert all(60 < count < 140 for count in orders.values())


def test_that_added_seeds_come_after_all_others_and_change_none() -> None:
    plan = make_plan(SPEC)
    longer = extended(plan, SPEC, 2)
    assert longer.members[: len(plan.members)] == plan.members
    assert longer.seeds == [0, 1, 2, 3, 4, 5, 6]
    assert not [m for m in longer.members[len(plan.members) :] if m.kind != "run"]


def test_that_a_plan_survives_its_file_with_its_changes() -> None:
    plan = make_plan(SPEC).with_skipped("s02-tf32", True).with_first("s05-fp32")
    assert parse_plan(plan_json(plan)) == plan
    assert _names(plan)[0] == "s05-fp32"
    assert plan.member("s02-tf32").skipped
    assert not plan.with_skipped("s02-tf32", False).member("s02-tf32").skipped


def test_that_an_unknown_run_is_one_sentence() -> None:
    with pytest.raises(SweepError, match="the sweep has no run s99; the runs are warm-up"):
        make_plan(SPEC).with_skipped("s99", True)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"members": [{}]}', '{"members": 3}', plan_json(make_plan(SPEC)).replace("s01-", "../s01-"),
     plan_json(make_plan(SPEC)).replace('"run"', '"other"'), plan_json(make_plan(SPEC)).replace("s02", "s01")],
)  # fmt: skip
def test_that_a_damaged_plan_is_refused(text: str) -> None:
    with pytest.raises(SweepError):
        parse_plan(text)


def test_that_a_long_variation_still_gives_a_file_name() -> None:
    spec = small_spec(vary={"data.path": ["x" * 200, "y" * 200]}, seeds=3)
    names = _names(make_plan(spec))
    assert max(map(len, names)) < 120
    assert len(set(names)) == len(names)
