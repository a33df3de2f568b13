"""Studies as rows in Runs, with their members; the study of the last session comes back."""

from __future__ import annotations

from pathlib import Path

from pytestqt.qtbot import QtBot

from precgui.gui.answer import Answer
from precgui.gui.notices import Notices
from precgui.gui.panels.library.studies_view import StudiesView
from precgui.gui.session import Session
from precgui.gui.settings import Settings
from precgui.gui.shell.startup import StartupStages
from precgui.gui.shell.window import Window
from precgui.sweeps.folder import SPEC
from tests.gui.conftest import close_window
from tests.sweeps.sample_sweep import small_sweep, write_member


def _view(qtbot: QtBot, tmp_path: Path, session: Session | None = None) -> StudiesView:
    session = session or Session()
    session.set_folder(tmp_path)
    view = StudiesView(session)
    qtbot.addWidget(view)
    with qtbot.waitSignal(view.filled):
        view.refresh()
    return view


def _cells(view: StudiesView, study: int, member: int | None = None) -> list[str]:
    item = view.topLevelItem(study)
    assert item is not None
    item = item if member is None else item.child(member)
    return [item.text(column) for column in range(view.columnCount())]


def test_that_studies_are_rows_with_their_members(qtbot: QtBot, tmp_path: Path) -> None:
    folder = small_sweep(tmp_path, seeds=2, twins=1)
    write_member(folder, folder.plan.member("s01-fp32"), accuracy=0.75)
    write_member(folder, folder.plan.member("s01-bf16-amp"), status="failed")
    view = _view(qtbot, tmp_path)
    assert not view.isHidden()
    assert _cells(view, 0)[:5] == ["sweep", "fp32, bf16-amp", "2 of 6 runs done, 1 failed", "", "2 seeds"]
    rows = {row[0]: row for row in (_cells(view, 0, n) for n in range(6))}
    assert rows["s01-fp32"][1:5] == ["fp32", "completed", "accuracy 75.00 %", "0"]
    assert rows["s01-fp32-twin (rounding twin)"][2] == "waiting"
    folder.skip("s02-fp32")
    with qtbot.waitSignal(view.filled):
        view.refresh()
    assert "left out" in {_cells(view, 0, n)[2] for n in range(6)}


def test_that_a_double_click_opens_the_study_and_inspects_a_run(qtbot: QtBot, tmp_path: Path) -> None:
    folder = small_sweep(tmp_path, seeds=2, twins=0)
    write_member(folder, folder.plan.member("s01-fp32"))
    session = Session()
    view = _view(qtbot, tmp_path, session)
    study, places = view.topLevelItem(0), []
    session.requests.place.connect(places.append)
    assert study is not None
    run = next(study.child(n) for n in range(study.childCount()) if study.child(n).text(0) == "s01-fp32")
    view.itemActivated.emit(run, 0)
    assert places == ["inspect"]
    view.itemActivated.emit(study, 0)
    assert session.study.folder == folder.path
    assert places[-1] == "compare/groups"
    qtbot.waitUntil(lambda: session.study.grid is not None and not view.findChild(Answer).busy)


def test_that_a_broken_study_is_a_row_that_says_so_and_no_study_is_no_row(qtbot: QtBot, tmp_path: Path) -> None:
    assert _view(qtbot, tmp_path).isHidden()
    folder = small_sweep(tmp_path)
    (folder.path / SPEC).write_text("nonsense = ", encoding="utf-8")
    view = _view(qtbot, tmp_path)
    assert _cells(view, 0)[2] == "unreadable"


def test_that_the_study_of_the_last_session_comes_back(qtbot: QtBot, tmp_path: Path) -> None:
    folder = small_sweep(tmp_path)
    for _ in range(2):  # chosen by hand, then by the settings
        window = Window(Settings(), Notices())
        start = StartupStages(window, [])
        window.show()
        qtbot.waitUntil(lambda window=window: window.session is not None)
        session = window.session
        assert session is not None
        if session.study.folder is None:
            session.open_study(folder.path)
        assert session.study.folder == folder.path
        qtbot.waitUntil(lambda session=session: session.study.grid is not None)
        qtbot.waitUntil(lambda window=window: not window.host.waiting())
        close_window(qtbot, window)
        start.deleteLater()
