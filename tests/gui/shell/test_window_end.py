"""What the window remembers, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from precgui.gui.notices import Notices
from precgui.gui.session import Session
from precgui.gui.settings import FIELDS, Settings
from precgui.gui.shell.window import Window
from tests.fakes import Orders
from tests.gui.conftest import close_window

# Settings --------------------------------------------------------------------------------------------------


def test_that_the_next_window_looks_like_the_last(qtbot: QtBot, notices: Notices) -> None:
    first = Window(Settings(), notices)
    first.show()
    first.resize(700, 560)
    first.show_panel("library")
    first.set_theme("dark")
    close_window(qtbot, first)
    settings = Settings()
    second = Window(settings, notices)
    assert (second.width(), second.height()) == (700, 560)
    assert second.host.current == "library"
    assert settings["window/theme"] == "dark"
    close_window(qtbot, second)


def test_that_broken_settings_are_repaired_field_by_field(tmp_path: Path) -> None:
    path = tmp_path / "settings.ini"
    good = Settings(path)
    good["window/panel"] = "compare"
    good["files/recent"] = ["/a.h5", "/b.h5"]
    good["window/geometry"] = b"\x00\x01binary"
    assert good.save()
    text = path.read_text(encoding="utf-8").replace("[window]", "[window]\ntheme=purple\nnarrow_navigation=perhaps")
    path.write_text(text, encoding="utf-8")
    repaired = Settings(path)
    assert set(repaired.repaired) == {"window/theme", "window/narrow_navigation"}
    assert repaired["window/theme"] == "system"
    assert repaired["window/panel"] == "compare"
    assert repaired["files/recent"] == ["/a.h5", "/b.h5"]
    assert repaired["window/geometry"] == b"\x00\x01binary"
    assert "purple" in path.with_suffix(".broken.ini").read_text(encoding="utf-8")
    repaired.save()
    assert Settings(path).repaired == []


def test_that_a_settings_file_of_rubbish_gives_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "settings.ini"
    path.write_bytes(bytes(range(256)) * 20)
    settings = Settings(path)
    assert {name: settings[name] for name in FIELDS} == {name: default for name, (_, default) in FIELDS.items()}


def test_that_a_fresh_start_ignores_what_was_remembered(tmp_path: Path) -> None:
    path = tmp_path / "settings.ini"
    kept = Settings(path)
    kept["window/panel"] = "compare"
    kept.save()
    assert Settings(path, fresh=True)["window/panel"] == FIELDS["window/panel"][1]
    assert Settings(path)["window/panel"] == "compare"


def test_that_recent_files_are_few_and_newest_first(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "settings.ini")
    for n in range(14):
        settings.remember_file(tmp_path / f"{n % 12}.h5")
    recent = [Path(entry).name for entry in settings["files/recent"]]
    assert len(recent) == 10 and recent[:3] == ["1.h5", "0.h5", "11.h5"]


# The end ---------------------------------------------------------------------------------------------------


class Busy(Orders):
    """A session in which a run goes on until it is told to end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch, is_training=True)
        self.asked: list[str] = []

    def shutdown(self, done: object) -> None:
        self.asked.append("shutdown")
        self.is_training = False
        super().shutdown(done)


def test_that_closing_during_a_run_asks_and_can_be_declined(
    qtbot: QtBot, notices: Notices, monkeypatch: pytest.MonkeyPatch
) -> None:
    window, session = Window(Settings(), notices), Busy(monkeypatch)
    window.show()
    window.attach(session)
    window.close()
    question = window.closing.question
    assert window.isVisible() and question is not None
    keep = next(button for button in question.buttons() if button.text() == "Keep running")
    keep.click()
    assert window.isVisible() and window.closing.question is None and not session.asked
    window.close()
    assert window.closing.question is not None
    stop = next(button for button in window.closing.question.buttons() if button.text() == "Stop and close")
    stop.click()
    qtbot.waitUntil(lambda: not window.isVisible())
    assert session.asked == ["shutdown"]
    window.deleteLater()


def test_that_an_idle_window_closes_at_once(qtbot: QtBot, notices: Notices) -> None:
    window = Window(Settings(), notices)
    window.show()
    window.attach(Session(window))
    window.close()
    assert window.closing.question is None
    qtbot.waitUntil(lambda: not window.isVisible())
    window.deleteLater()
