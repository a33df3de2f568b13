"""The rules of verdicts, each a row: what was measured, and the word that is said of it."""

import math

import pytest

from precgui.runs.verdict.interim_analyses import DEFAULT_LOOKS, InterimAnalyses, planned_looks
from precgui.runs.verdict.judge import (
    Criterion,
    Sample,
    Verdict,
    judge,
    judge_failures,
    limit_of,
    skewness,
    success_text,
)

LOST = Criterion("accuracy_lost", -1, 0.005, "one seed: not a measurement of accuracy")
SPEED = Criterion("speedup", 1, math.log(2.0), "one seed: not a measurement of speed", log=True)
MEMORY = Criterion(
    "memory_saved", -1, math.log(0.7), "one seed: not a measurement of memory", log=True, repeatable=True
)
ENERGY = Criterion(
    "energy_saved", -1, math.log(0.8), "one seed: not a measurement of energy", log=True, systematic=math.log1p(0.05)
)


def _one(
    goal: Criterion, values: tuple[float, ...], looks: InterimAnalyses = DEFAULT_LOOKS, grain: float = 0.0
) -> Verdict:
    return judge(goal, {"arm": Sample(values)}, looks, grain)["arm"]


@pytest.mark.parametrize(
    ("goal", "values", "word", "n"),
    [
        (LOST, (0.000, 0.001, 0.000, 0.001, 0.000), "met", 5),
        (LOST, (0.020, 0.021, 0.019, 0.022, 0.020), "missed", 5),
        (LOST, (0.004, 0.006, 0.005, 0.007, 0.003), "undecided", 5),
        (LOST, (-0.030, -0.028, -0.031, -0.029, -0.030), "met", 5),  # better than the baseline is no loss
        (LOST, (0.000,), "not measurable", 1),
        (LOST, (0.000, 0.000), "undecided", 2),
        (LOST, (0.000,) * 4, "undecided", 4),
        (LOST, (0.000,) * 5, "met", 5),
        (LOST, (0.000,) * 5 + (0.9,) * 4, "met", 5),  # seeds after a look wait for the next one
        (LOST, (0.000,) * 5 + (0.01,) * 5, "undecided", 10),
        (LOST, (), "not measurable", 0),
        (SPEED, tuple(math.log(x) for x in (2.5, 2.6, 2.4, 2.5, 2.7)), "met", 5),
        (SPEED, tuple(math.log(x) for x in (1.0, 1.1, 0.9, 1.0, 1.05)), "missed", 5),
        (MEMORY, (math.log(0.6),), "met", 1),
        (MEMORY, (math.log(0.8),) * 3, "missed", 3),
        (MEMORY, (math.log(0.6), math.log(0.61), math.log(0.6)), "undecided", 3),
        (ENERGY, (math.log(0.7),) * 5, "met", 5),
        (ENERGY, (math.log(0.79),) * 5, "undecided", 5),  # nearer than the error of the sensor
        (ENERGY, (math.log(0.9),) * 5, "missed", 5),
    ],
)
def test_that_each_rule_says_its_word(goal: Criterion, values: tuple[float, ...], word: str, n: int) -> None:
    verdict = _one(goal, values)
    assert (verdict.verdict, verdict.n) == (word, n)


def test_that_one_seed_is_not_a_measurement_of_accuracy() -> None:
    verdict = _one(LOST, (0.001,))
    assert verdict.text == "not measurable: one seed: not a measurement of accuracy"
    assert (verdict.value, verdict.ci, verdict.seeds_needed) == (0.001, None, 4)


def test_that_undecided_names_the_seeds_that_are_missing() -> None:
    assert _one(LOST, (0.0, 0.0, 0.0)).text == "undecided: about 2 more seeds"
    assert _one(LOST, (0.0, 0.0, 0.0, 0.0)).text == "undecided: about 1 more seed"
    assert _one(LOST, (-0.0015, 0.0055, 0.000, 0.004, 0.002)).seeds_needed == 5  # not before the next look


def test_that_a_mean_at_the_border_is_never_promised_a_verdict() -> None:
    verdict = _one(LOST, (0.004, 0.006, 0.005, 0.007, 0.003))
    assert verdict.seeds_needed is None
    assert verdict.text == "undecided"
    assert "a thousand seeds would not tell" in verdict.why


def test_that_a_ratio_is_given_back_as_a_ratio() -> None:
    verdict = _one(SPEED, tuple(math.log(x) for x in (2.5, 2.6, 2.4, 2.5, 2.5)))
    assert verdict.margin == pytest.approx(2.0)
    assert verdict.value == pytest.approx(2.499, abs=1e-3)
    low, high = verdict.ci
    assert 2.0 < low < verdict.value < high < 3.0


