"""Faults of a machine with a GPU, on the pretended device: a run ends in a sentence with a whole file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from precgui import open_run
from tests.pretended.conftest import Script
from tests.pretended.test_training import rows_of

PLACES = 20 if os.environ.get("PRETENDED_LONG") else 5  # of a run at which memory runs out, or the device is lost
_CURE = "reduce data.batch_size or model.size, or choose a 16-bit precision"


@pytest.fixture(scope="module")
def rows(on_pretended_gpu: Script, tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """The rows of the runs without memory, and of those that lose the device, spread over the operations of a run."""
    folder = str(tmp_path_factory.mktemp("faults"))
    begin = f"from tests.pretended.training import *\nfolder = {folder!r}\noperations = count_operations(folder)\n"
    calls = [
        f"print_faulty_run(folder, 1 + {place} * operations // {PLACES}, loses_device={loses_device})"
        for loses_device in (False, True)
        for place in range(PLACES)
    ]
    rows = rows_of(on_pretended_gpu, calls, begin=begin)
    return [rows[:PLACES], rows[PLACES:]]


def _check_files(rows: list[dict[str, Any]]) -> None:
    """The files tell the end of their runs, and hold the steps before it."""
    runs = [open_run(row["file"]) for row in rows]
    assert [(run.status, run.message) for run in runs] == [(row["status"], row["message"]) for row in rows]
    steps = [len(run.series("loss")[0]) for run in runs]
    assert steps == sorted(steps)
    assert steps[0] == 0
    assert steps[-1] >= 1


def test_that_memory_that_runs_out_at_any_place_ends_a_run_in_a_sentence(rows: list[list[dict[str, Any]]]) -> None:
    for row in rows[0]:
        assert row["status"] == "failed"
        assert row["message"].startswith("out of memory "), row
        assert "Tried to allocate 2.00 GiB" in row["message"]
        assert row["message"].endswith(_CURE)
    _check_files(rows[0])


def test_that_a_gpu_that_is_lost_at_any_place_ends_a_run_in_a_sentence(rows: list[list[dict[str, Any]]]) -> None:
    for row in rows[1]:
        assert row["status"] == "failed"
        assert row["message"].startswith("the GPU gave up "), row
        assert "unspecified launch failure; start the run again" in row["message"]
    _check_files(rows[1])


_COMMAND = """
from precgui.cli.main import main
for device in ("cuda", "auto"):
    words = ["run", "digits-quick", "--json", "--set", f"device={{device}}", "--set", "train.max_steps=1"]
    try:
        code = main([*words, "-o", {folder!r} + "/" + device + ".h5"])
    except SystemExit as end:
        code = end.code
    print("EXIT", device, code)
"""


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (35, "torch sees only the CPU (CUDA initialization: The NVIDIA driver on your system is too old)"),
        pytest.param(100, "torch sees only the CPU;", marks=pytest.mark.pretended_long),
    ],
    ids=("old driver", "no driver"),
)
def test_that_a_driver_that_is_old_or_absent_is_told_and_the_cpu_trains(
    on_pretended_gpu: Script, tmp_path: Path, refusal: int, reason: str
) -> None:
    printed = on_pretended_gpu(
        "sys.stderr = sys.stdout\n" + _COMMAND.format(folder=str(tmp_path)), PRETENDED_REFUSAL=str(refusal)
    )
    assert reason in " ".join(printed.split())
    assert "Traceback" not in printed
    assert "EXIT cuda 2" in printed
    assert "EXIT auto 0" in printed
    assert open_run(tmp_path / "auto.h5").status == "completed"
    assert not (tmp_path / "cuda.h5").exists() or open_run(tmp_path / "cuda.h5").status == "failed"
