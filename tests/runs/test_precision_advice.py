"""The precision advised before a run: from the decision tree, overruled by what was timed here."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from precgui.config import RECIPES, RunConfig, build
from precgui.hardware.datasheet import datasheet_devices
from precgui.runs.precision_advice import precision_advice
from precgui.runs.step_times import keep_step_time
from tests.gui.plotted import training_run

CARD = next(device for device in datasheet_devices() if device.level("bf16") == "native")


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECGUI_STATE", str(tmp_path / "state"))


def timed(config: RunConfig, step_s: float, tmp_path: Path) -> None:
    run = training_run("timed", 100)
    columns = {"samples": 64.0, "samples_per_s": 64 / step_s, "step_s": step_s, "data_s": 0.0}
    values = run.values | {name: np.full(100, value) for name, value in columns.items()}
    machine = {"host": socket.gethostname()}
    keep_step_time(replace(run, values=values, config=config, path=tmp_path / "x.h5", machine=machine))


def test_that_a_recipe_gets_advice_for_its_own_kind_of_model() -> None:
    kinds = {name: precision_advice(config, CARD, []) for name, (_, config) in RECIPES.items()}
    assert (kinds["gpt-quick"].task, kinds["digits-quick"].task) == ("transformer", "classification")  # type: ignore[union-attr]
    for name, advice in kinds.items():
        if advice is not None:
            assert advice.sentence.startswith(f"Advised for this model here: {advice.precision}."), name


def test_that_a_task_that_the_tree_does_not_know_gets_none() -> None:
    assert precision_advice(build({"task": "regression"}), CARD, []) is None


@pytest.mark.parametrize(("low_s", "best"), [(0.004, "bf16-amp"), (0.05, "fp32")])
def test_that_runs_timed_here_overrule_the_tree(low_s: float, best: str, tmp_path: Path) -> None:
    config = RECIPES["gpt-quick"][1]
    assert precision_advice(config, CARD, []).precision == "bf16-amp"  # type: ignore[union-attr]
    timed(config.model_copy(update={"precision": "fp32"}), 0.02, tmp_path)
    timed(config.model_copy(update={"precision": "bf16-amp"}), low_s, tmp_path)
    advice = precision_advice(config, CARD, [])
    assert advice is not None and advice.precision == best
    assert "one run each" in advice.sentence
