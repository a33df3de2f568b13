"""The application ends although a thread of it hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
STUCK = """
import os, sys, threading
from PySide6.QtCore import QCoreApplication, QTimer
from precgui.gui.workers.kept_thread import wait_for_all
from precgui.gui.answer import Answer, thread

app = QCoreApplication([])
Answer(app).ask(thread(threading.Event().wait))
QTimer.singleShot(50, app.quit)
app.exec()
print("left the loop", wait_for_all(0.1))
"""


def test_that_the_process_ends_while_a_thread_hangs() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "QT_QPA_PLATFORM": "offscreen"}
    done = subprocess.run(
        [sys.executable, "-c", STUCK], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "left the loop False\n"
    assert done.returncode == 0, done.stderr
