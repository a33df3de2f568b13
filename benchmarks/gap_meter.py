"""How long the event loop of a window stands still, in CPU time of its own thread, and where."""

from __future__ import annotations

import faulthandler
import threading
import time
from typing import TextIO

from PySide6.QtCore import Qt, QTimer

GAP_S = 0.3  # of the CPU time of the thread of the window
TICK_MS = 5


class GapMeter:
    """CPU time of the thread of the window between two turns of its event loop, with the stack of long ones."""

    def __init__(self, stacks: TextIO) -> None:
        self.longest: list[tuple[float, str]] = []
        self.label = "start"
        self._stacks = stacks
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._last = time.thread_time()
        self._dumped = True
        self._timer = QTimer(interval=TICK_MS)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._turn)
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._watch_stacks, daemon=True)

    def start(self) -> None:
        self._last = time.thread_time()
        self._timer.start()
        self._watch.start()

    def leave_out(self) -> None:
        """Do not count what this turn has cost until now: it was work of the benchmark."""
        self._last, self._dumped = time.thread_time(), False

    def stop(self) -> None:
        self._ended.set()
        self._watch.join()
        self._timer.stop()

    def _turn(self) -> None:
        now = time.thread_time()
        if now - self._last > GAP_S / 3:
            self.longest = sorted([*self.longest, (now - self._last, self.label)], reverse=True)[:12]
        self._last, self._dumped = now, False

    def _watch_stacks(self) -> None:
        """Write the stack of the main thread once in each long gap; in C, so that no object of Qt dies here."""
        while not self._ended.wait(0.05):
            if not self._dumped and time.clock_gettime(self._clock) - self._last > 0.8 * GAP_S:
                self._dumped = True
                self._stacks.write(f"gap at {self.label}\n")
                self._stacks.flush()
                faulthandler.dump_traceback(self._stacks, all_threads=True)
