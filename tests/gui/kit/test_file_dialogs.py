"""Dialogs that ask for files."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtWidgets import QFileDialog, QWidget
from pytestqt.qtbot import QtBot

from precgui.gui.kit.file_dialogs import ask_for_file, ask_for_files, ask_for_folder, ask_for_new_file


def test_that_each_kind_of_question_gives_a_path_and_the_dialog_goes(qtbot: QtBot, tmp_path: Path) -> None:
    parent = QWidget()
    qtbot.addWidget(parent)
    file, new, chosen = tmp_path / "a.toml", tmp_path / "b.toml", list[Path]()
    file.write_text("")
    for dialog, path in (
        (ask_for_file(parent, "Open", tmp_path, "TOML (*.toml)", chosen.append), file),
        (ask_for_folder(parent, "Folder", tmp_path.parent, chosen.append), tmp_path),
        (ask_for_new_file(parent, "Save", tmp_path, "", chosen.append, suffix="toml", name="b"), new),
    ):
        dialog.fileSelected.emit(str(path))
        dialog.close()
    assert chosen == [file, tmp_path, new]
    qtbot.waitUntil(lambda: not parent.findChildren(QFileDialog))


def test_that_several_files_are_asked_for_at_once(qtbot: QtBot, tmp_path: Path) -> None:
    parent, chosen = QWidget(), list[list[Path]]()
    qtbot.addWidget(parent)
    ask_for_files(parent, "Open", tmp_path, "", chosen.append)
    (dialog,) = parent.findChildren(QFileDialog)
    dialog.filesSelected.emit([str(tmp_path / "a"), str(tmp_path / "b")])
    assert chosen == [[tmp_path / "a", tmp_path / "b"]]


def test_that_a_name_and_its_suffix_are_proposed_and_a_writer_may_refuse_to_replace(
    qtbot: QtBot, tmp_path: Path
) -> None:
    parent = QWidget()
    qtbot.addWidget(parent)
    dialog = ask_for_new_file(
        parent, "Save", tmp_path, "CSV (*.csv)", lambda path: None, suffix="csv", name="x.csv", replaces=False
    )
    assert dialog.defaultSuffix() == "csv" and Path(dialog.selectedFiles()[0]).name == "x.csv"
    assert dialog.testOption(QFileDialog.Option.DontConfirmOverwrite)
    assert dialog.acceptMode() == QFileDialog.AcceptMode.AcceptSave
