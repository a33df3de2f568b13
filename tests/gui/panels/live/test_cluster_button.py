"""Jobs of a study from the window: submitted with their parameters, cancelled; the cluster is stood in for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pytestqt.qtbot import QtBot

from precgui.gui.open_run import Problem
from precgui.gui.panels.live.study_grid import StudyGridView
from precgui.gui.session import Session
from precgui.sweeps.errors import SweepError
from precgui.sweeps.folder import JOBS, SweepFolder
from precgui.sweeps.jobs import JobState, JobWatch, SubmittedJob, keep_jobs
from precgui.sweeps.slurm import job_settings
from tests.sweeps.sample_sweep import small_sweep, write_member


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with `sbatch`, whose queue says nothing."""
    monkeypatch.setattr("precgui.gui.panels.live.cluster_button.shutil.which", lambda name: f"/usr/bin/{name}")


def grid_of(qtbot: QtBot, folder: SweepFolder, session: Session) -> StudyGridView:
    view = StudyGridView(session)
    qtbot.addWidget(view)
    view.resize(900, 500)
    view.show()
    session.open_study(folder.path)
    qtbot.waitUntil(lambda: session.study.grid is not None)
    return view


def test_that_jobs_are_submitted_with_the_fields_of_the_form_and_cancelled(
    qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: None
) -> None:
    submitted: list[Mapping[str, Any]] = []
    cancelled: list[str] = []

    def submit(folder: SweepFolder, settings: Mapping[str, Any]) -> list[Any]:
        submitted.append(settings)
        (folder.path / JOBS).mkdir()
        keep_jobs(folder.path / JOBS, [SubmittedJob("77_0", 0, "slurm")])
        return []

    monkeypatch.setattr("precgui.sweeps.slurm.submit_blocks", submit)
    monkeypatch.setattr("precgui.sweeps.report._JOBS", JobWatch(0.0))
    monkeypatch.setattr("precgui.sweeps.jobs.cancel_jobs", lambda jobs: cancelled.extend(job.job_id for job in jobs))
    session = Session()
    view = grid_of(qtbot, small_sweep(tmp_path, seeds=1, precisions=("fp32",), twins=0), session)
    button = view.cluster_button
    assert button.isVisible() and button.submit.isEnabled() and not button.cancel.isEnabled()
    dialog = button.ask()
    dialog.account.setText(" lab ")
    dialog.gpus.setText("2")
    dialog.minutes.setText("0")
    assert not dialog.submit_button.isEnabled()  # no job is so short
    dialog.minutes.setText("60")
    dialog.submit_button.click()
    qtbot.waitUntil(lambda: bool(submitted))
    assert submitted == [{"slurm_account": "lab", "slurm_gpus_per_node": 2, "timeout_min": 60}]
    qtbot.waitUntil(button.cancel.isEnabled)
    assert view.state.text() == "1 job of this study in the queue of the cluster; the grid shows each."
    assert not button.submit.isEnabled()  # they would run twice
    button.cancel.trigger()
    qtbot.waitUntil(lambda: cancelled == ["77_0"])


def test_that_a_refusal_of_the_cluster_is_told(
    qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: None
) -> None:
    def refuse(folder: SweepFolder, settings: Mapping[str, Any]) -> list[Any]:
        raise SweepError("submitit is not installed; install precgui[slurm], or pip install submitit")

    monkeypatch.setattr("precgui.sweeps.slurm.submit_blocks", refuse)
    session = Session()
    view = grid_of(qtbot, small_sweep(tmp_path, seeds=1, precisions=("fp32",), twins=0), session)
    told: list[Problem] = []
    session.notice.connect(told.append)
    view.cluster_button.ask().submit_button.click()
    qtbot.waitUntil(lambda: bool(told))
    assert told[0].message.startswith("Nothing was submitted: submitit is not installed")


def test_that_the_button_is_hidden_where_there_is_no_cluster(
    qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("precgui.gui.panels.live.cluster_button.shutil.which", lambda name: None)
    session = Session()
    view = grid_of(qtbot, small_sweep(tmp_path, seeds=1, precisions=("fp32",), twins=0), session)
    assert not view.cluster_button.isVisible()


def test_that_a_run_that_was_preempted_shows_why_its_job_waits(
    qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: None
) -> None:
    folder = small_sweep(tmp_path, seeds=1, precisions=("fp32",), twins=0)
    member = folder.plan.members[0]
    write_member(folder, member, status="stopped")
    (folder.path / JOBS).mkdir()
    job = SubmittedJob("77_0", member.block, "slurm")
    keep_jobs(folder.path / JOBS, [job])
    monkeypatch.setattr("precgui.sweeps.jobs.job_states", lambda _: [JobState(job, "pending", "Priority")])
    monkeypatch.setattr("precgui.sweeps.report._JOBS", JobWatch(0.0))
    view = grid_of(qtbot, folder, Session())
    assert view.table.item(0, 0).text() == "cut off, job 77_0: pending (Priority) (1)"


def test_that_empty_fields_are_left_to_the_cluster() -> None:
    assert job_settings("", None, 5, "gpu") == {"timeout_min": 5, "slurm_partition": "gpu"}
