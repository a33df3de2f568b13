"""The binding itself: some releases of PySide6 lose a reference to True at every emit and abort after a while."""

from __future__ import annotations

import sys

from PySide6.QtCore import QObject, Signal


class _Source(QObject):
    fired = Signal(int)


def test_that_emit_loses_no_reference_to_true() -> None:
    source = _Source()
    source.fired.connect(lambda _: None)
    before = sys.getrefcount(True)
    for value in range(200):
        source.fired.emit(value)
    assert before - sys.getrefcount(True) < 100
