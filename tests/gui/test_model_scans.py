"""A model is scanned from the window: dropped or chosen, in a child process, shown in Inspect."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pytestqt.qtbot import QtBot

from precgui.formats.checkpoints.suffixes import SUFFIXES
from precgui.gui.open_run import Problem
from precgui.gui.panels.library.buttons import ModelButton
from precgui.gui.session import Session
from precgui.runs.models.model_file import holds_scan
from tests.formats.checkpoint_files import safetensors


@pytest.fixture
def session(qtbot: QtBot) -> Session:
    return Session()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "tiny").mkdir()
    values = np.random.default_rng(0).standard_normal((8, 128)).astype(np.float32)
    safetensors(tmp_path / "tiny" / "model.safetensors", {"w": ("F32", values)})
    return tmp_path / "tiny"


def test_that_a_model_is_scanned_in_a_child_and_shown(
    qtbot: QtBot, session: Session, model: Path, tmp_path: Path
) -> None:
    session.set_folder(tmp_path / "runs")
    button = ModelButton(session)
    qtbot.addWidget(button)
    with qtbot.waitSignal(session.models.kept):
        session.models.scan(model)
        assert session.models.is_scanning and button.text().startswith("Stop the scan")
    qtbot.waitUntil(lambda: not session.models.is_scanning)
    assert button.text() == "Scan a model..."
    key = session.runs.key_of(tmp_path / "runs" / "tiny.model.h5")
    assert key is not None and session.runs.current == key
    assert holds_scan(session.runs[key].run)


def test_that_what_goes_wrong_becomes_a_problem_and_the_next_is_scanned(
    qtbot: QtBot, session: Session, model: Path, tmp_path: Path
) -> None:
    problems: list[Problem] = []
    session.notice.connect(problems.append)
    session.set_folder(tmp_path / "runs")
    (tmp_path / "empty").mkdir()
    with qtbot.waitSignal(session.models.kept):
        session.models.scan(tmp_path / "empty")
        session.models.scan(model)
        session.models.scan(model)
    qtbot.waitUntil(lambda: not session.models.is_scanning)
    assert [problem.message for problem in problems] == [
        f"{tmp_path / 'empty'} holds no model: no file in it ends in {', '.join(SUFFIXES)}"
    ]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["tiny.model.h5"]
