"""What leaves the window: pictures that show what the plot shows, and values exactly as recorded."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PySide6.QtGui import QColor, QGuiApplication, QImage
from PySide6.QtWidgets import QFileDialog
from pytestqt.qtbot import QtBot

from precgui.events import Incident
from precgui.gui.plots.export import save_png, save_svg, write_csv
from precgui.gui.plots.linked import LinkedPlots
from precgui.gui.theme import themes
from tests.gui.plotted import Opened, opened, training_run


@pytest.fixture
def runs() -> list[Opened]:
    made = [opened(training_run(key, 400, seed), seed, f"run {key}") for seed, key in enumerate("ab")]
    made[0].run.values["loss"][7:10] = [math.nan, math.inf, -math.inf]
    made[0].run.incidents = [Incident(0.08, 8, "nonfinite_loss", "error", 'The loss is NaN, "really".', module="fc")]
    return made


@pytest.fixture
def plots(qtbot: QtBot, runs: list[Opened]) -> LinkedPlots:
    made = LinkedPlots()
    qtbot.addWidget(made)
    made.resize(900, 800)
    made.show()
    made.set_runs(runs)
    made.draw_pending()
    return made


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_that_the_csv_file_holds_the_raw_values_of_all_visible_runs(
    plots: LinkedPlots, runs: list[Opened], tmp_path: Path
) -> None:
    plots.show_range(100, 120)
    target = tmp_path / "loss.csv"
    list(write_csv(plots.frames[0].chart, target))
    rows = read(target)
    assert list(rows[0]) == ["run", "signal", "step", "time_s", "value"]
    for opened_run in runs:
        for signal in ("loss", "val_loss"):
            mine = [row for row in rows if row["run"] == opened_run.name and row["signal"] == signal]
            steps, values = opened_run.run.series(signal)
            np.testing.assert_array_equal([float(row["step"]) for row in mine], steps)
            np.testing.assert_array_equal([float(row["value"]) for row in mine], values)
            times = opened_run.run.series(signal, "time_s")[0]
            np.testing.assert_array_equal([float(row["time_s"]) for row in mine], times)
    assert [row["value"] for row in rows[7:10]] == ["nan", "inf", "-inf"]


def test_that_hidden_runs_are_not_exported(plots: LinkedPlots, runs: list[Opened], tmp_path: Path) -> None:
    runs[1].visible = False
    plots.set_runs(runs)
    list(write_csv(plots.frames[0].chart, tmp_path / "loss.csv"))
    assert {row["run"] for row in read(tmp_path / "loss.csv")} == {"run a"}


def test_that_events_are_exported_with_kind_and_message(plots: LinkedPlots, tmp_path: Path) -> None:
    list(write_csv(plots.frames[2].chart, tmp_path / "events.csv"))
    (row,) = read(tmp_path / "events.csv")
    assert row == {
        "run": "run a", "signal": "nonfinite_loss", "step": "8", "time_s": "0.08",
        "event": 'error: The loss is NaN, "really". [fc]',
    }  # fmt: skip


def test_that_an_abandoned_export_leaves_no_file(plots: LinkedPlots, tmp_path: Path) -> None:
    chunks = write_csv(plots.frames[0].chart, tmp_path / "loss.csv")
    next(chunks)
    chunks.close()  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []


def test_that_the_picture_shows_the_lines_in_their_colours(plots: LinkedPlots, tmp_path: Path) -> None:
    save_png(plots.frames[0].chart, tmp_path / "loss.png")
    image = QImage(str(tmp_path / "loss.png"))
    assert image.width() == 2 * plots.frames[0].chart.width()
    found = {image.pixelColor(x, y).name() for x in range(0, image.width(), 2) for y in range(0, image.height(), 2)}
    assert {themes().theme.runs[0], themes().theme.runs[1], QColor(themes().theme.base).name()} <= found


def test_that_the_svg_file_is_vectors_with_title_and_names(plots: LinkedPlots, tmp_path: Path) -> None:
    save_svg(plots.frames[0].chart, tmp_path / "loss.svg")
    root = ElementTree.parse(tmp_path / "loss.svg").getroot()
    words = " ".join(root.itertext())
    assert root.tag.endswith("svg")
    assert "Loss" in words and "run a" in words and "run b" in words
    assert sum(1 for _ in root.iter("{http://www.w3.org/2000/svg}path")) > 2
    assert not list(root.iter("{http://www.w3.org/2000/svg}image"))


def test_that_a_picture_can_be_copied(plots: LinkedPlots) -> None:
    plots.frames[0].copy_image()
    assert QGuiApplication.clipboard().image().width() == 2 * plots.frames[0].chart.width()
    assert plots.frames[0].note.text() == "Copied"


@pytest.mark.qt_log_ignore("does not support propagateSizeHints")
def test_that_the_dialog_opens_without_blocking_and_saves_what_is_chosen(
    plots: LinkedPlots, qtbot: QtBot, tmp_path: Path
) -> None:
    frame, target = plots.frames[0], tmp_path / "mine.csv"
    dialog = frame.saver.ask(frame.chart, "csv")
    assert isinstance(dialog, QFileDialog) and dialog.isVisible()
    dialog.fileSelected.emit(str(target))
    dialog.reject()
    qtbot.waitUntil(lambda: not frame.saver.is_busy)
    assert len(read(target)) == 2 * (400 + 8)
    assert frame.note.text() == "Saved mine.csv"


@pytest.mark.parametrize("form", ["csv", "png", "svg"])
def test_that_a_folder_that_cannot_be_written_is_told_in_one_sentence(
    plots: LinkedPlots, qtbot: QtBot, tmp_path: Path, form: str
) -> None:
    frame = plots.frames[0]
    with qtbot.waitSignal(plots.failed) as told:
        frame.saver.save(frame.chart, form, tmp_path / "missing" / f"loss.{form}")
    (sentence,) = told.args
    assert "not saved" in sentence and "missing" in sentence


def test_that_a_second_export_waits_for_the_first(plots: LinkedPlots, qtbot: QtBot, tmp_path: Path) -> None:
    frame = plots.frames[0]
    frame.saver.save(frame.chart, "csv", tmp_path / "first.csv")
    with qtbot.waitSignal(plots.failed) as told:
        frame.saver.save(frame.chart, "csv", tmp_path / "second.csv")
    assert "first.csv is still being written" in told.args[0]
    qtbot.waitUntil(lambda: (tmp_path / "first.csv").exists())
    assert not (tmp_path / "second.csv").exists()
