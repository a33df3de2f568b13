"""The proof of a finding above the plots of Live."""

from __future__ import annotations

import dataclasses
import itertools

from pytestqt.qtbot import QtBot

from precgui.gui.panels.live.panel import LivePanel
from precgui.gui.panels.live.proof_card import MOST
from precgui.gui.proof import Proof
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.runs.diagnosis.findings import Evidence, Finding
from tests.runs.synthetic import live_run, synthetic_events


def numbers(signal: str) -> Evidence:
    series = tuple((step, 1.0 / step) for step in range(1, 40))
    return Evidence("a < b", {"a": 1.0}, f"{signal} falls", signal, series, 0.1)


def test_that_the_plots_of_a_proof_come_one_in_a_turn(qtbot: QtBot) -> None:
    """Three at once made the window stand still when a proof was shown."""
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
    counts = [len(card.plots)]

    def grown() -> bool:
        counts.append(len(card.plots))
        return counts[-1] == MOST

    high = card.sizeHint().height()
    qtbot.waitUntil(grown)
    assert counts[0] == 1 and max(later - now for now, later in itertools.pairwise(counts)) <= 1
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
    themes().set_mode("dark")
    qtbot.wait(50)
    assert panel.proof_card is None
