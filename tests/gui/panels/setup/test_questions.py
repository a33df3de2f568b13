"""The dialogs of Run that ask for files and folders, and where their answers go."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtWidgets import QFileDialog
from pytestqt.qtbot import QtBot

from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.session import Session


def test_that_answers_arrive_where_they_were_asked_for(qtbot: QtBot, tmp_path: Path) -> None:
    panel = SetupPanel(Session())
    qtbot.addWidget(panel)

    def answer(path: Path) -> None:
        (dialog,) = panel.findChildren(QFileDialog)
        dialog.fileSelected.emit(str(path))
        dialog.close()
        qtbot.waitUntil(lambda: not panel.findChildren(QFileDialog))

    config, model, folder = tmp_path / "kept.toml", tmp_path / "model.safetensors", tmp_path / "new"
    panel.ask_to_save()
    answer(config)
    assert config.exists()
    panel.ask_to_load()
    answer(config)
    assert panel.source == str(config)
    panel.study.ask_for_folder()
    answer(folder)
    assert panel.study.path.text() == str(folder)
    panel.existing.ask(folder=False)
    answer(model)
    assert panel.existing.source.text() == str(model)
    panel.existing.ask_place()
    answer(folder)
    assert panel.existing.place.text() == str(folder)
