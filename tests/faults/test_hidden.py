"""Layers that a model hides from its optimizer are named; those that are frozen or trained otherwise are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from precgui.config import RecordConfig
from tests.faults import hidden_faults
from tests.faults.hidden_faults import HIDING, MEANT
from tests.faults.odd_loops import judged


@pytest.mark.parametrize("name", HIDING)
def test_that_layers_which_a_model_does_not_hold_are_named(name: str, tmp_path: Path) -> None:
    found = judged(lambda opened: hidden_faults.train(opened, HIDING[name]), tmp_path / "run.h5", RecordConfig())
    assert [(each.rule, each.precision_is_to_blame) for each in found.problems] == [("parameters-left-out", False)]
    assert "does not hold" in found.problems[0].title


@pytest.mark.parametrize("name", [*MEANT, "given to the optimizer", "behind another model"])
def test_that_layers_which_are_frozen_or_trained_are_left_alone(name: str, tmp_path: Path) -> None:
    given, critic = name.startswith("given"), name.startswith("behind")
    made = HIDING["layers in a list"] if given else MEANT.get(name, MEANT["layers in a module list"])
    found = judged(
        lambda opened: hidden_faults.train(opened, made, given=given, critic=critic), tmp_path / "run.h5",
        RecordConfig(),
    )  # fmt: skip
    assert [(each.rule, each.title) for each in found.findings if each.rule == "parameters-left-out"] == []
    assert found.problems == ()
