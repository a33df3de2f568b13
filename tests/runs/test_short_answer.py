"""Two runs in one sentence: the metric, the memory, the speed, and whether more seeds would decide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from precgui.events import Metric
from precgui.runs.compare import compare
from precgui.runs.compared import Compared, RunComparison
from precgui.runs.short_answer import SEEDS, short_answer
from tests.gui.plotted import training_run

ACCURACY = {"name": "accuracy", "title": "Accuracy", "unit": "%", "about": "", "higher_is_better": True}


def row(name: str, **changes: Any) -> Compared:
    plain = compare([training_run(name, 10)]).runs[0]
    metric = {**plain.metric, **{key: value for key, value in ACCURACY.items() if key in plain.metric}}
    Metric(**metric)
    known = {"run": name, "precision": name, "metric": metric, "accuracy_delta": 0.0, "accuracy_grain": 1 / 359}
    return replace(plain, **{**known, "time_s": 20.0, "memory_ratio": 1.0, "speedup": 1.0, **changes})


def told(*others: Compared, wanted: str = "") -> str:
    base = row("fp32")
    answer = short_answer(RunComparison("fp32", (base, *others)), wanted)
    return answer.sentence if answer is not None else ""


def test_that_one_sentence_tells_metric_memory_and_speed() -> None:
    other = row("bf16-amp", accuracy_delta=0.002, memory_ratio=0.58, speedup=1.1, speedup_interval=(0.9, 1.3))
    assert told(other) == "bf16-amp beside fp32: same accuracy (one seed), 42 % less memory, speed not different."
    other = replace(other, accuracy_delta=-0.02, memory_ratio=1.2, speedup=0.5, speedup_interval=(0.4, 0.6))
    assert told(other) == ("bf16-amp beside fp32: accuracy -2.00 points (one seed), 20 % more memory, 2 times slower.")


def test_that_nothing_is_told_of_a_figure_that_means_nothing() -> None:
    emulated = row("fp16-amp", emulated=True, costs_withheld="emulated here", speedup=None)
    assert told(emulated).endswith("memory not measurable, speed not measurable (emulated here).")
    assert "speed not decided (too few steps" in told(row("bf16-amp", speedup_interval=None))
    assert told(row("x", withheld="another task")) == "x is not comparable with fp32: another task."
    assert told() == ""


def test_that_a_fair_comparison_comes_before_others_and_the_current_run_before_all() -> None:
    changed, fair = row("a", differs_in={"optimizer.lr": (30, 0.05)}), row("b")
    assert told(changed, fair).startswith("b beside fp32")
    assert told(changed, fair, wanted="a").endswith("They differ in optimizer.lr, too.")


def test_that_more_seeds_are_offered_with_their_time_where_they_would_decide() -> None:
    answer = short_answer(RunComparison("fp32", (row("fp32"), row("bf16-amp", time_s=30.0))))
    assert answer is not None and answer.can_repeat and answer.seconds == SEEDS * 50.0
    answer = short_answer(RunComparison("fp32", (row("fp32"), row("a", differs_in={"seed": (1, 2)}))))
    assert answer is not None and not answer.can_repeat
    twin = row("second", precision="fp32")
    answer = short_answer(RunComparison("fp32", (row("fp32"), twin)))
    assert answer is not None and not answer.can_repeat and answer.sentence.startswith("second beside fp32: ")
