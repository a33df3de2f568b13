"""The places of the runs of a study, in words."""

from __future__ import annotations

from precgui.runs.study.groups import make_study
from precgui.runs.study.places import place_notes
from tests.runs.study.sample_runs import figures


def test_that_a_study_says_which_place_trained_which_seeds() -> None:
    where = {0: "gpu1", 1: "gpu2", 2: "gpu1"}
    runs = [figures(group, seed, place=where[seed]) for seed in where for group in ("fp32", "bf16-amp")]
    expected = "All runs of a seed were trained at one place, and are compared there (gpu1: seeds 0, 2; gpu2: seed 1)."
    assert place_notes(runs) == [expected]
    assert expected in make_study(runs).notes


def test_that_a_seed_of_several_places_is_named() -> None:
    runs = [figures("fp32", 3, place="gpu1"), figures("bf16-amp", 3), figures("fp32", 4), figures("bf16-amp", 4)]
    assert place_notes(runs) == [
        "All runs of a seed were trained at one place, and are compared there (this machine: seed 4).",
        "The runs of seed 3 were trained at several places: their differences are also those of machines.",
    ]


def test_that_one_place_for_all_needs_no_word() -> None:
    assert place_notes([figures("fp32", 1), figures("bf16-amp", 1)]) == []
    assert place_notes([figures("fp32", 1, place="gpu1"), figures("bf16-amp", 2, place="gpu1")]) == []