def test_that_the_interval_and_the_word_agree() -> None:
    for shift in range(-20, 30):
        values = tuple(shift / 1000 + noise for noise in (-0.002, 0.001, 0.0, 0.002, -0.001))
        verdict = _one(LOST, values)
        low, high = verdict.ci
        expected = "met" if high < 0.005 else "missed" if low > 0.005 else "undecided"
        assert verdict.verdict == expected


def test_that_what_cannot_be_measured_says_why_and_leaves_the_others_alone() -> None:
    emulated = Sample(why="emulated on this machine")
    verdicts = judge(SPEED, {"fp8": emulated, "bf16": Sample((1.0, 1.1, 1.0, 0.9, 1.0))})
    assert verdicts["fp8"].text == "not measurable: emulated on this machine"
    assert verdicts["bf16"].verdict == "met"


def test_that_many_arms_need_more_evidence_than_one() -> None:
    values = (-0.001, 0.004, 0.0015, 0.003, 0.0)
    assert _one(LOST, values).verdict == "met"
    family = {f"arm {i}": Sample(values) for i in range(8)}
    assert {verdict.verdict for verdict in judge(LOST, family).values()} == {"undecided"}


def test_that_the_grain_keeps_equal_accuracies_from_being_certain() -> None:
    tight = Criterion("accuracy_lost", -1, 0.0005, "one seed: not a measurement of accuracy")
    assert _one(tight, (0.0,) * 5).verdict == "met"
    assert _one(tight, (0.0,) * 5, grain=1 / 359).verdict == "undecided"


def test_that_a_plan_looks_at_5_and_10_seeds_or_at_its_own_number_and_its_double() -> None:
    assert [planned_looks(n).seeds for n in (1, 2, 5, 10)] == [(5, 10)] * 4
    assert [planned_looks(n).seeds for n in (3, 8)] == [(3, 6), (8, 16)]
    assert DEFAULT_LOOKS.alpha == 0.0294
    assert InterimAnalyses((8,)).alpha == 0.05
    assert [DEFAULT_LOOKS.reached(n) for n in (4, 5, 9, 10, 30)] == [None, 5, 5, 10, 10]
    assert [DEFAULT_LOOKS.after(n) for n in (4, 5, 9, 10)] == [5, 10, 10, None]


@pytest.mark.parametrize("seeds", [(), (2,), (5, 5), (10, 5), (3, 4, 5, 6)])
def test_that_looks_that_cannot_be_are_refused(seeds: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="rising numbers"):
        InterimAnalyses(seeds)


def test_that_failures_are_counted_with_an_exact_interval() -> None:
    assert success_text(0, 5) == "0 of 5 failed: less than 45 %"
    assert success_text(5, 5) == "5 of 5 failed: more than 55 %"
    assert success_text(2, 8) == "2 of 8 failed: 3 to 65 %"
    assert judge_failures(0, 5, 0, 5).verdict == "met"
    assert judge_failures(1, 5, 0, 5).verdict == "missed"
    assert judge_failures(0, 0, 0, 5).verdict == "not measurable"


def test_that_one_run_that_came_through_does_not_meet_a_target_on_failures() -> None:
    one = judge_failures(0, 1, 0, 5)
    assert one.text == "undecided: about 4 more seeds"
    assert judge_failures(1, 1, 0, 5).verdict == "missed"


def test_that_a_verdict_has_the_level_of_its_interval_and_says_where_differences_are_skewed() -> None:
    even, skewed = (-0.002, -0.001, 0.0, 0.001, 0.002), (0.0, 0.0001, 0.0, 0.0002, 0.004)
    goal = Criterion("accuracy_lost", -1, 0.01, "one seed: not a measurement of accuracy")
    verdicts = judge(goal, {"even": Sample(even), "skewed": Sample(skewed)})
    assert sorted(verdict.level for verdict in verdicts.values()) == pytest.approx([0.9412, 0.9706])
    assert verdicts["even"].caution == ""
    assert "skewness +1.5" in verdicts["skewed"].caution
    assert judge(goal, {"skewed": Sample(skewed)}, grain=0.004)["skewed"].caution == ""  # two steps of the metric


def test_that_the_limits_of_skewness_are_those_of_the_published_points() -> None:
    """5 to 7: D'Agostino and Tietjen 1973; 8 and more: D'Agostino 1970, by scipy.stats.skewtest of SciPy 1.17."""
    assert limit_of(4) == math.inf
    for n, limit in ((5, 1.207), (6, 1.239), (7, 1.231), (8, 1.1871), (10, 1.1460), (20, 0.9403), (30, 0.8056)):
        assert limit_of(n) == pytest.approx(limit, abs=5e-4)
    assert skewness([1.0, 1.0, 1.0, 1.0, 2.0]) == pytest.approx(1.5)
