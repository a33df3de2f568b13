"""The recorder in training loops of other people on the pretended device."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from precgui import open_run
from tests.devices.foreign_loops import OWN_WAITS, WATCHED
from tests.pretended.conftest import Script
from tests.pretended.test_training import rows_of

STEPS = 10 if os.environ.get("PRETENDED_LONG") else 6


@pytest.fixture(scope="module")
def rows(on_pretended_gpu: Script, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = str(tmp_path_factory.mktemp("loops"))
    calls = {name: f"print_loop({name!r}, {folder!r}, {STEPS})" for name in OWN_WAITS}
    calls["second"] = f"print_loop('plain', {folder + '/second'!r}, {STEPS}, 'cuda:1')"
    begin = "from tests.pretended.loops import print_loop\n"
    return dict(zip(calls, rows_of(on_pretended_gpu, list(calls.values()), gpus=2, begin=begin), strict=True))


@pytest.mark.parametrize("name", [*OWN_WAITS, "second"])
def test_that_a_recorder_changes_no_bit_of_a_loop_on_a_gpu(rows: dict[str, dict[str, Any]], name: str) -> None:
    row = rows[name]
    assert row["losses"]["recorded"] == row["losses"]["alone"]
    assert row["weights"]["recorded"] == row["weights"]["alone"]
    assert row["lost"] == 0, "a kernel was launched that nothing has computed"


@pytest.mark.parametrize("name", [*OWN_WAITS, "second"])
def test_that_a_loop_on_a_gpu_is_recorded_to_its_end(rows: dict[str, dict[str, Any]], name: str) -> None:
    run = open_run(rows[name]["file"])
    assert (run.status, run.message) == ("completed", "")
    assert [float(value).hex() for value in run.series("loss")[1]] == rows[name]["losses"]["alone"]


def test_that_the_loop_with_a_scaler_has_steps_that_it_skips_and_others(rows: dict[str, dict[str, Any]]) -> None:
    skipped = open_run(rows["scaled"]["file"]).series("skipped")[1].tolist()
    assert {bool(each) for each in skipped} == {True, False}


@pytest.mark.parametrize("name", OWN_WAITS)
def test_that_a_recorder_makes_the_host_wait_once_in_a_step(rows: dict[str, dict[str, Any]], name: str) -> None:
    for way, more in (("alone", 0), ("recorded", 1)):
        steps = {number: step for number, step in enumerate(rows[name]["steps"][way], 1) if number not in WATCHED}
        looked = [step for step in steps.values() if any("finite_in_fp32" in line for line in step["waiting"])]
        assert len(looked) <= (name == "scaled"), "the step after one that was not finite is looked through once"
        for number, step in steps.items():
            if step not in looked:
                assert step["waits"] == OWN_WAITS[name] + more * (2 if number + 1 in WATCHED else 1), step["waiting"]


@pytest.mark.parametrize("name", OWN_WAITS)
def test_that_a_recorder_uploads_from_pinned_memory_and_allocates_nothing(
    rows: dict[str, dict[str, Any]], name: str
) -> None:
    alone, recorded = (rows[name]["steps"][way][-1] for way in ("alone", "recorded"))
    assert recorded["unpinned"] == alone["unpinned"]
    assert recorded["allocations"] == 0


def test_that_the_cost_of_a_recording_is_timed_on_the_gpu_of_the_model(rows: dict[str, dict[str, Any]]) -> None:
    """Events that are recorded while another device is current time its empty queue."""
    before, after = (rows[name]["records"] for name in (list(OWN_WAITS)[-1], "second"))  # one after the other
    assert after[0] == before[0]
    assert after[1] > before[1]


_COUNTED = """
import json
from pathlib import Path
import pytest
from precgui import open_run
from tests.devices.foreign_loops import run_loop
from tests.gpu.waits import counted_waits
def print_counted(path):
    steps = []
    with counted_waits(pytest.MonkeyPatch()) as waits:
        run_loop("plain", "cuda:0", 6, Path(path), lambda: steps.append(sum(waits.taken().values())))
    with open_run(path) as run:
        print("ROW " + json.dumps([run.status, str(run.message), run.steps, steps]))
"""


def test_that_the_waits_of_a_recorder_can_be_counted_on_a_gpu(on_pretended_gpu: Script, tmp_path: Path) -> None:
    """The counter of `tests/gpu` ended recordings after their first step, and so counted none of their waits."""
    path = str(tmp_path / "run.h5")
    (row,) = rows_of(on_pretended_gpu, [f"print_counted({path!r})"], begin=_COUNTED)
    assert row[:3] == ["completed", "", 6]
    assert all(1 <= count <= 2 for count in row[3][2:]), row[3]


def test_that_steps_with_fused_attention_are_made_again_in_fp64(rows: dict[str, dict[str, Any]]) -> None:
    """Where a busy machine takes long for one, by the clock, the next ones have no time left."""
    watched = open_run(rows["attending"]["file"]).environment["exact_steps"]["all"]
    assert [row["step"] for row in watched] == [step for step in WATCHED if step <= STEPS]
    made = [row for row in watched if "the recorder" not in row.get("unavailable", "")]
    assert made
    for row in made:
        assert "unavailable" not in row, row
        assert 0 < row["gradient_error"] < 0.05 and row["loss"] == pytest.approx(row["loss_fp64"], rel=0.02)
