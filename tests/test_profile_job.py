"""A profile whose suggested changes are tried in pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from precgui import profile_job
from precgui.config import RunConfig, change, load
from precgui.engine.errors import EngineError
from precgui.engine.profile import document, paired_change
from precgui.runs.speedup.waterfall import rows, waterfall
from tests.runs.speedup.test_waterfall import profile, side

Gains = Callable[..., list[float]]


def with_trials(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], gains: Gains) -> dict[str, Any]:
    monkeypatch.setattr(document, "profile_config", lambda *_, **__: found)
    monkeypatch.setattr(paired_change, "change_gains", gains)
    return profile_job.profile_with_trials(load("digits-quick", ["precision=bf16-amp"]), seconds=5)


def test_that_each_suggested_change_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[RunConfig, float]] = []

    def gains(_: RunConfig, changed: RunConfig, *__: Any, seconds: float) -> list[float]:
        asked.append((changed, seconds))
        return [1.2, 1.21, 1.19, 1.2, 1.2]

    found = with_trials(monkeypatch, profile(side(10, 2, gaps=60), side(9, 2, casts=20, gaps=60)), gains)
    assert [(changed.data.batch_size, changed.train.compile, seconds) for changed, seconds in asked] == [
        (32, False, 5), (load("digits-quick", []).data.batch_size, True, 5),
    ]  # fmt: skip
    told = {row["factor"]: row["trial"] for row in rows(waterfall(found))}
    assert told["gaps"]["gain"] == told["casts"]["gain"] == 1.2
    assert told["gaps"]["interval"][0] > 1.18


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (EngineError("the batch does not fit; choose a smaller one"), "the batch does not fit; choose a smaller one"),
        (MemoryError(), "there is not enough memory"),
        (RuntimeError("no C++ compiler\nat all"), "RuntimeError: no C++ compiler"),
    ],
)
def test_that_a_change_that_cannot_be_tried_says_why(
    monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    def gains(*_: Any, **__: Any) -> list[float]:
        raise error

    found = with_trials(monkeypatch, profile(side(10, 2, gaps=60), side(2.5, 2, gaps=60)), gains)
    first = waterfall(found).causes()[0]
    assert first.remedy.endswith(f"It could not be tried here: {told}.")
    assert not first.offered


def test_that_fp32_was_measured_by_the_profile_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def gains(*_: Any, **__: Any) -> list[float]:
        raise AssertionError

    slow = profile(side(10, 2, gaps=10), side(60, 2, gaps=10), ratio=0.02)
    slow["rounds"] = [0.30, 0.31, 0.29, 0.30]
    (trial,) = [each for each in with_trials(monkeypatch, slow, gains)["trials"] if each["gains"]]
    assert trial == {"settings": {"precision": "fp32"}, "gains": [1 / ratio for ratio in slow["rounds"]], "fault": ""}
    assert waterfall(slow).causes()[0].offered == {"precision": "fp32"}


def test_that_a_change_is_measured_in_pairs_by_sample() -> None:
    few = ["device=cpu", "threads=1", "model.name=mlp", "data.batch_size=4"]
    config = load("digits-quick", few)
    gains = paired_change.change_gains(config, change(config, ["data.batch_size=512"]), rounds=3, seconds=0.0)
    assert len(gains) == 3 and min(gains) > 0
    assert paired_change.change_gains(config, config, lambda: True, seconds=1.0) == []
