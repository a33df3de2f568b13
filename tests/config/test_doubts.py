"""What is told before a run about settings that are likely to spoil it."""

from __future__ import annotations

import pytest

from precgui import config
from precgui.config.doubts import doubts


@pytest.mark.parametrize("settings", [(), ("precision=fp16-amp",), ("precision=bf16-pure",)])
def test_that_usual_settings_raise_no_doubt(settings: tuple[str, ...]) -> None:
    assert doubts(config.load("digits-adamw", settings)) == []


def test_that_an_epsilon_that_fp16_rounds_to_zero_is_told() -> None:
    def told(*settings: str) -> list[str]:
        return doubts(config.load("digits-adamw", ["precision=fp16-pure", *settings]))

    (sentence,) = told()
    assert sentence.startswith("optimizer.eps = 1e-08 is zero in FP16")
    assert len(told("optimizer.eps=2.98e-8")) == 1
    assert told("optimizer.eps=2.99e-8") == []  # rounded to the smallest subnormal
    assert told("precision_options.master_weights=true") == []
    assert told("optimizer.name=sgd") == []
