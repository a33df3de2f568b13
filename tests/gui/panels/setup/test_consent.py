"""Code that a configuration names runs only after the user has agreed to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtWidgets import QMessageBox
from pytestqt.qtbot import QtBot

from precgui.config import RunConfig
from precgui.gui.panels.live.panel import LivePanel
from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.session import Session
from precgui.sweeps.folder import create_sweep
from precgui.sweeps.spec import make_spec
from tests.fakes import FakeChild, Orders


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Orders:
    return Orders(monkeypatch)


@pytest.fixture
def panel(qtbot: QtBot, session: Orders) -> SetupPanel:
    made = SetupPanel(session)
    qtbot.addWidget(made)
    made.show()
    made.form.set_value(RunConfig(task="/somewhere/mine.py:make_task"))
    return made


def answer(panel: SetupPanel, text: str) -> None:
    box = panel.consent.question
    assert isinstance(box, QMessageBox)
    assert "/somewhere/mine.py" in box.text().replace("\u200b", "")
    next(button for button in box.buttons() if button.text() == text).click()
    assert panel.consent.question is None


def test_that_nothing_runs_without_consent(panel: SetupPanel, session: Orders) -> None:
    panel.start()
    assert session.ordered == []
    answer(panel, "Cancel")
    assert session.ordered == []


def test_that_the_run_starts_with_consent_and_is_not_asked_for_again(panel: SetupPanel, session: Orders) -> None:
    panel.start()
    answer(panel, "Run this code")
    panel.start()
    assert [each.task for each in session.ordered] == ["/somewhere/mine.py:make_task"] * 2


def test_that_consent_to_one_file_is_none_to_another(panel: SetupPanel, session: Orders) -> None:
    panel.start()
    answer(panel, "Run this code")
    panel.form.set_value(RunConfig(task="other.module:make"))
    panel.start()
    assert panel.consent.question is not None
    assert len(session.ordered) == 1


def test_that_refusal_is_what_enter_and_escape_give(panel: SetupPanel) -> None:
    panel.start()
    box = panel.consent.question
    assert box is not None
    default, escape = box.defaultButton(), box.escapeButton()
    assert default is not None
    assert escape is not None
    assert default.text() == escape.text() == "Cancel"
    box.close()


def test_that_the_tasks_of_precgui_need_no_consent(panel: SetupPanel, session: Orders) -> None:
    panel.form.set_value(RunConfig(task="text"))
    panel.start()
    assert [each.task for each in session.ordered] == ["text"]


@pytest.mark.parametrize("vary", [{}, {"task": ["digits", "/elsewhere/mine.py:make_task"]}])
def test_that_an_opened_study_goes_on_only_with_consent_to_its_code(
    qtbot: QtBot, tmp_path: Path, children: list[FakeChild], vary: dict[str, list[str]]
) -> None:
    base = RunConfig(task="digits" if vary else "/elsewhere/mine.py:make_task")
    folder = create_sweep(tmp_path / "of somebody", make_spec(base, ["fp32"], 2, vary=vary))
    session = Session()
    panel = LivePanel(session)
    qtbot.addWidget(panel)
    panel.show()
    session.study.open(folder.path)
    qtbot.waitUntil(lambda: panel.study.go_on_button.isVisible())
    for button, ask in (("Cancel", panel.study.take_button), ("Run this code", panel.study.go_on_button)):
        assert not session.study.is_running
        ask.clicked.emit()
        box = panel.study.consent.question
        assert isinstance(box, QMessageBox)
        assert "/elsewhere/mine.py" in box.text().replace("\u200b", "")
        next(choice for choice in box.buttons() if choice.text() == button).click()
    assert session.study.is_running and len(children) == 1
    session.study.give_up()
    assert not session.study.is_running
