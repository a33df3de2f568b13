"""Notices: each cause once, hooks that are put back, banners and the list."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QToolButton
from pytestqt.qtbot import QtBot

from precgui.gui.notices import LIMIT, Notice, NoticeEntry, Notices, caught, crash_log
from precgui.gui.shell.banners import Banner, NoticeList
from precgui.gui.shell.window import Window
from tests import needs


def fail(text: str) -> None:
    raise RuntimeError(text)


def raised(text: str) -> tuple[type[BaseException], BaseException, object]:
    try:
        fail(text)
    except RuntimeError as error:
        return type(error), error, error.__traceback__
    raise AssertionError


def test_that_one_cause_is_kept_once_with_its_count() -> None:
    notices = Notices()
    for _ in range(3):
        notices.post(Notice("error", "The disk is full."))
    notices.post(Notice("warning", "The disk is full."))
    assert [(entry.notice.severity, entry.count) for entry in notices.entries()] == [("error", 3), ("warning", 1)]


def test_that_the_list_is_bounded() -> None:
    notices = Notices()
    for n in range(LIMIT + 5):
        notices.post(Notice("info", f"note {n}"))
    kept = notices.entries()
    assert len(kept) == LIMIT
    assert kept[-1].notice.text == f"note {LIMIT + 4}"


def test_that_reading_marks_all_until_the_next_comes() -> None:
    notices = Notices()
    notices.post(Notice("info", "one"))
    notices.mark_read()
    assert notices.unread() == 0
    notices.post(Notice("info", "one"))
    assert notices.unread() == 1


def test_that_a_late_listener_hears_what_was_posted_before() -> None:
    notices = Notices()
    notices.post(Notice("info", "early"))
    heard: list[NoticeEntry] = []
    notices.subscribe(heard.append)
    assert [entry.notice.text for entry in heard] == ["early"]


def test_that_an_uncaught_exception_becomes_a_notice_and_a_line_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    notices, log = Notices(), io.StringIO()
    hooks = sys.excepthook, threading.excepthook
    with caught(notices, log):
        for text in ("the value is -1", "the value is -2"):
            sys.excepthook(*raised(text))
    entry = notices.entries()[0]
    assert len(notices.entries()) == 1 and entry.count == 2
    assert entry.notice.text == "Something went wrong inside precgui: RuntimeError: the value is -2"
    assert "in fail" in entry.notice.details
    assert log.getvalue().count("Traceback") == 1
    assert (sys.excepthook, threading.excepthook) == hooks
    assert "RuntimeError" in capsys.readouterr().err


def test_that_an_exception_in_a_thread_is_caught(capsys: pytest.CaptureFixture[str]) -> None:
    notices = Notices()
    with caught(notices, None):
        thread = threading.Thread(target=fail, args=("in a thread",))
        thread.start()
        thread.join()
    assert "in a thread" in notices.entries()[0].notice.text


def test_that_a_crash_log_stays_only_when_something_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    script = (
        "import sys\nfrom pathlib import Path\nfrom precgui.gui.notices import crash_log\n"
        "with crash_log(Path(sys.argv[1])) as (log, earlier):\n"
        "    print(earlier.read_text() if earlier else 'nothing', end='')\n"
        "    log.write(sys.argv[2])\n"
    )

    def session(written: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", script, str(folder), written], capture_output=True, text=True, check=True
        ).stdout

    assert session("") == "nothing"
    assert not (folder / "crash.log").exists()
    assert session("it broke") == "nothing"
    assert session("") == "it broke"
    assert session("") == "nothing"


def test_that_a_fatal_signal_is_written_to_the_crash_log(tmp_path: Path) -> None:
    script = (
        "import ctypes, sys\nfrom pathlib import Path\nfrom precgui.gui.notices import crash_log\n"
        "with crash_log(Path(sys.argv[1])):\n    ctypes.string_at(0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, check=False)
    assert ended.returncode != 0
    assert "Fatal Python error" in (tmp_path / "crash.log").read_text(encoding="utf-8")


@needs.ordinary_user
def test_that_a_folder_that_cannot_be_written_only_costs_the_log(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with crash_log(tmp_path / "state") as (log, earlier):
        assert log is None and earlier is None


def test_that_a_file_in_the_place_of_the_folder_only_costs_the_log(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way", encoding="utf-8")
    with crash_log(tmp_path / "state") as (log, earlier):
        assert log is None and earlier is None


# In the window ---------------------------------------------------------------------------------------------


def shown(window: Window) -> list[Banner]:
    return list(window.banners.banners.values())


def test_that_a_notice_from_another_thread_becomes_a_banner(window: Window, notices: Notices, qtbot: QtBot) -> None:
    thread = threading.Thread(target=notices.post, args=(Notice("error", "The engine has died."),))
    thread.start()
    thread.join()
    qtbot.waitUntil(lambda: len(shown(window)) == 1)
    assert shown(window)[0].text.text() == "The engine has died."
    assert window.line.bell.text() == "1"


def test_that_the_same_cause_is_one_banner_with_its_count(window: Window, notices: Notices) -> None:
    for _ in range(3):
        notices.post(Notice("warning", "No sensor."))
    assert len(shown(window)) == 1
    assert "seen 3 times" in shown(window)[0].findChild(QLabel, "severity").text()


def test_that_banners_cover_no_panel_and_stay_few(window: Window, notices: Notices, qtbot: QtBot) -> None:
    window.resize(800, 560)
    for n in range(6):
        notices.post(Notice("error", f"{n}: " + "a long sentence about what went wrong " * 6, details="more"))
    qtbot.wait(20)
    assert 1 <= len(shown(window)) <= 3
    area, panels = window.banners.geometry(), window.host.geometry()
    assert not area.intersects(panels) and panels.height() > window.height() / 2
    assert all(banner.height() >= banner.heightForWidth(banner.width()) for banner in shown(window))


def test_that_a_long_notice_covers_little_of_a_small_window(window: Window, notices: Notices, qtbot: QtBot) -> None:
    window.resize(640, 480)
    for number in range(3):
        notices.post(Notice("error", f"{number}: " + "This is a sentence that goes on and on. " * 20))
    qtbot.waitUntil(lambda: len(shown(window)) == 1)
    (banner,) = shown(window)
    assert "2: This" in banner.toolTip() and "2: This" in banner.text.text()
    qtbot.waitUntil(lambda: 0 < window.banners.height() < window.host.height() / 4)
    window.resize(1280, 800)
    qtbot.waitUntil(lambda: banner.text.height() > 3 * banner.text.fontMetrics().lineSpacing())


def test_that_a_remedy_acts_and_closes_the_banner(window: Window, notices: Notices, qtbot: QtBot) -> None:
    done: list[bool] = []
    notices.post(Notice("warning", "It broke.", remedies=(("Mend it", lambda: done.append(True)),)))
    button = next(b for b in shown(window)[0].findChildren(QToolButton) if b.text() == "Mend it")
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert done == [True]
    assert not shown(window)


def test_that_a_closed_banner_stays_in_the_list_with_its_details(
    window: Window, notices: Notices, qtbot: QtBot
) -> None:
    notices.post(Notice("error", "The run failed.", details="Traceback: line 3"))
    shown(window)[0].closed.emit()
    assert not shown(window)
    window.show_notices()
    dialog = window.findChild(NoticeList)
    assert dialog is not None
    assert "The run failed." in dialog.list.item(0).text()
    assert "Traceback: line 3" in dialog.details.toPlainText()
    assert window.line.bell.text() == ""
    window.show_notices()
    qtbot.waitUntil(lambda: len(window.findChildren(NoticeList)) == 1)  # the list that was open gave way
    window.findChild(NoticeList).close()
    qtbot.waitUntil(lambda: not window.findChildren(NoticeList))
