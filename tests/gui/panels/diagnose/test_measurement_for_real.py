"""A run that breaks, its finding, and the replay of its step in FP64 from the card: everything really trains."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from precgui import config
from precgui.gui.panels.diagnose import measurement
from precgui.gui.panels.diagnose.panel import DiagnosePanel
from precgui.gui.session import Session
from precgui.job import Job

LONG_MS = 480_000  # on a machine that may be busy


def test_that_a_card_measures_its_step_and_shows_the_result(qtbot: QtBot, tmp_path: Path) -> None:
    settings = [
        "precision=fp16-amp",
        "model.name=mlp",
        "optimizer.lr=30",
        "train.max_steps=12",
        "device=cpu",
        "threads=1",
    ]
    path = tmp_path / "broken.h5"
    assert Job(config.load("digits-quick", settings), path).run().status == "completed"
    session = Session()
    panel = DiagnosePanel(session)
    qtbot.addWidget(panel)
    panel.show()
    key = session.runs.open_file(path)
    places: list[str] = []
    session.requests.place.connect(places.append)
    qtbot.waitUntil(lambda: len(panel.diagnoses) == 1, timeout=LONG_MS)
    card = next(card for card in panel.cards if card.finding.replay_step is not None)
    step = card.finding.replay_step
    assert card.result.text() == ""
    qtbot.mouseClick(card.measure_button, Qt.MouseButton.LeftButton)
    assert panel.cards[0].measure_button.text() == measurement.STOP
    qtbot.waitUntil(lambda: (session.runs.current, places) == (key, ["inspect/error"]), timeout=LONG_MS)
    card = next(card for card in panel.cards if card.finding.replay_step == step)
    assert card.result.text().startswith(f"Measured in FP64, step {step}: ")
    assert card.result.isVisibleTo(card)
    assert card.measure_button.text() == measurement.MEASURE
