"""Ranks of a run file: medians by hand, the picture of waiting, and sentences that name no cause."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from precgui.cli.main import main
from precgui.config import build
from precgui.events import RankStep, RunEnded, RunStarted, StepDone
from precgui.planner.ledger import mib
from precgui.runs.file.reader import open_run
from precgui.runs.file.writer import RunWriter
from precgui.runs.ranks import one_rank_step_s, rank_figures, rank_waits, waiting_sentence

NAN = float("nan")


def run_of_two(path: Path, waits_s: tuple[float, float] = (0.01, 0.06), steps: int = 8) -> Path:
    """Two ranks whose steps take 0.1 s; the first five take ten times as long."""
    config = build({"parallel": {"strategy": "ddp"}})
    with RunWriter(
        path, config, run_id=path.stem, created="2026-03-01T12:00:00+00:00", machine={}, environment={}
    ) as w:
        w(RunStarted(0.0, total_steps=steps, steps_per_epoch=steps, device="cpu"))
        for step in range(1, steps + 1):
            step_s = 1.0 if step <= 5 else 0.1
            for rank, wait_s in enumerate(waits_s):
                memory = 1e6 * (step == 7) + 2e6
                w(RankStep(step, step * 0.1, rank, step_s, wait_s, 0.05, memory, 1000.0, NAN, NAN))
            w(StepDone(step, 0.1 * step, 1.0, 1.0, False, 0.05, 1.0, 0.09, 0.01, 64, NAN))
        w(RunEnded(2.0, "completed"))
    return path


def test_that_medians_leave_out_the_first_steps(tmp_path: Path) -> None:
    with open_run(run_of_two(tmp_path / "run.h5")) as run:
        first, second = rank_figures(run)
    assert (first.step_s, first.wait_s, first.cpu_s) == pytest.approx((0.1, 0.01, 0.05))
    assert (second.rank, second.wait_s) == (1, pytest.approx(0.06))
    assert first.memory_bytes == 3e6
    assert first.sent_bytes == 1000
    assert first.as_json()["interface_bytes"] is None


def test_that_the_picture_has_the_share_of_each_step_that_a_rank_waited(tmp_path: Path) -> None:
    with open_run(run_of_two(tmp_path / "run.h5")) as run:
        picture = rank_waits(run)
    assert picture is not None
    assert picture.names == ("rank 0", "rank 1")
    assert picture.steps.tolist() == list(range(1, 9))
    np.testing.assert_allclose(picture.share[:, 4:6], [[0.01, 0.1], [0.06, 0.6]])


def test_that_the_rank_that_waits_least_is_named_and_equal_ones_are_not(tmp_path: Path) -> None:
    with (
        open_run(run_of_two(tmp_path / "a.h5")) as uneven,
        open_run(run_of_two(tmp_path / "b.h5", (0.03, 0.03))) as even,
    ):
        assert "rank 0 least" in waiting_sentence(rank_figures(uneven))
        assert "All ranks wait alike, 30% to 30%" in waiting_sentence(rank_figures(even))
        assert one_rank_step_s(rank_figures(even)) == pytest.approx(2 * 0.07)


def test_that_waiting_that_nobody_measured_is_not_given_as_none(tmp_path: Path) -> None:
    with open_run(run_of_two(tmp_path / "run.h5", (NAN, NAN))) as run:
        figures = rank_figures(run)
    assert waiting_sentence(figures).startswith("The time of waiting was not measured")
    assert one_rank_step_s(figures) is None


def test_that_a_run_on_one_process_has_no_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_run(run_of_two(tmp_path / "run.h5", ())) as run:
        assert rank_figures(run) == []
        assert rank_waits(run) is None
    assert main(["profile", str(tmp_path / "run.h5"), "--ranks"]) == 2
    assert "run.h5 trained in one process, so it has no ranks" in capsys.readouterr().err


def test_that_the_command_line_shows_each_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_of_two(tmp_path / "run.h5")
    assert main(["profile", str(path), "--ranks"]) == 0
    shown = capsys.readouterr().out
    assert "rank 0 least" in " ".join(shown.split())
    assert mib(1000) in shown
    assert "Memory is that of each whole process" in " ".join(shown.split())
