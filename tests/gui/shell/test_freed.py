"""Objects do not grow in number: runs that come and go, places that are visited again and again, work that has ended.

Numbers of objects decide, not MiB: the allocator keeps freed memory for reasons of its own.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QObject
from PySide6.QtWidgets import QApplication, QGraphicsView, QWidget
from pytestqt.qtbot import QtBot

from precgui.config import RunConfig
from precgui.events import RunEnded, RunStarted
from precgui.gui.answer import Answer, ThreadWork, thread
from precgui.gui.open_run import OpenRun
from precgui.gui.session import Session
from precgui.gui.shell.window import PANELS, Window
from precgui.runs.file.reader import SavedRun
from tests.gui.conftest import write_run
from tests.runs.synthetic import live_run

COUNTED = (8, 12, 16)  # rounds; each place was shown once before the first


def collect() -> None:
    for _ in range(2):
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
        gc.collect()


def alive(*kinds: type) -> Counter[str]:
    """Python objects of these classes; their own `__class__` is not asked: that of some of torch's warns."""
    return Counter(type(each).__name__ for each in gc.get_objects() if issubclass(type(each), kinds))


def objects_of_qt(window: Window) -> Counter[str]:
    """QObjects of the window by class, items of plots among them."""
    found = Counter(type(each).__name__ for each in window.findChildren(QObject))
    scenes = [view.scene() for view in window.findChildren(QGraphicsView)]
    found["items of plots"] = sum(len(scene.items()) for scene in scenes if scene is not None)
    found["windows"] = sum(isinstance(each, QWidget) for each in QApplication.topLevelWidgets())
    return found


_earlier: weakref.WeakSet[ThreadWork] = weakref.WeakSet()  # of tests before, which may still hold their windows


@pytest.fixture(autouse=True)
def work_of_earlier_tests() -> None:
    collect()
    _earlier.update(each for each in gc.get_objects() if issubclass(type(each), ThreadWork))


def few_work() -> bool:
    """Whether work in threads has ended and is gone, but for the two polls of Runs: its folder, and its studies."""
    collect()
    return alive(ThreadWork).total() - len(_earlier) <= 2


def test_that_work_that_has_ended_is_freed_with_its_result(qtbot: QtBot) -> None:
    class Result:
        """Something large."""

    made: list[weakref.ref[Result]] = []

    def compute() -> Result:
        result = Result()
        made.append(weakref.ref(result))
        return result

    owner = QObject()
    taken: list[bool] = []
    answer = Answer(owner, answered=lambda result: taken.append(isinstance(result, Result)))
    for _ in range(5):
        answer.ask(thread(compute))
        qtbot.waitUntil(lambda: not answer.busy)
    qtbot.waitUntil(lambda: few_work() and not any(each() for each in made))
    assert taken == [True] * 5
    owner.deleteLater()


def test_that_a_closed_run_of_this_window_is_kept_as_its_file_where_it_has_one(qtbot: QtBot, run_file: Path) -> None:
    session = Session()
    run = live_run([RunStarted(0.0, 1, 1, "cpu", {}), RunEnded(1.0, "completed")], RunConfig())
    run.run_id, run.path = "a", run_file
    session.runs.put(OpenRun("a", run, "a", 0, 0))
    freed = weakref.ref(run)
    del run
    session.runs.close("a", by_hand=True)
    collect()
    assert freed() is None
    session.undo.undo()
    assert [each.run.path for each in session.runs.values()] == [run_file]


def test_that_runs_and_places_that_come_and_go_leave_nothing(qtbot: QtBot, working: Window, tmp_path: Path) -> None:
    window, session = working, working.session
    assert session is not None
    for panel in PANELS:
        window.show_panel(panel.id)
    paths = [write_run(tmp_path / f"{name}.h5", name, name) for name in ("fp32", "bf16-amp")]
    counts: list[Counter[str]] = []
    for number in range(COUNTED[-1] + 1):
        keys = [session.runs.open_file(path) for path in paths]
        window.show_panel(PANELS[number % len(PANELS)].id)
        qtbot.wait(10)
        for key in keys:
            assert key is not None
            session.runs.close(key, by_hand=True)
        if number in COUNTED:
            window.show_panel("formats")
            qtbot.waitUntil(few_work)
            counts.append(objects_of_qt(window) + alive(SavedRun, OpenRun))
    for each in counts:
        each.pop("QObject")  # without a class that Python knows: animations of the style
    first, second, last = counts  # a part that is built late adds to one of them; what is kept adds to each
    grown = {
        name: (first[name], second[name], number)
        for name, number in last.items()
        if number > second[name] + 3 and second[name] > first[name] + 3
    }
    assert not grown, grown
