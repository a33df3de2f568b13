"""The precision advised before a run: from the decision tree, overruled by what was timed here."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from precgui import words
from precgui.config import RECIPES, RunConfig, build
from precgui.hardware.datasheet import datasheet_devices
from precgui.runs.precision_advice import precision_advice
from precgui.runs.step_times import keep_step_time, timed_runs
from tests.gui.plotted import training_run

CARD = next(device for device in datasheet_devices() if device.level("bf16") == "native")


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECGUI_STATE", str(tmp_path / "state"))


def timed(config: RunConfig, step_s: float, tmp_path: Path, seed: int = 0, **columns: float) -> None:
    run = training_run(f"timed {config.precision} {seed}", 100)
    columns = {"samples": 64.0, "samples_per_s": 64 / step_s, "step_s": step_s, "data_s": 0.0, **columns}
    values = run.values | {name: np.full(100, value) for name, value in columns.items()}
    machine, own = {"host": socket.gethostname()}, config.model_copy(update={"seed": seed})
    keep_step_time(
        replace(
            run, values=values, config=own, path=tmp_path / "members" / f"{seed}.h5", machine=machine,
            run_id=f"{config.precision} {seed}", environment={"device": "cpu", "threads": 1},
        )
    )  # fmt: skip


def test_that_a_recipe_gets_advice_for_its_own_kind_of_model() -> None:
    kinds = {name: precision_advice(config, CARD, []) for name, (_, config) in RECIPES.items()}
    assert (kinds["gpt-quick"].task, kinds["digits-quick"].task) == ("transformer", "classification")
    for name, advice in kinds.items():
        if advice is not None:
            assert advice.sentence.startswith(f"Advised for this model here: {advice.precision}."), name


def test_that_a_task_that_the_tree_does_not_know_gets_none() -> None:
    assert precision_advice(build({"task": "regression"}), CARD, []) is None


FP32, LOW = (RECIPES["gpt-quick"][1].model_copy(update={"precision": name}) for name in ("fp32", "bf16-amp"))


@pytest.mark.parametrize(("low_s", "best"), [(0.004, "bf16-amp"), (0.05, "fp32")])
def test_that_pairs_timed_here_overrule_the_tree(low_s: float, best: str, tmp_path: Path) -> None:
    assert precision_advice(LOW, CARD, []).precision == "bf16-amp"
    for seed, load in enumerate((1.0, 1.1, 0.95)):
        timed(FP32, 0.02 * load, tmp_path, seed)
        timed(LOW, low_s * load * (1 + 0.01 * seed), tmp_path, seed)
    advice = precision_advice(LOW, CARD, [])
    assert advice is not None and advice.precision == best
    assert "In 3 pairs of runs of the same work bf16-amp was" in advice.sentence


def test_that_the_advice_is_in_the_readers_language_where_it_is_shown(tmp_path: Path) -> None:
    shown = [precision_advice(LOW, CARD, [], "box"), precision_advice(LOW, CARD, [])]
    for seed, load in enumerate((1.0, 1.1, 0.95)):
        timed(FP32, 0.02 * load, tmp_path, seed)
        shown.append(precision_advice(LOW, CARD, []))
        timed(LOW, 0.004 * load * (1 + 0.01 * seed), tmp_path, seed)
    shown.append(precision_advice(LOW, CARD, []))
    try:
        words.use("zh_CN")
        chinese = [words.translated(advice.sentence) for advice in shown if advice is not None]
    finally:
        words.use("en")
    assert len(chinese) == len(shown)
    assert [text for text in chinese if re.search("[a-z]{3,} [a-z]{2,}", text)] == []


def test_that_single_runs_at_their_own_loads_measure_no_difference(tmp_path: Path) -> None:
    timed(FP32, 0.02, tmp_path)
    timed(LOW, 0.03, tmp_path)
    advice = precision_advice(LOW, CARD, [])
    assert advice is not None and advice.precision == "bf16-amp"
    assert "No difference was measured" in advice.sentence


def test_that_the_advice_compares_the_times_that_compare_does(tmp_path: Path) -> None:
    """By the clock BF16 is slower, since other programs ran beside it; its CPU time is less in every pair."""
    for seed in range(3):
        timed(FP32, 0.022, tmp_path, seed, cpu_s=0.020 + 0.0001 * seed, cpu_pressure=0.9)
        timed(LOW, 0.030, tmp_path, seed, cpu_s=0.010, cpu_pressure=0.9)
    advice = precision_advice(LOW, CARD, [])
    assert advice is not None and advice.precision == "bf16-amp"
    assert "2.010x as fast as fp32" in advice.sentence and "CPU time" in advice.sentence


def test_that_pairs_that_leave_it_open_say_so(tmp_path: Path) -> None:
    for seed, low_s in enumerate((0.03, 0.012, 0.02)):
        timed(FP32, 0.02, tmp_path, seed)
        timed(LOW, low_s, tmp_path, seed)
    advice = precision_advice(LOW, CARD, [])
    assert advice is not None and advice.precision == "bf16-amp"
    assert advice.sentence.endswith("no difference was measured.")


PLAIN = replace(  # the tree advises fp32 for it
    CARD, formats={name: replace(own, support="emulated") for name, own in CARD.formats.items()}
)


@pytest.mark.parametrize(
    ("low_s", "best", "says"),
    [
        ((0.004, 0.0041, 0.0042), "bf16-amp", "as fast as fp32"),
        ((0.05, 0.051, 0.052), "fp32", "as fast as fp32"),
        ((0.03, 0.012, 0.02), "fp32", "no difference was measured"),
    ],
)
def test_that_pairs_speak_also_where_the_tree_advises_fp32(
    low_s: tuple[float, ...], best: str, says: str, tmp_path: Path
) -> None:
    foretold = precision_advice(FP32, PLAIN, [])
    assert foretold is not None and foretold.precision == "fp32" and "would cost time" in foretold.sentence
    for seed, own_s in enumerate(low_s):
        timed(FP32, 0.02, tmp_path, seed)
        timed(LOW, own_s, tmp_path, seed)
    advice = precision_advice(FP32, PLAIN, [])
    assert advice is not None and advice.precision == best
    assert says in advice.sentence and "would cost time" not in advice.sentence


def test_that_a_pair_of_runs_beside_an_advice_of_fp32_measures_no_difference(tmp_path: Path) -> None:
    timed(FP32, 0.02, tmp_path)
    timed(LOW, 0.03, tmp_path)
    advice = precision_advice(FP32, PLAIN, [])
    assert advice is not None and advice.precision == "fp32"
    assert "No difference was measured" in advice.sentence


def test_that_a_damaged_row_of_kept_times_is_left_out(tmp_path: Path) -> None:
    timed(FP32, 0.02, tmp_path)
    (path,) = (tmp_path / "state" / "step-times").iterdir()
    row = json.loads(path.read_text())
    row["runs"] = [7, {"seed": "x"}, {**row["runs"][0], "threads": []}, row["runs"][0]]
    path.write_text(json.dumps(row))
    assert [each.seed for each in timed_runs(FP32, "fp32")] == [0]
