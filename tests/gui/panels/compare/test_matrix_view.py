"""Compare > Groups > Matrix: the models of a study down, its precisions across; a sentence where none is varied."""

from __future__ import annotations

from pathlib import Path

from pytestqt.qtbot import QtBot

from precgui.gui.panels.compare.groups import MATRIX, GroupsView
from precgui.gui.session import Session
from tests.sweeps.sample_sweep import small_sweep, write_member


def test_that_a_study_of_two_settings_has_a_matrix(qtbot: QtBot, tmp_path: Path) -> None:
    folder = small_sweep(tmp_path, seeds=1, twins=0, vary={"optimizer.lr": [0.01, 0.02]})
    for member in folder.plan.members:
        write_member(folder, member)
    session = Session()
    view = GroupsView(session)
    qtbot.addWidget(view)
    view.show()
    view.view.choose(MATRIX)
    assert "varies no setting" in view.matrix.note.text()
    session.study.open(folder.path)
    qtbot.waitUntil(lambda: view.report_content is not None)
    assert view.matrix.note.isHidden()
    rows = view.matrix.table.texts()
    assert {row[0] for row in rows} == {"optimizer.lr=0.01", "optimizer.lr=0.02"}
    assert ("optimizer.lr=0.02", "runs that came through", "1 of 1", "1 of 1") in rows
