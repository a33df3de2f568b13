"""Rules on records made by hand, where every number is known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from precgui.config import OWN_LOOP, RunConfig
from precgui.events import (
    TENSOR_STATS,
    Event,
    Incident,
    ModelDescribed,
    ModuleInfo,
    ParameterInfo,
    RunEnded,
    RunStarted,
)
from precgui.runs.diagnosis import RULES, as_json, diagnose, examine
from precgui.runs.diagnosis.measurements import MOST_ROWS, Measurements, RecordedRows, thinned
from precgui.runs.diagnosis.nan_aware import largest, least, middle
from precgui.runs.diagnosis.number_formats import format_of
from precgui.runs.live import LiveRun
from tests.runs.diagnosis.hand_made import FALLING, run_of, steps, tensors
from tests.runs.synthetic import live_run

ROOT = Path(__file__).parents[3]


def test_that_a_falling_loss_is_healthy() -> None:
    found = examine(run_of(steps(FALLING)))
    assert found.verdict == "healthy"
    assert found.problems == ()
    assert all(
        any(letter.isdigit() for letter in each.why) or "no step was taken" in each.why for each in found.ruled_out
    )


def test_that_a_run_without_steps_cannot_be_told() -> None:
    assert examine(run_of([])).verdict == "cannot be told"
    assert examine(run_of([])).sentence == "Cannot be told: no step is recorded."


def test_that_a_run_that_has_just_begun_is_told_as_such() -> None:
    begun = examine(live_run([RunStarted(0.0, 10, 10, "cpu")]))
    assert begun.verdict == "cannot be told"
    assert begun.sentence == "Cannot be told: the training has begun, and no step of it has ended yet."


def test_that_a_run_that_failed_is_no_healthy_one() -> None:
    live = run_of([])
    live.extend([RunEnded(9.0, "failed", "Attempting to unscale FP16 gradients.")])
    found = examine(live)
    assert [each.rule for each in found.problems] == ["failed"]
    assert "autocast" in found.problems[0].fix


def test_that_nan_of_the_data_is_told_as_such() -> None:
    losses = [*FALLING[:20], *[math.nan] * 10]
    message = "the loss is nan, because the inputs of this step hold NaN or Inf; clean the data"
    events = [*steps(losses), Incident(2.0, 21, "nonfinite_loss", "error", message)]
    [found] = [each for each in diagnose(run_of(events)) if each.is_problem]
    assert (found.rule, found.precision_is_to_blame, found.first_step) == ("data-not-finite", False, 21)


def test_that_inf_of_fp16_outputs_is_blamed_on_the_range_and_nan_of_fp32_is_not() -> None:
    for precision, value, rule, blame in (
        ("fp16-amp", "pos_inf", "forward-overflow", True),
        ("fp32", "nan", "undefined-operation", False),
    ):
        events = [
            *steps([*FALLING[:9], math.nan]),
            tensors(5, "activation", {"a": {"amax": 30_000.5}, "b": {"amax": 60_001.0}, "c": {"amax": 2.5}}),
            tensors(10, "activation", {"a": {"amax": 30_000.5}, "b": {value: 3.0, "amax": 1.5}, "c": {"nan": 9.0}}),
        ]
        found = diagnose(run_of(events, precision))[0]
        assert (found.rule, found.module, found.precision_is_to_blame) == (rule, "b", blame)


def test_that_a_scale_that_halves_for_ever_differs_from_one_that_finds_its_size() -> None:
    n = 30
    scales = [2.0 ** (16 - i) for i in range(n)]
    endless = steps([1.0] * n, scale=scales, skipped=[1.0] * n, grad_norm=[math.nan] * n)
    assert "scale-collapse" in {found.rule for found in examine(run_of(endless, "fp16-amp")).problems}
    down = [2.0 ** (24 - min(i, 8)) for i in range(60)]
    search = steps(FALLING, scale=down, skipped=[float(i < 8) for i in range(60)])
    found = examine(run_of(search, "fp16-amp"))
    assert found.verdict == "healthy"
    assert [each.rule for each in found.findings] == ["warm-up"]
    assert found.findings[0].config_change == {"scaling.initial_scale": 2.0**16}


@pytest.mark.parametrize("scaled", [True, False])
def test_that_a_clipped_norm_is_told_by_what_it_does_when_the_scale_moves(scaled: bool) -> None:
    scales = [2.0 ** (10 + i // 20) for i in range(60)]
    norms = [1.0 / scale if scaled else 1.0 for scale in scales]
    rules = {found.rule for found in diagnose(run_of(steps(FALLING, scale=scales, grad_norm=norms), "fp16-amp"))}
    assert ("clip-before-unscale" in rules) is scaled


def test_that_a_scheduler_that_ran_ahead_is_told_by_the_rate_of_skipped_steps() -> None:
    skipped = [float(i < 12) for i in range(40)]
    ahead = [0.1 * (1 - i / 40) for i in range(40)]
    waits = [0.1 * (1 - max(i - 12, 0) / 40) for i in range(40)]
    scales = [2.0 ** (30 - min(i, 12)) for i in range(40)]
    for rates, expected in ((ahead, True), (waits, False)):
        events = steps(FALLING[:40], scale=scales, skipped=skipped, lr=rates)
        assert ("scheduler-ahead" in {found.rule for found in diagnose(run_of(events, "fp16-amp"))}) is expected


def test_that_a_rate_that_is_not_known_did_not_run_ahead() -> None:
    skipped = [float(i < 12) for i in range(40)]
    events = steps(FALLING[:40], skipped=skipped, lr=[math.nan] * 40)
    assert "scheduler-ahead" not in {found.rule for found in diagnose(run_of(events, "fp16-amp"))}


@pytest.mark.parametrize(
    ("before", "update", "rule"),
    [(10.0, 6790.0, "divergence"), (10.0, 0.1, "undefined-operation"), (0.0, 5.0, "undefined-operation")],
)
def test_that_a_first_update_larger_than_the_weights_explains_what_is_not_finite_after_it(
    before: float, update: float, rule: str
) -> None:
    """Weights that began at zero have no size that an update could exceed."""
    events = [
        tensors(0, "weight", {"a": {"l2": before, "amax": 1.5}}),
        *steps([4.0, math.nan, math.nan, math.nan], grad_norm=[1.0, math.nan, math.nan, math.nan]),
        tensors(1, "update", {"a": {"l2": update, "amax": 1.5, "changed": 1.0}}),
        tensors(1, "weight", {"a": {"l2": max(before, update), "amax": 1.5}}),
    ]
    found = diagnose(run_of(events))[0]
    assert (found.rule, found.precision_is_to_blame) == (rule, False)


def test_that_stored_bf16_weights_that_hardly_change_are_stagnant() -> None:
    events = steps([2.0] * 30)
    for step in range(1, 30, 3):
        amax = 1.0 + step / 128
        events.append(tensors(step, "weight", {"w": {"amax": amax, "amin_nonzero": amax / 2, "l2": 10.0}}))
        events.append(tensors(step, "gradient", {"w": {"amax": 1.0, "l2": 1.0, "rms": 0.1}}))
        events.append(tensors(step, "update", {"w": {"amax": 0.01, "l2": 0.01, "changed": 0.02}}))
    found = examine(run_of(events, "bf16-pure", recorder={"optimizers": [{"name": "AdamW", "eps": 1e-8}]}))
    assert [each.rule for each in found.problems] == ["stagnation"]
    assert found.problems[0].precision_is_to_blame is True


def test_that_formats_are_told_by_their_digits() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=50)
    assert format_of(np.abs(values)) == "fp32"
    assert format_of(np.abs(values.astype(np.float16).astype(float))) == "fp16"
    cut = (np.abs(values).astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert format_of(cut.astype(float)) == "bf16"
    assert format_of(np.array([1.0, 2.0, 0.5])) == ""
    assert format_of(np.abs(values.astype(np.float16).astype(float)) / 2.0**16) == "fp16"


def test_that_reductions_agree_with_numpy() -> None:
    rng = np.random.default_rng(0)
    values = np.where(rng.random((7, 11)) < 0.3, np.nan, rng.normal(size=(7, 11)))
    values[:, 3] = np.nan
    known = np.delete(values, 3, 1)
    assert np.array_equal(np.delete(largest(values, 0), 3), np.nanmax(known, 0))
    assert np.array_equal(np.delete(least(values, 0), 3), np.nanmin(known, 0))
    assert math.isnan(middle(values, 0)[3])
    odd = values[:, [np.isfinite(column).sum() % 2 == 1 for column in values.T]]
    assert np.allclose(middle(odd, 0), np.nanmedian(odd, 0))


def test_that_a_thinned_series_keeps_its_extremes() -> None:
    y = np.sin(np.arange(5000.0))
    y[1234], y[4321] = 9.0, -9.0
    kept = [value for _, value in thinned(np.arange(5000), y)]
    assert len(kept) <= 120
    assert {9.0, -9.0} <= set(kept)


def test_that_no_more_rows_are_read_than_needed() -> None:
    events: list[Event] = [*steps([1.0] * 500)]
    events += [tensors(step, "gradient", {"w": {"amax": 1.0, "l2": 1.0}}) for step in range(1, 500)]
    table = Measurements(run_of(events)).table("gradient")
    assert table is not None
    assert MOST_ROWS <= len(table.steps) <= MOST_ROWS + 12


def test_that_a_finding_becomes_json_of_built_in_types() -> None:
    losses = [*FALLING[:20], *[math.nan] * 10]
    document = as_json(diagnose(run_of(steps(losses)))[0])
    assert {
        "rule",
        "severity",
        "title",
        "step",
        "module",
        "evidence",
        "fix",
        "precision_is_to_blame",
    } <= document.keys()
    import json

    assert json.loads(json.dumps(document, allow_nan=False)) == document


def problems(run: LiveRun) -> list[str]:
    return [each.rule for each in examine(run).problems]


def test_that_a_scale_that_is_raised_all_the_time_is_told_from_one_that_is_tried_now_and_then() -> None:
    for every, rules in ((2, ["scale-probing"]), (6, [])):
        raised = [float(i % every == 1) for i in range(60)]
        scale = [2.0**14 * (2 if up else 1) for up in raised]
        assert problems(run_of(steps(FALLING, scale=scale, skipped=raised), "fp16-amp")) == rules


def test_that_a_scaler_without_its_state_is_told_by_a_jump_of_the_scale() -> None:
    scale = [32.0] * 30 + [2.0 ** max(16 - i, 5) for i in range(30)]
    skipped = [0.0] * 30 + [float(i < 11) for i in range(30)]
    found = examine(run_of(steps(FALLING, scale=scale, skipped=skipped), "fp16-amp", scaler={"growth_factor": 2.0}))
    [jump] = [each for each in found.findings if each.rule == "scaler-set-anew"]
    assert jump.first_step == 31
    assert jump.precision_is_to_blame is False
    usual = examine(run_of(steps(FALLING, scale=[32.0] * 30 + [64.0] * 30), "fp16-amp", scaler={"growth_factor": 2.0}))
    assert "scaler-set-anew" in [each.rule for each in usual.ruled_out]


def test_that_outputs_that_grow_evenly_are_foretold_to_overflow_only_where_steps_are_left() -> None:
    config = RunConfig(precision="fp16-amp", task=OWN_LOOP)
    for growth, total, told in ((0.06, 400, True), (0.06, 90, False), (0.0, 400, False)):
        live = LiveRun(config, run_id="1", created="", machine={}, environment={})
        rows = [
            tensors(i, "activation", {"fc": {"amax": 1001 * 2 ** (growth * i), "amin_nonzero": 1e-3}})
            for i in range(1, 60, 2)
        ]
        exact = [row.__class__(**{**{f: getattr(row, f) for f in row.__slots__}, "dtypes": ("fp16",)}) for row in rows]
        live.extend([RunStarted(0.0, total, 0, "cpu"), *steps(FALLING), *exact])
        rules = [each.rule for each in examine(live).findings]
        assert ("shrinking-headroom" in rules) is told, (growth, total, rules)


def test_that_fp8_with_delayed_scaling_is_judged_by_the_history() -> None:
    for spike, rules in ((40.0, ["delayed-scale"]), (1.2, [])):
        rows = [
            tensors(i, "activation", {"fc": {"amax": spike if i % 5 == 0 else 1.0, "amin_nonzero": 0.01}})
            for i in range(1, 60, 4)
        ]
        options = {"fp8_amax": "delayed", "fp8_history": 16}
        config = RunConfig.model_validate({"precision": "fp8", "precision_options": options})
        live = LiveRun(config, run_id="1", created="", machine={}, environment={})
        live.extend([RunStarted(0.0, 0, 0, "cpu"), *steps(FALLING), *rows, RunEnded(9.0, "completed", "")])
        assert [rule for rule in problems(live) if rule == "delayed-scale"] == rules


def test_that_an_infinity_behind_a_finite_loss_is_told_but_a_mask_is_not() -> None:
    for value, severity in (("pos_inf", "info"), ("neg_inf", "")):
        rows = [tensors(i, "activation", {"fc": {"amax": 1.0, value: 3.0}}) for i in range(1, 60, 6)]
        found = [each for each in examine(run_of([*steps(FALLING), *rows])).findings if each.rule == "hidden-infinity"]
        assert [each.severity for each in found] == ([severity] if severity else [])


def test_that_weights_that_begin_as_nan_are_not_put_down_to_a_step() -> None:
    rows = [tensors(0, "weight", {"a.weight": {"l2": 1.0}, "b.weight": {"nan": 5.0}})]
    [found] = examine(run_of([*rows, *steps([math.nan] * 20, grad_norm=[math.nan] * 20)])).problems
    assert (found.rule, found.module, found.precision_is_to_blame) == ("weights-not-finite", "b", False)
    assert found.tensors == ("b.weight",)  # where Show me leads


def test_that_an_integer_model_is_compared_with_the_trained_one() -> None:
    for integer, rules in ((0.9, ["integer-drift"]), (0.31, [])):
        facts = {"evaluation": {"fake": {"loss": 0.3}, "integer": {"loss": integer}}}
        assert problems(run_of(steps(FALLING), "int8-qat", quantised=facts)) == rules


def test_that_an_embedding_in_bf16_is_judged_by_how_often_an_entry_occurs() -> None:
    for positions, told in ((65 * 200, True), (65 * 4, False)):
        described = ModelDescribed(
            0.1, (ModuleInfo("wte", "torch.nn.modules.sparse.Embedding", 0),),
            (ParameterInfo("wte.weight", "parameter", "bf16", (65, 8), True, True, 0),),
        )  # fmt: skip
        rows = [tensors(i, "activation", {"wte": {"count": 8.0 * positions}}) for i in (1, 9)]
        census = {"operations": {"embedding_dense_backward": {"bf16": 1}}}
        found = examine(run_of([described, *steps(FALLING), *rows], "bf16-pure", census=census))
        assert ("embedding-accumulation" in [each.rule for each in found.findings]) is told


def test_that_the_rate_to_try_is_a_tenth_of_the_one_that_was_set_and_an_estimate() -> None:
    rates = [0.001, 0.01, *[0.1] * 18]
    losses = [2.0, 2.5, 4.0, 40.0, *[math.nan] * 16]
    rows = [tensors(step, kind, {"w": {"l2": size, "changed": 1.0}}) for step in (1, 2, 3)
            for kind, size in (("weight", 1.0), ("update", 0.4))]  # fmt: skip
    [found] = examine(run_of([*steps(losses, lr=rates), *rows])).problems
    assert (found.rule, found.certainty) == ("divergence", "estimate")
    assert found.config_change == {"optimizer.lr": pytest.approx(0.01)}


def test_that_each_rule_has_a_name_of_its_own() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert {rule.group for rule in RULES} == {"A", "B", "C", "D", "E"}


def test_that_each_rule_is_described_for_users() -> None:
    described = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    asks_for_causes = {"non-finite"}  # whose findings have the names of the causes
    assert [rule.name for rule in RULES if f"`{rule.name}`" not in described and rule.name not in asks_for_causes] == []


def test_that_small_numbers_of_fp16_are_not_taken_for_bf16() -> None:
    """Below 2^-14 numbers of FP16 have no more digits than those of BF16: the recorded dtype decides."""
    stats = np.full((3, 1, len(TENSOR_STATS)), np.nan)
    stats[:, 0, TENSOR_STATS.index("amax")] = np.array([0.08837890625] * 3)
    stats[:, 0, TENSOR_STATS.index("amin_nonzero")] = np.array([132, 136, 171]) * 2.0**-24
    steps = np.arange(3)
    table = RecordedRows("weight", ("w",), steps, stats, np.ones((3, 1), np.int64))
    assert table.formats == ["bf16"]
    assert replace(table, dtypes=("fp16",)).formats == ["fp16"]
    assert replace(table, dtypes=("fp32",)).formats == ["bf16"]  # emulated


@pytest.mark.parametrize(("order", "undecided"), [(-1, True), (0, False)])
def test_that_parameters_left_out_need_the_order_of_the_first_backward_pass(order: int, undecided: bool) -> None:
    def parameter(name: str, updated: bool) -> ParameterInfo:
        return ParameterInfo(name, "parameter", "fp32", (4, 4), True, updated, backward_order=order)

    described = ModelDescribed(0.0, (), (parameter("body.weight", True), parameter("head.weight", False)))
    result = examine(run_of([described, *steps(FALLING)]))
    needs = {each.rule: each.needs for each in result.undecided}
    assert ("parameters-left-out" in needs) is undecided
    assert ("parameters-left-out" in {each.rule for each in result.findings}) is not undecided
    if undecided:
        assert "torch.compile" in needs["parameters-left-out"]


def test_that_gradients_that_are_not_finite_are_not_lost_below_the_range() -> None:
    """All elements are NaN, so that none is left from which a largest magnitude or a norm could be taken."""
    events = [*steps([4.0, *[math.nan] * 29], grad_norm=[math.nan] * 30)]
    for step in range(1, 30, 3):
        values = {"amax": 0.0, "l2": 0.0, "amin_nonzero": math.inf, "nan": 100.0}
        events.append(tensors(step, "gradient", {"w": values}))
        events.append(tensors(step, "activation", {"a": {"amax": 1.0 + 2.0**-10 * step, "amin_nonzero": 2.0**-9}}))
    result = examine(run_of(events, "fp16-amp"))
    assert "gradient-underflow" not in {each.rule for each in result.findings}


@pytest.mark.parametrize(("amax", "hinted"), [(2028.5, True), (200.25, False)])
def test_that_nan_behind_large_numbers_in_fp16_is_placed_between_the_layers(amax: float, hinted: bool) -> None:
    """Scores of attention that overflow are computed between two linear layers, of which neither is at fault."""
    linear = "torch.nn.modules.linear.Linear"
    events = [
        *steps([*FALLING[:9], math.nan]),
        tensors(5, "activation", {"qkv": {"amax": 1000.5, "amin_nonzero": 0.25}, "head": {"amax": 2.5}}),
        tensors(10, "activation", {"qkv": {"amax": amax}, "head": {"nan": 9.0, "amax": 1.5}}),
        ModelDescribed(0.0, (ModuleInfo("qkv", linear, 0), ModuleInfo("head", linear, 1)), ()),
    ]
    found = diagnose(run_of(events, "fp16-amp"))[0]
    assert found.title.startswith("NaN appears between the outputs of qkv and head in step 10")
    assert found.precision_is_to_blame is None
    assert any("4.11e+06" in each.text for each in found.evidence) is hinted


@pytest.mark.parametrize("octaves", [12, 1])
def test_that_all_steps_lost_to_a_raised_scale_count(octaves: int) -> None:
    """Each growth by 2^12 costs twelve steps, of which only the first follows the rise."""
    period = 6 + octaves
    lost = [max(i % period - 5, 0) for i in range(60)]
    scales = [2.0 ** (12 + (octaves + 1 - each if each else 0)) for each in lost]
    run = run_of(steps(FALLING, scale=scales, skipped=[float(each > 0) for each in lost]), "fp16-amp")
    assert ("scale-probing" in {found.rule for found in examine(run).problems}) is (octaves == 12)


@pytest.mark.parametrize(("epochs", "anew"), [(5, True), (1, False)])
def test_that_searches_for_a_scale_that_recur_tell_of_scalers_made_anew(epochs: int, anew: bool) -> None:
    own = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    skipped = own * epochs + [0.0] * (60 - len(own) * epochs)
    facts = {"scaler": {"enabled": True, "used": False}, "census": {"operations": {
        "_amp_foreach_non_finite_check_and_unscale_": {"fp32": 1}}}}  # fmt: skip
    found = examine(run_of(steps([2.0] * 60, skipped=skipped), "fp16-amp", **facts))
    [result] = [each for each in found.findings if each.rule == "unused-scaler"]
    assert result.title.startswith("The loop seems to make its loss scaler anew: 5 times") is anew
