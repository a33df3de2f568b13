"""CPU time of the window for a key typed in Run, a change of theme, and the first opening of each tab of Formats.

    window_cost.py [RUN.h5 ...]

CPU time, not wall time, so that other work on the machine counts little. It draws offscreen where there is no display.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtCore import QLocale
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLineEdit

from precgui.gui.notices import Notices
from precgui.gui.panels.formats.panel import FormatsPanel
from precgui.gui.settings import Settings
from precgui.gui.shell.startup import Start
from precgui.gui.shell.window import Window
from precgui.gui.theme import themes

KEYS = 50
DRESSING_TURNS = 20  # in which hidden panels are dressed
SIZE = (1280, 800)


def main(files: list[str]) -> int:
    with tempfile.TemporaryDirectory() as own:
        os.environ.update(HOME=own, PRECGUI_STATE=f"{own}/state")
        QLocale.setDefault(QLocale.c())
        app = QApplication(sys.argv[:1])
        app.setStyle("Fusion")
        window = Window(Settings(fresh=True), Notices())
        start = Start(window, [Path(file) for file in files])
        window.resize(*SIZE)
        window.show()
        turn(app, lambda: window.session is not None and not window.host.waiting())
        window.show_panel("setup")
        turn(app, lambda: True)
        measure(app, window)
        assert window.session is not None
        ended: list[bool] = []
        window.session.shutdown(lambda: ended.append(True))
        turn(app, lambda: bool(ended))
        start.deleteLater()
        window.deleteLater()
    return 0


def turn(app: QApplication, until: Callable[[], bool]) -> None:
    """Process events for half a second, then until the condition holds."""
    end = time.monotonic() + 0.5
    while time.monotonic() < end or not until():
        app.processEvents()
        time.sleep(0.005)


def cpu_ms(app: QApplication, act: Callable[[], object]) -> float:
    """CPU time of an act and of the events that follow from it, in milliseconds."""
    before = time.process_time()
    act()
    app.processEvents()
    return 1e3 * (time.process_time() - before)


def measure(app: QApplication, window: Window) -> None:
    line = window.host.panels["setup"].findChild(QLineEdit, "optimizer.lr")
    assert isinstance(line, QLineEdit)
    line.clear()
    keys = [cpu_ms(app, lambda key=str(n % 10): QTest.keyClicks(line, key)) for n in range(KEYS)]
    print(f"a key typed in Run: {sum(keys) / KEYS:.1f} ms CPU")
    line.setText("0.05")
    for mode in ("dark", "light", "dark", "light"):
        turns = [cpu_ms(app, lambda mode=mode: themes().set_mode(mode))]
        turns += [cpu_ms(app, lambda: None) for _ in range(DRESSING_TURNS)]
        print(f"theme {mode}: {sum(turns):.0f} ms CPU, the longest turn of the event loop {max(turns):.0f}")
    window.show_panel("formats")
    turn(app, lambda: True)
    formats = window.host.panels["formats"]
    assert isinstance(formats, FormatsPanel)
    for index in range(1, formats.tabs.count()):
        opening = cpu_ms(app, lambda index=index: formats.tabs.setCurrentIndex(index))
        print(f"first opening of {formats.tabs.tabText(index)}: {opening:.0f} ms CPU")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
