"""The proof of a finding above the plots of Live."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from pytestqt.qtbot import QtBot

from precgui.gui.panels.live import proof_card
from precgui.gui.panels.live.panel import LivePanel
from precgui.gui.panels.live.proof_card import MOST
from precgui.gui.proof import Proof
from precgui.gui.session import Session
from precgui.runs.diagnosis.findings import Evidence, Finding
from tests.gui.theme_changes import change_theme
from tests.runs.synthetic import live_run, synthetic_events


def numbers(signal: str) -> Evidence:
    series = tuple((step, 1.0 / step) for step in range(1, 40))
    return Evidence("a < b", {"a": 1.0}, f"{signal} falls", signal, series, 0.1)


def test_that_the_plots_of_a_proof_come_one_in_a_turn(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three at once made the window stand still when a proof was shown."""
    turns: list[Callable[[], object]] = []
    monkeypatch.setattr(proof_card, "in_next_turn", lambda _owner, act: turns.append(act))
    session = Session()
    panel = LivePanel(session)
    qtbot.addWidget(panel)
    panel.resize(1200, 900)
    panel.show()
    key = session.runs.add(live_run(synthetic_events(40)))
    finding = Finding("x", "error", "It is so", 3, 9, tuple(map(numbers, "abcd")), "Do so.", 1.0, "a source")
    panel.show_proof(Proof(key, finding))
    card = panel.proof_card
    assert card is not None
    high = card.sizeHint().height()
    for count in range(1, MOST + 1):
        assert len(card.plots) == count and len(turns) == 1
        turns.pop()()
    assert not turns
    assert [plot.evidence.signal for plot in card.plots] == ["a", "b", "c"]
    qtbot.waitUntil(lambda: all(plot.isVisible() for plot in card.plots))
    assert card.sizeHint().height() == high
    qtbot.waitUntil(lambda: len({(plot.y(), plot.height(), plot.width() // 9) for plot in card.plots}) == 1)


def test_that_a_proof_that_is_closed_at_once_makes_no_more_plots(qtbot: QtBot) -> None:
    session = Session()
    panel = LivePanel(session)
    qtbot.addWidget(panel)
    panel.show()
    key = session.runs.add(live_run(synthetic_events(40)))
    finding = Finding("x", "error", "It is so", 3, 9, tuple(map(numbers, "abc")), "Do so.", 1.0, "a source")
    panel.show_proof(Proof(key, dataclasses.replace(finding)))
    panel.close_proof()
    change_theme(qtbot, "dark")
    qtbot.wait(50)
    assert panel.proof_card is None
