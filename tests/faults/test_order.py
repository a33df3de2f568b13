"""Mixed precision in a wrong order is named, the seeds in turns; the corrections and odd loops are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from precgui.config import RecordConfig
from tests.faults.odd_loops import ALL, judged
from tests.faults.order_faults import ORDER, RIGHT
from tests.faults.published_faults import Open
from tests.faults.turns import in_turns


class _NoRecorder:
    def step(self, *_: object) -> None:
        """Record nothing."""


@pytest.mark.parametrize(("name", "seed"), in_turns(ORDER, [0, 1]))
def test_that_a_wrong_order_is_named_its_correction_is_not_and_watching_changes_no_bit(
    name: str, seed: int, tmp_path: Path
) -> None:
    fault = ORDER[name]
    ends: dict[bool, float] = {}
    for broken in (True, False):

        def loop(opened: Open, broken: bool = broken) -> None:
            ends[broken] = fault.train(opened, broken)

        problems = judged(loop, tmp_path / f"{broken}.h5", ALL if seed else RecordConfig(), seed).problems
        answers = {(each.rule, each.precision_is_to_blame) for each in problems}
        assert answers == ({(fault.rules[0], fault.blame)} if broken else set())
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        assert fault.train(lambda *_: _NoRecorder(), True) == ends[True]


@pytest.mark.parametrize("name", RIGHT)
def test_that_a_right_order_is_left_alone(name: str, tmp_path: Path) -> None:
    assert [(each.rule, each.title) for each in judged(RIGHT[name], tmp_path / "run.h5").problems] == []
