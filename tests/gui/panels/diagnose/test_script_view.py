"""A script in the window: pasted, opened and dropped text, its findings beside the lines, the change to copy."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QMimeData, QPoint, QPointF, Qt, QUrl
from PySide6.QtGui import QDropEvent, QGuiApplication
from pytestqt.qtbot import QtBot

from precgui.gui.notices import Notices
from precgui.gui.panels.diagnose.panel import RUNS, SCRIPT, DiagnosePanel
from precgui.gui.panels.diagnose.script_view import ScriptView
from precgui.gui.session import Session
from precgui.gui.settings import Settings
from precgui.gui.shell.file_menu import Files
from tests.lint.test_check import MISTAKES, RIGHT
from tests.lint.test_notebook import notebook


@pytest.fixture
def view(qtbot: QtBot) -> ScriptView:
    made = ScriptView()
    qtbot.addWidget(made)
    made.resize(800, 500)
    made.show()
    qtbot.waitExposed(made)
    return made


def test_that_pasted_code_has_its_findings_beside_the_lines(view: ScriptView, qtbot: QtBot) -> None:
    view.editor.setPlainText(MISTAKES["clip-before-unscale"])
    qtbot.waitUntil(lambda: len(view.cards) == 1)
    card = view.cards[0]
    assert card.finding.line == 10 and view.summary.text() == "1 finding."
    assert [each.cursor.blockNumber() + 1 for each in view.editor.extraSelections()] == [10]
    assert not card.claims.isHidden() and "It clips nothing" in card.claims.text()
    card.line_button.click()
    assert view.editor.textCursor().blockNumber() + 1 == 10
    assert "+    scaler.unscale_(optimizer)" in card.diff.toPlainText() and "+++" not in card.diff.toPlainText()
    card.copy_button.click()
    assert QGuiApplication.clipboard().text().startswith("--- a/script.py\n+++ b/script.py\n")
    view.grab()


def test_that_a_right_script_and_one_that_is_no_python_say_so(view: ScriptView, qtbot: QtBot) -> None:
    view.editor.setPlainText(RIGHT)
    qtbot.waitUntil(lambda: view.summary.text().startswith("Nothing was found."))
    view.editor.setPlainText("for x in (:\n")
    qtbot.waitUntil(lambda: "no Python" in view.summary.text())
    view.clear_button.click()
    qtbot.waitUntil(lambda: view.summary.text().startswith("Drop a Python file or a notebook here"))
    assert view.cards == [] and view.editor.extraSelections() == []


def test_that_a_notebook_is_shown_as_one_script(view: ScriptView, qtbot: QtBot, tmp_path: Path) -> None:
    path = tmp_path / "train.ipynb"
    path.write_text(notebook("!ls", MISTAKES["clip-before-unscale"]), encoding="utf-8")
    view.open(path)
    qtbot.waitUntil(lambda: len(view.cards) == 1)
    assert "# %% cell 2" in view.editor.toPlainText() and view.cards[0].finding.line == 13
    view.cards[0].copy_button.click()
    assert QGuiApplication.clipboard().text().startswith("--- a/train.py\n+++ b/train.py\n")
    path.write_text("{}", encoding="utf-8")
    view.open(path)
    assert "is no notebook" in view.summary.text()


def test_that_a_fragment_is_checked(view: ScriptView, qtbot: QtBot) -> None:
    view.editor.setPlainText("".join(f"    {line}\n" for line in MISTAKES["deprecated-amp"].splitlines()))
    qtbot.waitUntil(lambda: [card.finding.rule for card in view.cards] == ["deprecated-amp"])
    assert not view.cards[0].copy_button.isHidden()


def test_that_code_pasted_with_prose_around_it_has_its_change_to_copy(view: ScriptView, qtbot: QtBot) -> None:
    code = MISTAKES["clip-before-unscale"]
    view.editor.setPlainText(f"My loss is NaN:\n\n```python\n{code}```\n\nWhy does it happen?")
    qtbot.waitUntil(lambda: [card.finding.line for card in view.cards] == [13])
    card = view.cards[0]
    qtbot.waitUntil(lambda: card.diff.isVisible() and card.copy_button.isVisible())
    lines = card.diff.toPlainText().splitlines()
    assert [line for line in lines if line[0] in "+-"] == ["+    scaler.unscale_(optimizer)"]
    card.copy_button.click()
    assert QGuiApplication.clipboard().text() == card.change


def test_that_a_finding_without_a_change_offers_none(view: ScriptView, qtbot: QtBot) -> None:
    view.editor.setPlainText(MISTAKES["no-scaler"])
    qtbot.waitUntil(lambda: len(view.cards) == 1)
    assert view.cards[0].copy_button.isHidden() and view.cards[0].diff.isHidden()


def test_that_a_dropped_file_is_opened_and_not_inserted(view: ScriptView, qtbot: QtBot, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(MISTAKES["mask-beyond-fp16"], encoding="utf-8")
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(script))])
    view.editor.dropEvent(
        QDropEvent(QPointF(QPoint(20, 20)), Qt.DropAction.CopyAction, data, Qt.MouseButton.LeftButton,
                   Qt.KeyboardModifier.NoModifier)
    )  # fmt: skip
    assert view.editor.toPlainText() == MISTAKES["mask-beyond-fp16"] and view.name.text() == "train.py"
    qtbot.waitUntil(lambda: [card.finding.rule for card in view.cards] == ["mask-beyond-fp16"])
    view.open(tmp_path / "none.py")
    assert "none.py cannot be read" in view.summary.text()


def test_that_a_script_among_opened_files_goes_to_diagnose(qtbot: QtBot, tmp_path: Path) -> None:
    session, script = Session(), tmp_path / "train.py"
    script.write_text(MISTAKES["mask-beyond-fp16"], encoding="utf-8")
    panel = DiagnosePanel(session)
    qtbot.addWidget(panel)
    panel.show()
    files = Files(panel, Settings(fresh=True), Notices())
    files.attach(session)
    places: list[str] = []
    session.requests.place.connect(places.append)
    files.open([script])
    assert places == [f"diagnose/script:{script}"]
    panel.show_tab(places[0].partition("/")[2])
    assert panel.view.current == SCRIPT and panel.script.isVisible()
    qtbot.waitUntil(lambda: len(panel.script.cards) == 1)
    panel.show_tab("a run")
    assert panel.view.current == RUNS and panel.is_empty
