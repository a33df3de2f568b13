"""Random clicks, keys, drags and resizes over the whole window while a training goes on. Prints one JSON document.

    monkey.py [--actions 10000] [--seed 1] [--log FILE]

The same seed draws the same actions; which widgets they meet depends on the moment, too. Every action is written to the
log before it is done, so that a crash leaves the last one there. Exit code 1 for a traceback of precgui, for a closed
window, for a gap of the event loop above GAP_S of the CPU time of its own thread, or for memory that grows.

Memory is compared at rest, RESTS times in a round: the training is stopped, its rows are in its file, garbage is
collected and freed pages are given back. Beside a training it rises and falls by tens of MiB with the rows that the run
of the moment holds, which says nothing of what stays.

Runs, settings and the bin lie in a temporary folder; links and files are opened nowhere; file dialogs are dismissed.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO, cast

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from gap_meter import GAP_S, GapMeter
from PySide6.QtCore import QLocale, QObject, QPoint, QPointF, Qt, QTimer, QtMsgType, Slot, qInstallMessageHandler
from PySide6.QtGui import QDesktopServices, QDrag, QKeyEvent, QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractScrollArea,
    QApplication,
    QComboBox,
    QFileDialog,
    QListWidget,
    QMenu,
    QTabBar,
    QWidget,
)

from precgui import config, words
from precgui.gui.kit.segmented import SegmentedChoice
from precgui.gui.notices import NoticeEntry, Notices, caught
from precgui.gui.settings import Settings
from precgui.gui.shell.free_memory import return_free_memory
from precgui.gui.shell.startup import GcTimer, StartupStages
from precgui.gui.shell.window import PANELS, Window
from precgui.gui.theme import themes
from precgui.runs.live import LiveRun

ACTION_MS = 20
RESTS = 10
REST_S = 30.0  # at most until the window is at rest
SETTLE_S = 2.0  # for work in threads
OPEN_RUNS = 30  # from the start; older ones are closed, and `open_runs.py` measures the cost of a run
TRIES = 20  # to find a widget that is not scrolled away or covered
GROWTH = 1.10  # of the memory at rest, from the first rest to the last; half of it in the second half
RECIPE = ("digits-quick", ["train.epochs=200"])
SHORT_RECIPE = ("digits-quick", ["train.max_steps=200"])
TEXTS = ("nan", "1e400", "-0", "<b>x</b>", "0x7f", "a" * 40, "précis 数", "'; --", "0.1", "256", "../..", "%s{}")
KEYS = (
    *(Qt.Key.Key_Tab, Qt.Key.Key_Backtab, Qt.Key.Key_Return, Qt.Key.Key_Space, Qt.Key.Key_Escape, Qt.Key.Key_Delete),
    *(Qt.Key.Key_Up, Qt.Key.Key_Down, Qt.Key.Key_Left, Qt.Key.Key_Right, Qt.Key.Key_PageDown, Qt.Key.Key_Home),
    *(Qt.Key.Key_Plus, Qt.Key.Key_Minus, Qt.Key.Key_A, Qt.Key.Key_F, Qt.Key.Key_G, Qt.Key.Key_F2, Qt.Key.Key_F5),
)
DIALOGS = ("file.open", "file.scalars", "help.docs", "help.palette", "help.keys", "help.about")
WAYS = {
    "click": 34, "press": 12, "double_click": 3, "right_click": 4, "drag": 8, "wheel": 6, "key": 12, "text": 7,
    "shortcut": 7, "menu": 3, "resize": 2, "theme": 1, "close_dialog": 1,
}  # fmt: skip


class Outside(QObject):
    """Stands where a browser or file manager would open."""

    @Slot("QUrl")
    def ignore(self, url: object) -> None:
        """Do nothing."""


class Monkey:
    """Acts on what is visible, as a person with a mouse and keys could, but without sense."""

    def __init__(self, app: QApplication, window: Window, seed: int, log: TextIO) -> None:
        self._app, self._window, self._log = app, window, log
        self._random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.last: deque[str] = deque(maxlen=30)
        self._ways = list(WAYS)
        self._weights = list(WAYS.values())

    def act(self) -> str:
        """Do one action and return its description."""
        way = self._random.choices(self._ways, self._weights)[0]
        place = self._top()
        target = self._target(place)
        text = f"{sum(self.done.values())} {way} {_name(target)} in {self._window.host.current}"
        self.last.append(text)
        self._log.write(text + "\n")
        self._log.flush()
        self.done[way] += 1
        if isinstance(place, QFileDialog):
            place.reject()
        else:
            getattr(self, f"_{way}")(target)
        return text

    def _top(self) -> QWidget:
        return self._app.activePopupWidget() or self._app.activeModalWidget() or self._window

    def _target(self, place: QWidget) -> QWidget:
        parts = [part for part in place.findChildren(QWidget) if part.isVisible() and part.isEnabled()]
        for _ in range(TRIES if parts else 0):
            chosen = self._random.choice(parts)
            if chosen.window() is place.window() and not chosen.visibleRegion().isEmpty():
                return chosen.viewport() if isinstance(chosen, QAbstractScrollArea) else chosen
        return place

    def _point(self, target: QWidget) -> QPoint:
        area = target.visibleRegion().boundingRect()
        return QPoint(
            area.left() + self._random.randrange(max(area.width(), 1)),
            area.top() + self._random.randrange(max(area.height(), 1)),
        )

    def _click(self, target: QWidget) -> None:
        modifier = self._random.choice([Qt.KeyboardModifier.NoModifier] * 6 + [Qt.KeyboardModifier.ShiftModifier])
        QTest.mouseClick(target, Qt.MouseButton.LeftButton, modifier, self._point(target))

    def _press(self, target: QWidget) -> None:
        """Use a control as it is meant: the random places of `_click` seldom hit a small one."""
        place = self._top()
        kinds = (QAbstractButton, QComboBox, QTabBar)
        parts = [part for kind in kinds for part in place.findChildren(kind) if part.isVisible() and part.isEnabled()]
        if parts:
            part = self._random.choice(parts)
            QTest.mouseClick(part, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier, part.rect().center())

    def _double_click(self, target: QWidget) -> None:
        QTest.mouseDClick(target, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier, self._point(target))

    def _right_click(self, target: QWidget) -> None:
        place = self._point(target)
        QTest.mouseClick(target, Qt.MouseButton.RightButton, Qt.KeyboardModifier.NoModifier, place)

    def _drag(self, target: QWidget) -> None:
        start, end = self._point(target), self._point(target)
        none = Qt.KeyboardModifier.NoModifier
        QTest.mousePress(target, Qt.MouseButton.LeftButton, none, start)
        for part in range(1, 5):
            QTest.mouseMove(target, start + (end - start) * part / 4)
        QTest.mouseRelease(target, Qt.MouseButton.LeftButton, none, end)

    def _wheel(self, target: QWidget) -> None:
        place = QPointF(self._point(target))
        turn = QPoint(0, self._random.choice((-120, 120, 360, -360)))
        held, phase = (Qt.MouseButton.NoButton, Qt.KeyboardModifier.NoModifier), Qt.ScrollPhase.NoScrollPhase
        wheel = QWheelEvent(place, target.mapToGlobal(place), QPoint(), turn, *held, phase, False)
        self._app.sendEvent(target, wheel)

    def _focus(self) -> QWidget:
        return self._app.focusWidget() or self._top()

    def _key(self, target: QWidget) -> None:
        QTest.keyClick(self._focus(), self._random.choice(KEYS))

    def _text(self, target: QWidget) -> None:
        for letter in self._random.choice(TEXTS):
            for kind in (QKeyEvent.Type.KeyPress, QKeyEvent.Type.KeyRelease):
                self._app.sendEvent(self._focus(), QKeyEvent(kind, 0, Qt.KeyboardModifier.NoModifier, letter))

    def _shortcut(self, target: QWidget) -> None:
        """The keys of a panel mostly, so that all of them are visited."""
        if self._random.random() < 0.8:
            self._window.show_panel(self._random.choice(PANELS).id)
        else:
            key = self._random.choice((Qt.Key.Key_K, Qt.Key.Key_B, Qt.Key.Key_N, Qt.Key.Key_R, Qt.Key.Key_Period))
            QTest.keyClick(self._focus(), key, Qt.KeyboardModifier.ControlModifier)

    def _menu(self, target: QWidget) -> None:
        popup = self._app.activePopupWidget()
        if isinstance(popup, QMenu) and popup.actions():
            action = self._random.choice(popup.actions())
            QTest.mouseClick(
                popup, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier, popup.actionGeometry(action).center()
            )
            return
        actions = [action for action in self._window.actions_.by_id.values() if action.isEnabled()]
        self._random.choice(actions).trigger()

    def _resize(self, target: QWidget) -> None:
        self._window.resize(self._random.randrange(640, 1700), self._random.randrange(480, 1000))

    def _theme(self, target: QWidget) -> None:
        self._window.set_theme(self._random.choice(("light", "dark")))

    def _close_dialog(self, target: QWidget) -> None:
        if (place := self._top()) is not self._window:
            place.close()


def _resident_mib() -> float:
    """The memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _name(widget: QWidget) -> str:
    """A widget for the log: its class, object name and text, and the class of its parent."""
    said = widget.objectName() or (widget.text() if isinstance(widget, QAbstractButton) else "")
    parent = widget.parentWidget()
    return f"{type(widget).__name__} {said!r} of {type(parent).__name__}"


