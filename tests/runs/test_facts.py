"""All that is recorded of a run as facts to read, the page of a run, and how its arithmetic is named."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import Any

import pytest

from precgui import words
from precgui.config import build
from precgui.events import Incident, RunEnded, RunStarted, StepDone
from precgui.runs.caveats import SPEED_CAVEAT, arithmetic_of, as_sentence
from precgui.runs.diagnosis import blame_sentence, examine
from precgui.runs.errors import RunFileError
from precgui.runs.facts import RunFact, bytes_text, run_facts, seconds_text, setting_text, settings, wait_text
from precgui.runs.live import LiveRun
from precgui.runs.page import page, write_page
from precgui.runs.recorded_facts import rows_of

SLOW = "this CPU has no fast BF16: a product takes 50 times its FP32 time; the numbers are BF16's, the speed is not"


def a_run(engine: dict[str, Any] | None = None, incidents: tuple[Incident, ...] = (), title: str = "") -> LiveRun:
    config = build({"title": title, "precision": "bf16-amp", "optimizer": {"lr": 0.25}})
    run = LiveRun(
        config, run_id="1", created="2026-01-01", machine={"host": "h", "memory_bytes": 3 << 30}, environment={}
    )
    steps = [StepDone(n, 0.1 * n, 1.0 / n, 1.0, False, 0.05, 1.0, 0.09, 0.01, 64, float("nan")) for n in range(1, 9)]
    run.extend([RunStarted(0.0, 8, 4, "cpu", engine or {}), *incidents, *steps, RunEnded(1.0, "completed")])
    return run


def values(run: LiveRun) -> dict[str, str]:
    """Every fact by its name, those inside others too."""

    def walk(facts: tuple[RunFact, ...]) -> dict[str, str]:
        found: dict[str, str] = {}
        for fact in facts:
            found |= {fact.name: fact.value, **walk(fact.facts)}
        return found

    return {name: value for group in run_facts(run) for name, value in walk(group.facts).items()}


def test_that_slow_and_emulated_arithmetic_are_told_from_the_record() -> None:
    emulated = Incident(0.0, 0, "emulated", "info", "FP16 is emulated in 4 layers; speed says nothing")
    assert arithmetic_of(a_run()).arithmetic == "native"
    assert arithmetic_of(a_run()).caveat == ""
    slow = arithmetic_of(a_run({"notes": [SLOW]}))
    assert (slow.arithmetic, slow.memory_counts) == ("slow", True)
    assert slow.caveat.startswith("This CPU has no fast BF16")
    found = arithmetic_of(a_run({"notes": [SLOW]}, (emulated, emulated)))
    assert (found.arithmetic, found.memory_counts, len(found.sentences)) == ("emulated", False, 1)
    bare = arithmetic_of(a_run({}, (Incident(0.0, 0, "emulated", "info", "rounded"),)))
    assert bare.caveat == f"Rounded. {SPEED_CAVEAT}"


def test_that_a_sentence_leaves_the_name_of_a_format_as_it_is_written() -> None:
    assert as_sentence("e4m3fn is emulated in 1 layer") == "e4m3fn is emulated in 1 layer."
    assert as_sentence("rounded first") == "Rounded first."


def test_that_every_setting_is_there_and_the_changed_ones_are_marked() -> None:
    found = {fact.name: fact for fact in settings(build({"precision": "bf16-amp", "optimizer": {"lr": 0.25}}))}
    assert found["Precision"].changed
    assert found["Optimizer"].value == "1 changed"
    lr = next(fact for fact in found["Optimizer"].facts if fact.name == "Learning rate")
    assert (lr.value, lr.changed) == ("0.25", True)
    assert lr.hint.startswith("optimizer.lr: ")
    assert not found["Seed"].changed


def test_that_a_caveat_stands_beside_each_figure_of_slow_arithmetic() -> None:
    run = a_run({"notes": [SLOW], "power_sensors": [{"name": "NVML", "found": False, "reason": "no driver."}]})
    found = values(run)
    assert found["Training loss, mean of the last 4 steps"] == "0.1586"
    assert found["Step time"] == "90 ms (slow here)"
    assert found["Peak memory"] == "not measured"
    assert found["Energy"] == "not measured: no driver"
    assert found["Note 1"].startswith("This CPU has no fast BF16")
    assert found["memory"] == "3 GiB"


def test_that_a_census_and_a_certificate_are_written_out() -> None:
    census = {
        "flops": 1e9,
        "formats": {"bf16": 0.75, "fp32": 0.25},
        "modules": {"head": {"share": 1.0, "bf16": 1.0}},
        "operations": {"addmm": {"bf16": 2}},
    }
    certificate = {"gemm_error": {"bf16": 0.003, "fp16": "refused"}, "gemm_size": 256, "switches": {"a.b": True}}
    found = values(a_run({"census": census, "certificate": certificate}))
    assert found["Multiplied in bf16"] == "75 %"
    assert found["head"] == "100 % of the products: bf16 100 %"
    assert found["addmm"] == "2 in bf16"
    assert found["Error of a product in bf16"] == "0.003"
    assert found["Error of a product in fp16"] == "refused"
    assert found["a.b"] == "yes"


def test_that_the_cost_of_the_record_is_said() -> None:
    assert values(a_run({"record": {"cost_share": 0.0589}}))["Measuring tensors took"].startswith("5.9 % of the time")
    for odd in ({}, {"record": 3}, {"record": {"cost_share": "much"}}, {"record": {"cost_share": float("nan")}}):
        assert "Measuring tensors took" not in values(a_run(odd))


@pytest.mark.parametrize("odd", [None, 3, "text", [1], {"formats": 3, "modules": {"m": 4}, "operations": {"o": None}}])
def test_that_a_damaged_record_raises_nothing(odd: Any) -> None:
    keys = ("census", "certificate", "memory", "data", "power_sensors", "notes", "record")
    run = a_run(dict.fromkeys(keys, odd))
    assert values(run)["Status"] == "completed"
    assert arithmetic_of(run).arithmetic == "native"
    assert "</html>" in page(run)


def test_that_values_read_as_text() -> None:
    assert [setting_text(value) for value in (None, "", [], True, 0.05, ["a", "b"])] == [
        "–",
        "–",
        "–",
        "yes",
        "0.05",
        "a, b",
    ]
    assert [seconds_text(value) for value in (None, 2e-5, 0.09, 4.79, 600.0, 36000.0)] == [
        "not measured", "20 µs", "90 ms", "4.79 s", "10 min", "10 h",
    ]  # fmt: skip
    assert [bytes_text(value) for value in (None, 0, 1023, 1536, 5 << 30)] == [
        "not measured", "0 bytes", "1023 bytes", "1.5 KiB", "5 GiB",
    ]  # fmt: skip


def test_that_the_page_of_a_run_holds_its_facts_and_no_markup_of_others(tmp_path: Path) -> None:
    run = a_run({"notes": [SLOW]}, title="<script>alert(1)</script>")
    (path,) = write_page(run, tmp_path / "run.html")
    text = path.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert 'class="caveat"' in text
    assert "Training loss, 1 to 0.125, steps 1 to 8" in text
    with pytest.raises(RunFileError, match="already exists"):
        write_page(run, path)


def test_that_the_page_of_a_run_begins_with_its_verdict_proof_and_fix() -> None:
    healthy = page(a_run())
    assert healthy.index("No fault found. ") < healthy.index("Training loss, 1 to 0.125")
    assert 'class="finding' not in healthy
    lost = [StepDone(n, 0.1 * n, math.nan, 1.0, True, 0.05, math.nan, 0.09, 0.01, 64, math.nan) for n in range(9, 40)]
    run = a_run()
    run.extend(lost)
    (problem, *_) = examine(run).problems
    text = page(run)
    for expected in (problem.title, problem.steps, problem.evidence[0].text, f"Fix: {problem.fix}"):
        assert escape(expected) in text
    assert text.index(escape(problem.title)) < text.index("Training loss, ") < text.index("<details")
    assert escape(blame_sentence(problem)) in text


def test_that_changes_of_the_precision_stand_on_the_page() -> None:
    changes = [{"step": 5, "precision": "bf16-amp", "trigger": "step:5"}, "damaged"]
    run = a_run({"precision_changes": changes})
    assert values(run)["From step 5"] == "bf16-amp (step:5)"
    assert "Changes of the precision" in page(run)
    assert all(group.title != "Changes of the precision" for group in run_facts(a_run()))


def test_that_each_precision_of_a_schedule_has_a_certificate_of_its_own() -> None:
    tried = {"gemm_error": {"fp32": 3e-7}, "gemm_size": 128, "fp32_products": "fp32", "switches": {}}
    change = {"step": 5, "precision": "bf16-amp", "trigger": "step:5", "certificate": tried}
    titles = [group.title for group in run_facts(a_run({"certificate": tried, "precision_changes": [change]}))]
    assert "Arithmetic as tried on the device before step 5" in titles
    assert "Arithmetic as tried on the device from step 5 on, bf16-amp" in titles
    assert "Arithmetic as tried on the device" in [group.title for group in run_facts(a_run({"certificate": tried}))]


def test_that_each_precision_of_a_schedule_has_a_census_of_its_own() -> None:
    counted = {"flops": 8.0, "formats": {"bf16": 1.0}, "modules": {}, "operations": {}}
    run = a_run({"precision_changes": [{"step": 5, "precision": "bf16-amp", "trigger": "step:5", "census": counted}]})
    groups = {group.title: group.facts for group in run_facts(run)}
    assert groups["Formats counted in step 5, bf16-amp"][0] == RunFact("Multiplied in bf16", "100 %")


def test_that_a_record_that_cost_more_than_its_budget_says_so_in_one_sentence() -> None:
    run = a_run({"record": {"cost_share": 0.125}})
    assert values(run)["Cost of the record"] == (
        "Measuring tensors took 12 % of the time of the steps, more than the budget of 3 %: each kind is measured 20 "
        "times at least, however short the run."
    )
    for share in (0.03, 0.01, float("nan"), float("inf"), "much"):
        assert "Cost of the record" not in values(a_run({"record": {"cost_share": share}}))


def test_that_names_of_modules_operations_and_keys_are_not_translated() -> None:
    run = a_run({"census": {"formats": {"fp32": 1.0}, "flops": 4, "modules": {"loss": {"fp32": 1.0}},
                            "operations": {"sum": {"fp32": 3}}}, "recorder": {"weight": 1}})  # fmt: skip
    words.use("zh_CN")
    try:
        assert words.translated("loss") != "loss"
        names = [
            words.translated(inside.name) for group in run_facts(run) for fact in group.facts for inside in fact.facts
        ]
    finally:
        words.use("en")
    assert {"loss", "sum", "weight"} <= {*names}


def test_that_only_the_objects_in_a_list_of_a_file_are_its_rows() -> None:
    assert rows_of([{"step": 1}, 2, None, {"step": 3}]) == [{"step": 1}, {"step": 3}]
    for other in (5, "given", {"step": 1}, None, 0.5):
        assert rows_of(other) == []


def test_that_the_result_of_a_run_is_shown_without_being_asked_for() -> None:
    """It has more lines than other groups that are folded for it, and stood folded above settings that did not."""
    result = run_facts(a_run())[0]
    assert result.title == "Result" and len(result.facts) > 10 and result.open


def test_that_the_loss_of_one_step_is_no_mean_of_steps() -> None:
    """A loop of one's own has no epochs: it had "the mean of the last 1 steps"."""
    run = LiveRun(build({"task": "own-loop"}), run_id="7f", created="", machine={}, environment={})
    run.extend([RunStarted(0.0, 0, 0, "cpu"), StepDone(1, 0.1, 2.0, 1.0, False, 0.1, 1.0, 0.1, 0.0, 8, math.nan)])
    assert values(run)["Training loss, last step"] == "2"


def test_that_a_time_to_wait_is_as_precise_as_an_estimate_is() -> None:
    """A run took "about 4.14 s", of which the last digits were noise; less than half a second was 0 µs."""
    waits = (0.043, 0.43, 4.14, 22.01, 59.6, 200.0)
    assert [wait_text(seconds) for seconds in waits] == ["40 ms", "400 ms", "4 s", "22 s", "60 s", "3 min"]
