"""Loops with a mistake in the order of their calls, and loops without it."""

from __future__ import annotations

import pytest

from precgui.lint import check
from tests.lint.loops import ACCUMULATED, FAULTS, LOOP, SOUND, TWO


@pytest.mark.parametrize(("rule", "text"), [(rule, text) for rule, texts in FAULTS.items() for text in texts])
def test_that_a_mistake_is_found_and_nothing_beside_it(rule: str, text: str) -> None:
    assert {each.rule for each in check(text)} == {rule}


@pytest.mark.parametrize(("rule", "text"), [(rule, text) for rule, texts in SOUND.items() for text in texts])
def test_that_a_sound_loop_is_left_alone(rule: str, text: str) -> None:
    assert rule not in {each.rule for each in check(text)}


def test_that_the_line_and_the_sentence_name_the_call() -> None:
    early = TWO.replace("scaler.step(opt_g)\n", "scaler.step(opt_g)\n    scaler.update()\n")
    [found] = check(early)
    assert (found.line, found.severity) == (11, "error") and "line 10" in found.title
    [found] = check(LOOP.replace("scaler.step(optimizer)", "scaler.step(optimizer)\n    scaler.unscale_(optimizer)"))
    assert found.line == 11 and "after scaler.step(optimizer) in line 10" in found.title
    [found] = check(ACCUMULATED.replace(" / accumulate", ""))
    assert found.severity == "warning" and found.line == 7  # clipping sees gradients that are too large


def test_that_a_backward_pass_without_scaling_is_named_where_it_is() -> None:
    [found] = check(LOOP.replace("scaler.scale(loss)", "loss"))
    assert found.rule == "scaler-not-used" and found.line == 9
