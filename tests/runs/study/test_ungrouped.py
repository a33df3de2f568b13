"""Names of groups of runs that belong to no study."""

from __future__ import annotations

import re

from precgui.config import build
from precgui.runs.study.ungrouped import ungrouped_figures
from tests.runs.synthetic import live_run, synthetic_events


def test_that_the_name_of_a_group_has_no_words_of_one_language() -> None:
    """It is a key, too, so that nothing translates it: "and 2 other settings" stood in the Chinese window."""
    rates = {"optimizer": {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.01}, "seed": 1, "train": {"epochs": 3}}
    runs = [live_run(synthetic_events(60), build(tree)) for tree in ({}, rates | {"title": "one"})]
    names = [each.group for each in ungrouped_figures(runs)]
    assert len(set(names)) == 2
    assert all(re.fullmatch(r"fp32( [\w.]+=\S+){3} \+\d \([0-9a-f]{6}\)", name) for name in names), names
