"""The language of the window: which one, and the new start that changes it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import QCoreApplication, QLocale, QTranslator
from PySide6.QtWidgets import QApplication, QMessageBox
from pytestqt.qtbot import QtBot

from precgui import words
from precgui.gui.settings import Settings
from precgui.gui.shell.language import asked_language, restart_command, use_language
from precgui.gui.shell.window import Window


@pytest.fixture
def any_language(monkeypatch: pytest.MonkeyPatch, qapp: QApplication) -> Iterator[None]:
    monkeypatch.delenv("PRECGUI_LANGUAGE")
    font = qapp.font()
    yield
    words.use("en")
    qapp.setFont(font)
    for translator in qapp.findChildren(QTranslator):
        QCoreApplication.removeTranslator(translator)
        translator.deleteLater()


@pytest.mark.usefixtures("any_language")
def test_that_the_setting_chooses_and_the_variable_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QLocale, "uiLanguages", lambda _: ["zh-Hans-CN", "zh-CN", "zh"])
    assert [asked_language(each) for each in ("system", "en", "zh_CN")] == ["zh_CN", "en", "zh_CN"]
    monkeypatch.setenv("PRECGUI_LANGUAGE", "en")
    assert asked_language("zh_CN") == "en"


@pytest.mark.usefixtures("any_language")
def test_that_chinese_comes_with_the_dialogs_of_qt_and_a_font_that_has_it(qapp: QApplication) -> None:
    use_language(qapp, "zh_CN")
    assert words.language() == "zh_CN"
    assert QCoreApplication.translate("QPlatformTheme", "Cancel") == "取消"
    assert "Noto Sans CJK SC" in qapp.font().families()


@pytest.mark.usefixtures("any_language")
def test_that_a_new_language_is_kept_and_asks_for_a_new_start(qtbot: QtBot, working: Window) -> None:
    working.set_language("zh_CN")
    (question,) = [box for box in working.findChildren(QMessageBox) if box.isVisible()]
    assert Settings()["window/language"] == "zh_CN"
    assert not working.is_restarting
    next(b for b in question.buttons() if b.text() == "Start again now").click()
    qtbot.waitUntil(lambda: not working.isVisible())
    assert working.is_restarting


@pytest.mark.usefixtures("any_language")
def test_that_the_language_of_now_asks_nothing(working: Window) -> None:
    working.set_language("en")
    assert [box for box in working.findChildren(QMessageBox) if box.isVisible()] == []


def test_that_the_new_start_is_the_same_program_without_its_files() -> None:
    command = restart_command(
        ["python3", "-X", "dev", "/bin/precgui", "run.h5", "--fresh"], ["/bin/precgui", "run.h5", "--fresh"]
    )
    assert command[1:] == ["-X", "dev", "/bin/precgui"]
    command = restart_command(["python3", "-m", "precgui", "run.h5"], ["/place/precgui/__main__.py", "run.h5"])
    assert command[1:] == ["-m", "precgui"]
