"""*Try the fix* from end to end: a real run that diverges, a second one with the fix, and Compare with both."""

from __future__ import annotations

from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from precgui.config import load
from precgui.gui.panels.compare.panel import ComparePanel
from precgui.gui.panels.diagnose.panel import DiagnosePanel
from precgui.gui.session import Session

DIVERGING = ["precision=fp32", "optimizer.lr=50", "train.max_steps=60"]


def test_that_a_diverging_run_is_trained_again_with_its_fix_and_both_are_compared(qtbot: QtBot) -> None:
    session, places = Session(), list[str]()
    session.requests.place.connect(places.append)
    diagnose, compare = DiagnosePanel(session), ComparePanel(session)
    for panel in (diagnose, compare):
        qtbot.addWidget(panel)
        panel.resize(1000, 700)
        panel.show()
    session.training.start(load("digits-quick", DIVERGING))
    qtbot.waitUntil(lambda: len(session.runs) == 1 and not session.training.is_training)
    (broken,) = session.runs
    qtbot.waitUntil(lambda: any(card.finding.rule == "divergence" for card in diagnose.cards))
    card = next(card for card in diagnose.cards if card.finding.rule == "divergence")
    change = dict(card.finding.config_change)["optimizer.lr"]
    qtbot.mouseClick(card.fix_button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: len(session.runs) == 2)
    assert places == []  # Compare opens when the second run has ended
    qtbot.waitUntil(lambda: places == ["compare"])
    fixed = next(key for key in session.runs if key != broken)
    config = session.runs[fixed].run.config
    assert config.optimizer.lr == change and config.train.max_steps == 60
    qtbot.waitUntil(lambda: [list(session.runs)[row] for row in compare.table.chosen()] == [broken, fixed])
    assert compare.baseline.currentData() == broken
    ended: list[bool] = []
    session.shutdown(lambda: ended.append(True))
    qtbot.waitUntil(lambda: bool(ended))
