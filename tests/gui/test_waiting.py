"""How the tests of the window wait: a clock that is set ends no wait, and one that ends says for what it was."""

from __future__ import annotations

import time
from functools import partial

import pytest
from pytestqt.exceptions import TimeoutError as WaitTimeoutError
from pytestqt.qtbot import QtBot

from tests.gui.conftest import wait_in_rounds


def test_that_a_clock_that_is_set_forward_ends_no_wait(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = time.time, []
    monkeypatch.setattr(time, "time", lambda: now() + 100_000 * len(asked))
    qtbot.waitUntil(lambda: bool(asked.append(None)) or len(asked) > 4)
    assert len(asked) == 5


def test_that_a_wait_that_ends_in_vain_names_its_condition_and_its_threads(qtbot: QtBot) -> None:
    wait_until = type(qtbot).waitUntil
    with pytest.raises(WaitTimeoutError, match=r"waited 40 ms for .*never\(\).*threads at"):
        wait_in_rounds(partial(wait_until, qtbot), lambda: never(), timeout=40, round_ms=20)


def never() -> bool:
    return False