class Chase:
    """One round: the window, the training under it, the monkey, and what is measured."""

    def __init__(self, seed: int, actions: int, folder: Path, log: TextIO, stacks: TextIO) -> None:
        QLocale.setDefault(QLocale.c())
        self._app = QApplication(sys.argv[:1])
        self._app.setStyle("Fusion")
        self._app.setQuitOnLastWindowClosed(False)
        self._actions, self._folder, self._log = actions, folder, log
        self.notices = Notices()
        self.tracebacks: list[str] = []
        self.qt_messages: Counter[str] = Counter()
        self.memory: list[tuple[float, float]] = []
        self.rests: list[tuple[int, float]] = []  # actions before it, MiB
        self._is_resting = False
        self._began = time.monotonic()
        self._training_s = 0.0
        self._hidden_s = 0
        self.notices.subscribe(self._on_notice)
        themes().set_mode("light")
        self.window = Window(Settings(fresh=True), self.notices)
        self.window.actions_.by_id["file.quit"].setEnabled(False)
        self._start = StartupStages(self.window, [])
        self._collector = GcTimer(self._app, self._start)
        self.monkey = Monkey(self._app, self.window, seed, log)
        self.gaps = GapMeter(stacks)

    def _on_notice(self, entry: NoticeEntry) -> None:
        if entry.notice.text.startswith("Something went wrong inside precgui"):
            self.tracebacks.append(entry.notice.details)

    def run(self) -> None:
        """Open the window, visit every panel and tab once, then act at random until all actions are done."""
        qInstallMessageHandler(self._on_qt)
        self.window.resize(1280, 800)
        self.window.show()
        self._turn_until(lambda: self.window.session is not None and not self.window.host.waiting(), 120.0)
        outside, method = Outside(), cast(Any, "ignore")  # its stubs ask for bytes, which PySide6 6.11.3 refuses
        for scheme in ("file", "http", "https"):
            QDesktopServices.setUrlHandler(scheme, outside, method)
        self._open_runs()
        self._tour()
        self._began = time.monotonic()
        self.gaps.start()
        second = QTimer(interval=1000)
        second.timeout.connect(self._each_second)
        self._each_second()
        second.start()
        self._act()
        self._app.exec()
        second.stop()
        self.gaps.stop()
        self._end()

    def _open_runs(self) -> None:
        """Train one run and open copies of it, so that the memory begins with as many runs as it ends with."""
        session = self.window.session
        assert session is not None
        session.training.start(config.load(*SHORT_RECIPE))
        self._turn_until(lambda: not session.is_busy, 900.0)
        (opened,) = session.runs.values()
        assert opened.run.path is not None
        copies = [opened.run.path.with_stem(f"copy-{number}") for number in range(1, OPEN_RUNS)]
        for path in copies:
            shutil.copy(opened.run.path, path)
        session.runs.opener.open(copies, lambda _: None)
        self._turn_until(lambda: len(session.runs) == OPEN_RUNS, 60.0)

    def _tour(self) -> None:
        """Open every panel, tab, view and dialog of the menus, so that what is made once is there before."""
        for spec in PANELS:
            self.window.show_panel(spec.id)
            for bar in self.window.host.panels[spec.id].findChildren(QTabBar):
                for index in range(bar.count()):
                    bar.setCurrentIndex(index)
                    self._turn_until(lambda: True, 5.0)
            for view in self.window.host.panels[spec.id].findChildren(SegmentedChoice):
                for button in view.findChildren(QAbstractButton)[::-1]:
                    button.click()
                    self._turn_until(lambda: True, 5.0)
        for action in DIALOGS:
            self.window.actions_.by_id[action].trigger()
            self._turn_until(lambda: True, 5.0)
            for dialog in iter(self._dialog, None):
                self._read_all(dialog)
                dialog.close()
                self._turn_until(lambda: True, 5.0)

    def _read_all(self, dialog: QWidget) -> None:
        """Choose each row of each list, such as the topics of the documentation."""
        for rows in dialog.findChildren(QListWidget):
            for row in range(rows.count()):
                rows.setCurrentRow(row)
                self._turn_until(lambda: True, 5.0)

    def _dialog(self) -> QWidget | None:
        return self._app.activePopupWidget() or self._app.activeModalWidget()

    def _act(self) -> None:
        """Act, and plan the next action first: a menu that is open turns the event loop inside this one."""
        done = sum(self.monkey.done.values())
        if done >= min((len(self.rests) + 1) * max(self._actions // RESTS, 1), self._actions) and not self._is_over:
            for popup in iter(self._app.activePopupWidget, None):
                popup.close()
            self._begin_rest()
            return
        if done >= self._actions:
            self._app.exit()  # quit() would ask the window, which asks about its run
            return
        QTimer.singleShot(ACTION_MS, self._act)
        self.gaps.label = self.monkey.act()

    @property
    def _is_over(self) -> bool:
        return bool(self.rests) and self.rests[-1][0] >= self._actions

    def _begin_rest(self) -> None:
        """Stop all training and wait until no run is held in memory."""
        session = self.window.session
        assert session is not None
        session.training.stop_all()
        session.study.stop()
        self._is_resting = True
        self._go_on_resting(time.monotonic(), None)

    def _go_on_resting(self, begin: float, still_since: float | None) -> None:
        session, now = self.window.session, time.monotonic()
        assert session is not None
        runs = [opened.run for opened in session.runs.values()]
        is_held = any(isinstance(run, LiveRun) and run.steps and not run.is_in_file for run in runs)
        still_since = None if session.is_busy or is_held else still_since or now
        if now - begin < REST_S and (still_since is None or now - still_since < SETTLE_S):
            QTimer.singleShot(50, lambda: self._go_on_resting(begin, still_since))
            return
        gc.collect()
        return_free_memory()
        self.rests.append((sum(self.monkey.done.values()), _resident_mib()))
        self._log.write("# at rest after {} actions: {:.0f} MiB\n".format(*self.rests[-1]))
        self._is_resting = False
        self.gaps.leave_out()
        self._act()

    def _each_second(self) -> None:
        """Note the memory, keep a training going, end a drag that waits for a mouse that is not there."""
        self.memory.append((time.monotonic() - self._began, _resident_mib()))
        if len(self.memory) % 60 == 0:
            self._log.write("# after {:.0f} s: {:.0f} MiB\n".format(*self.memory[-1]))
        QDrag.cancel()
        session = self.window.session
        assert session is not None
        if self._is_resting:
            return
        self._training_s += session.is_busy
        self._hidden_s += not self.window.isVisible()
        del session.training.waiting[3:]
        for key in list(session.runs)[:-OPEN_RUNS]:
            session.runs.close(key)
        if not session.is_busy and not session.training.waiting:
            session.training.start(config.load(*RECIPE))

    def _on_qt(self, kind: QtMsgType, context: object, text: str) -> None:
        if kind != QtMsgType.QtDebugMsg:
            self.qt_messages[text[:160]] += 1

    def _turn_until(self, condition: Callable[[], bool], limit_s: float) -> None:
        end, least = time.monotonic() + limit_s, time.monotonic() + 0.2
        while not condition() or time.monotonic() < least:
            if time.monotonic() > end:
                raise TimeoutError(f"the window was not ready within {limit_s:.0f} s")
            self._app.processEvents()
            time.sleep(0.005)

    def _end(self) -> None:
        session, ended = self.window.session, []
        assert session is not None
        session.shutdown(lambda: ended.append(True))
        self._turn_until(lambda: bool(ended), 60.0)
        self._collector.stop()
        self._start.deleteLater()
        self.window.deleteLater()
        self._turn_until(lambda: True, 5.0)
        qInstallMessageHandler(None)

    def report(self) -> dict[str, Any]:
        """All figures; `failures` says in words which limits were passed."""
        at_rest = [mib for _, mib in self.rests]
        growth = at_rest[-1] / at_rest[0]
        late_growth = at_rest[-1] / at_rest[(len(at_rest) - 1) // 2]
        worst = self.gaps.longest[0][0] if self.gaps.longest else 0.0
        failures = [f"{len(self.tracebacks)} tracebacks"] if self.tracebacks else []
        failures += [f"the window was closed for {self._hidden_s} s"] if self._hidden_s else []
        failures += [f"a gap of {worst:.2f} s"] if worst > GAP_S else []
        failures += [f"memory at rest grew by {growth - 1:.1%}"] if growth > GROWTH else []
        failures += (
            [f"memory at rest grew by {late_growth - 1:.1%} in the second half"]
            if late_growth > 1 + (GROWTH - 1) / 2
            else []
        )
        minutes = [(at, mib) for number, (at, mib) in enumerate(self.memory) if number % 60 == 0]
        return {
            "actions": sum(self.monkey.done.values()),
            "seconds": round(self.memory[-1][0]),
            "training_share": round(self._training_s / max(len(self.memory), 1), 2),
            "tracebacks": self.tracebacks,
            "longest_gaps_cpu_s": [(round(gap, 3), label) for gap, label in self.gaps.longest],
            "memory_growth_at_rest": round(growth, 3),
            "memory_growth_at_rest_in_second_half": round(late_growth, 3),
            "memory_mib_at_rest": [(done, round(mib)) for done, mib in self.rests],
            "memory_mib_by_minute": [(round(at), round(mib)) for at, mib in minutes],
            "qt_messages": dict(self.qt_messages.most_common(12)),
            "last_actions": list(self.monkey.last) if failures else [],
            "failures": failures,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actions", type=int, default=10_000, help="how many (default 10000)")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers (default 1)")
    parser.add_argument("--log", type=Path, help="file for every action (default: in the temporary folder)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as own:
        os.environ.update(HOME=own, PRECGUI_STATE=f"{own}/state", PRECGUI_RUNS=f"{own}/runs")
        os.environ[words.VARIABLE] = "en"  # another language would close the window to start it again
        path = asked.log or Path(own, "actions.log")
        with path.open("w", encoding="utf-8") as log, path.with_suffix(".gaps").open("w", encoding="utf-8") as stacks:
            faulthandler.enable()
            chase = Chase(asked.seed, asked.actions, Path(own), log, stacks)
            with caught(chase.notices, None):
                chase.run()
    report = chase.report()
    print(json.dumps(report, indent=2))
    return 1 if report["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
