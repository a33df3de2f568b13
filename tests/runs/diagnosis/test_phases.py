"""Runs with a precision schedule: each rule judges a step by the precision that it was made in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from precgui.config import build, change
from precgui.events import Event, Incident, RunEnded, RunStarted, StepDone
from precgui.runs.diagnosis import Finding, examine
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.phases import for_its_phase, phases_of
from precgui.runs.live import LiveRun

CHANGES = [
    {"step": 21, "precision": "fp16-amp", "trigger": "step:21", "census": {"formats": {"fp16": 1.0}}},
    {"step": 41, "precision": "fp32", "trigger": "step:41"},
]
SCHEDULE = {"step:21": "fp16-amp", "step:41": "fp32"}


def run_of(
    losses: Sequence[float], changes: Any, bad: Sequence[int] = (), scales: Sequence[float] = (), **config: Any
) -> LiveRun:
    """A run of an MLP; `bad` are steps that were skipped, with gradients of NaN."""
    live = LiveRun(
        build({"precision_schedule": SCHEDULE, **config}), run_id="1", created="", machine={},
        environment={"precision_changes": changes},
    )  # fmt: skip
    events: list[Event] = [RunStarted(0.0, len(losses), 10, "cpu")]
    for i, loss in enumerate(losses):
        norm = math.nan if i + 1 in bad else 1.0
        scale = scales[i] if len(scales) else 1.0
        events.append(
            StepDone(i + 1, 0.1 * i, loss, scale, i + 1 in bad, 0.1, norm, 0.1, 0.0, 8, math.nan)
        )  # fmt: skip
        if math.isnan(norm):
            events.append(Incident(0.1 * i, i + 1, "nonfinite_gradient", "error", "NaN"))
    live.extend([*events, RunEnded(9.0, "completed", "")])
    return live


FALLING = [2.0 * 0.95**i for i in range(60)]


def finding(run: LiveRun, rule: str) -> Finding | None:
    return next((each for each in examine(run).findings if each.rule == rule), None)


def test_that_phases_are_those_of_the_record_and_senseless_entries_do_not_count() -> None:
    phases = phases_of(run_of(FALLING, [*CHANGES, {"step": "x"}, 3, {"step": 50, "precision": "fp99"}]))
    assert [(each.precision, each.first, each.last) for each in phases] == [
        ("fp32", 1, 20), ("fp16-amp", 21, 40), ("fp32", 41, math.inf),
    ]  # fmt: skip
    assert phases_of(run_of(FALLING, "nonsense"))[0].precision == "fp32"


def test_that_precision_may_be_to_blame_only_for_what_broke_in_fp16() -> None:
    blamed = {}
    for step in (10, 30):
        losses = [*FALLING[: step - 1], *[math.nan] * (61 - step)]
        result = finding(run_of(losses, CHANGES), "non-finite") or finding(
            run_of(losses, CHANGES), "undefined-operation"
        )
        assert result is not None and result.first_step == step
        blamed[step] = result.precision_is_to_blame
    assert blamed == {10: False, 30: None}


def test_that_the_search_for_a_scale_that_begins_later_is_a_warm_up() -> None:
    scales = [1.0] * 20 + [2.0**16, 2.0**15, 2.0**14] + [2.0**13] * 17 + [1.0] * 20
    diagnosis = examine(run_of(FALLING, CHANGES, bad=(21, 22, 23), scales=scales))
    assert not diagnosis.problems
    warm_up = next(each for each in diagnosis.findings if each.rule == "warm-up")
    assert warm_up.first_step == 21 and "(fp16-amp, steps 21 to 40)" in warm_up.title
    ruled_out = {each.rule: each.why for each in diagnosis.ruled_out}
    assert ruled_out["repeated-skips"].endswith("(fp16-amp, steps 21 to 40)")


def test_that_a_change_of_the_precision_is_made_where_the_schedule_sets_it() -> None:
    run = run_of(FALLING, CHANGES)
    phases = phases_of(run)
    proposal = {"precision": "bf16-amp", "optimizer.lr": 0.1}
    late = Finding("x", "error", "x", 30, 40, (), "", 1.0, "", config_change=proposal)
    early = Finding("x", "error", "x", 3, 40, (), "", 1.0, "", config_change=proposal)
    assert for_its_phase(early, phases, SCHEDULE) is early
    assert for_its_phase(late, phases, SCHEDULE).config_change == {
        "optimizer.lr": 0.1, "precision_schedule": "step:21=bf16-amp,step:41=fp32",
    }  # fmt: skip
    text = for_its_phase(late, phases, SCHEDULE).config_change["precision_schedule"]
    fixed = change(run.config, [f"precision_schedule={text}"])
    assert fixed.precision_schedule == {"step:21": "bf16-amp", "step:41": "fp32"} and fixed.precision == "fp32"


def test_that_a_phase_has_its_own_steps_and_its_own_census() -> None:
    parts = Measurements(run_of(FALLING, CHANGES)).parts
    assert [(part.steps[0], part.steps[-1], part.precision) for part in parts] == [
        (1, 20, "fp32"), (21, 40, "fp16-amp"), (41, 60, "fp32"),
    ]  # fmt: skip
    assert parts[1].fact("census") == {"formats": {"fp16": 1.0}} and parts[2].fact("census") == {}


def test_that_a_scale_that_skips_every_step_of_one_precision_is_a_problem_of_that_part() -> None:
    result = finding(
        run_of(FALLING, CHANGES[:1], bad=range(21, 61), scales=[2.0**40] * 60, scaling={"mode": "static"}),
        "scale-too-high",
    )
    assert result is not None and (result.first_step, result.last_step) == (21, 60)
    assert result.precision_is_to_blame and "(fp16-amp, from step 21 on)" in result.title


def test_that_products_of_fp32_are_judged_by_the_certificate_of_their_phase() -> None:
    tried = {"fp32_products": "tf32", "gemm_error": {"fp32": 3e-4}}
    run = run_of(FALLING, [CHANGES[0], {**CHANGES[1], "certificate": tried}])
    result = finding(run, "rounded-products")
    assert result is not None and (result.first_step, result.last_step) == (41, 41)
    assert result.title == "FP32 products run in TF32 (fp32, from step 41 on)"
    healthy = run_of(FALLING, [CHANGES[0], {**CHANGES[1], "certificate": {**tried, "fp32_products": "fp32"}}])
    assert finding(healthy, "rounded-products") is None
