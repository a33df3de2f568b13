"""Loops in mixed precision in a wrong order are named with two seeds, their corrections and odd ones left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from precgui.config import RecordConfig
from tests.faults.odd_loops import ALL, judged
from tests.faults.order_faults import ORDER, RIGHT
from tests.faults.published_faults import Open


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ORDER)
def test_that_a_wrong_order_is_named_and_its_correction_is_not(name: str, seed: int, tmp_path: Path) -> None:
    fault = ORDER[name]
    for broken in (True, False):

        def loop(opened: Open, broken: bool = broken) -> None:
            fault.train(opened, broken)

        problems = judged(loop, tmp_path / f"{broken}.h5", ALL if seed else RecordConfig(), seed).problems
        answers = {(each.rule, each.precision_is_to_blame) for each in problems}
        assert answers == ({(fault.rules[0], fault.blame)} if broken else set())


@pytest.mark.parametrize("name", RIGHT)
def test_that_a_right_order_is_left_alone(name: str, tmp_path: Path) -> None:
    assert [(each.rule, each.title) for each in judged(RIGHT[name], tmp_path / "run.h5").problems] == []


class _NoRecorder:
    def step(self, *_: object) -> None:
        """Record nothing."""


@pytest.mark.parametrize("name", ORDER)
def test_that_watching_the_order_changes_no_bit(name: str, tmp_path: Path) -> None:
    results: list[float] = []

    def loop(opened: Open) -> None:
        results.append(ORDER[name].train(opened, True))

    judged(loop, tmp_path / "run.h5")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        loop(lambda *_: _NoRecorder())  # type: ignore[arg-type, return-value]
    assert results[0] == results[1]
