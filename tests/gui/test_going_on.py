"""*Go on* in Live and in Runs: a run that was stopped is trained to its end, in its file and under its name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pytestqt.qtbot import QtBot

from precgui import config
from precgui.checkpoint_files import checkpoint_files
from precgui.events import StepDone
from precgui.gui.open_run import Problem
from precgui.gui.panels.library.panel import LibraryPanel
from precgui.gui.panels.live.panel import LivePanel
from precgui.gui.session import Session
from precgui.gui.workers import child_process
from precgui.job import Job
from precgui.runs.file.reader import open_run
from precgui.runs.live import LiveRun

SETTINGS = ["device=cpu", "threads=1", "model.name=mlp", "train.epochs=1", "data.epoch_steps=8"]


def stopped_run(path: Path) -> Path:
    job = Job(
        config.load("digits-quick", SETTINGS), path, [lambda event: job.stop() if isinstance(event, StepDone) else None]
    )
    job.run()
    return path


@pytest.fixture
def session(tmp_path: Path) -> Session:
    session = Session()
    session.set_folder(tmp_path)
    return session


def test_that_a_stopped_run_goes_on_from_the_table_of_runs(
    qtbot: QtBot, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "KILL_AFTER_S", 60.0)
    path = stopped_run(tmp_path / "run.h5")
    assert list(checkpoint_files(path)) == [1]
    panel = LibraryPanel(session)
    qtbot.addWidget(panel)
    panel.show()
    qtbot.waitUntil(lambda: panel.table.rowCount() == 1)
    panel.view.selectRow(0)
    action = panel.actions_["start"]
    assert (action.text(), action.isEnabled()) == ("Go on", True)
    before = session.runs.open_file(path)
    assert before is not None
    action.trigger()
    (key,) = session.runs
    assert key == session.runs.current == before
    live = session.runs[key].run
    assert isinstance(live, LiveRun)
    qtbot.waitUntil(lambda: live.status != "running")
    qtbot.waitUntil(lambda: not session.training.is_training)
    assert (live.status, live.steps) == ("completed", 8)
    np.testing.assert_array_equal(live.series("loss")[0], np.arange(1, 9))
    assert not checkpoint_files(path)
    with open_run(path) as run:
        assert (run.status, run.run_id, len(run.events("resumed"))) == ("completed", key, 1)
    qtbot.waitUntil(lambda: not panel.actions_["start"].isEnabled())
    close(qtbot, session)


def test_that_a_run_that_is_refused_is_shown_as_its_file_has_it(
    qtbot: QtBot, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "KILL_AFTER_S", 60.0)
    path = stopped_run(tmp_path / "run.h5")
    (file,) = checkpoint_files(path).values()
    file.write_bytes(file.read_bytes()[:-9])
    told: list[Problem] = []
    session.notice.connect(told.append)
    live = LivePanel(session)
    qtbot.addWidget(live)
    live.show()
    key = session.runs.add(ended(path))
    session.runs.choose(key)
    qtbot.waitUntil(live.end_card.go_on.isVisible)
    live.end_card.go_on.click()
    assert session.training.is_training
    qtbot.waitUntil(lambda: not session.training.is_training)
    assert "is damaged" in told[-1].message
    (opened,) = session.runs.values()
    assert (opened.run.path, opened.run.status, len(opened.run.series("loss")[0])) == (path, "stopped", 1)
    close(qtbot, session)


def ended(path: Path) -> LiveRun:
    """The run of a file as the window has it that trained it."""
    from precgui.runs.file.earlier_part import EarlierPart

    with open_run(path) as saved:
        run = LiveRun(saved.config, run_id=saved.run_id, created=saved.created, machine={}, environment={}, path=path)
        earlier = EarlierPart.open(path, saved.steps, 1e9)
        run.extend(list(earlier.events()))
        earlier.close()
        run.status = saved.status
        return run


def close(qtbot: QtBot, session: Session) -> None:
    done: list[bool] = []
    session.shutdown(lambda: done.append(True))
    qtbot.waitUntil(lambda: bool(done))
