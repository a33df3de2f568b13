"""Mistakes of loops and models are named with their cause, and the fix that the finding names mends the training."""

from __future__ import annotations

from pathlib import Path

import pytest

from precgui.config import RecordConfig
from tests.faults.loop_faults import LOOPS
from tests.faults.odd_loops import judged
from tests.faults.published_faults import Open


@pytest.mark.parametrize("name", LOOPS)
def test_that_a_mistake_is_named_and_its_fix_mends_the_training(name: str, tmp_path: Path) -> None:
    planted, scores = LOOPS[name], []
    for broken in (True, False):

        def loop(opened: Open, broken: bool = broken) -> None:
            scores.append(planted.train(opened, broken))

        problems = judged(loop, tmp_path / f"{broken}.h5", RecordConfig()).problems
        told = [(each.rule, each.precision_is_to_blame, each.title, each.evidence[0].text) for each in problems]
        if not broken:
            assert told == []
            continue
        assert [each[:2] for each in told] == [(planted.rule, planted.blame)], told
        assert planted.says in problems[0].title and planted.cures in problems[0].fix, (
            problems[0].title,
            problems[0].fix,
        )
    assert not scores[0] <= scores[1], scores  # the loss on new data; NaN is worse, too
