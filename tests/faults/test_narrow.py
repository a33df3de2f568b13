"""Mistakes of narrow formats are named with who is to blame and a fix that mends them; sound loops are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.narrow_faults import NARROW, SOUND
from tests.faults.odd_loops import judged
from tests.faults.published_faults import Open


@pytest.mark.parametrize("name", NARROW)
def test_that_a_mistake_of_a_narrow_format_is_named_and_its_fix_mends_it(name: str, tmp_path: Path) -> None:
    """The correction of each loop is the fix, in the words of the finding."""
    fault = NARROW[name]
    for broken in (True, False):

        def loop(opened: Open, broken: bool = broken) -> None:
            fault.train(opened, broken)

        problems = judged(loop, tmp_path / f"{broken}.h5").problems
        answers = {(each.rule, each.precision_is_to_blame) for each in problems}
        assert answers == ({(fault.rule, fault.blame)} if broken else set()), [each.title for each in problems]
        if broken:
            assert all(word in problems[0].fix for word in fault.words), problems[0].fix


@pytest.mark.parametrize("name", SOUND)
def test_that_a_sound_loop_with_narrow_formats_is_left_alone(name: str, tmp_path: Path) -> None:
    found = judged(SOUND[name], tmp_path / "run.h5")
    assert [(each.rule, each.title, each.evidence[0].text) for each in found.problems] == []
