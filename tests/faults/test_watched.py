"""Mistakes that single operations betray are named, the seeds in turns; their corrections are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.odd_loops import judged
from tests.faults.published_faults import Open
from tests.faults.turns import in_turns
from tests.faults.watched_faults import WATCHED


@pytest.mark.parametrize(("name", "seed"), in_turns(WATCHED, [0, 1]))
def test_that_a_mistake_of_a_single_operation_is_named_and_its_correction_is_not(
    name: str, seed: int, tmp_path: Path
) -> None:
    fault = WATCHED[name]
    for broken in (True, False):

        def loop(opened: Open, broken: bool = broken) -> None:
            fault.train(opened, broken)

        problems = judged(loop, tmp_path / f"{broken}.h5", seed=seed).problems
        answers = {(each.rule, each.precision_is_to_blame) for each in problems}
        assert answers == ({(fault.rules[0], fault.blame)} if broken else set()), [each.title for each in problems]
