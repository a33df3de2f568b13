"""The list and the pictures of the Tensors panel in a person's hands: filter, sort, copy, point, keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QGuiApplication
from pytestqt.qtbot import QtBot

from precgui.events import EXPONENT_BINS, TENSOR_STATS, RunEnded, RunStarted, TensorStats
from precgui.gui.panels.formats.recorded import recorded as recorded_row
from precgui.gui.panels.inspect.tensors.model import AMAX, BAD, NAME, OVERFLOW, SAFE, UNDERFLOW
from precgui.gui.panels.inspect.tensors.panel import TensorsPanel
from precgui.gui.plots.signals import grouped
from precgui.gui.session import Session
from precgui.runs.tensors.grouping import ALL
from tests.gui.panels.inspect.tensors.test_panel import NAMES, cell, event, long_record, odd, panel, recorded, session
from tests.runs.synthetic import live_run, open_writer

__all__ = ["panel", "session"]


def shown(panel: TensorsPanel) -> list[str]:
    return [panel.list.order.index(row, NAME).data() for row in range(panel.list.order.rowCount())]


def test_that_the_list_can_be_filtered_by_parts_of_names(
    panel: TensorsPanel, session: Session, tmp_path: Path, qtbot: QtBot
) -> None:
    session.runs.open_file(recorded(tmp_path / "run.h5"))
    panel.list.choose(1)
    qtbot.keyClicks(panel.filter, "B. WEI")
    assert shown(panel) == [ALL, "b.weight"]
    assert panel.list.chosen() == 0  # what was chosen is hidden
    panel.filter.clear()
    assert shown(panel) == [ALL, *NAMES]


def test_that_a_sorted_list_follows_the_format_once_it_has_settled(
    panel: TensorsPanel, session: Session, tmp_path: Path, qtbot: QtBot
) -> None:
    session.runs.open_file(recorded(tmp_path / "run.h5"))
    panel.list.sortByColumn(OVERFLOW, Qt.SortOrder.DescendingOrder)
    assert shown(panel) == [ALL, *NAMES]
    panel.bar.slider.setValue(16)
    qtbot.waitUntil(lambda: shown(panel) == [ALL, "b.weight", "a.weight"])
    panel.list.sortByColumn(AMAX, Qt.SortOrder.AscendingOrder)
    assert shown(panel) == [ALL, "a.weight", "b.weight"]
    panel.bar.grouping.setCurrentText("by layer")
    panel.bar.grouping.activated.emit(1)
    assert shown(panel) == [ALL, "a", "b"]


def test_that_the_tensor_that_broke_first_comes_first(panel: TensorsPanel, session: Session, tmp_path: Path) -> None:
    session.runs.open_file(long_record(tmp_path / "run.h5", 9, 5))
    assert not panel.list.isColumnHidden(BAD)
    assert [cell(panel, row, BAD) for row in range(3)] == ["step 5", "step 5", "–"]
    for order in (Qt.SortOrder.AscendingOrder, Qt.SortOrder.DescendingOrder):
        panel.list.sortByColumn(BAD, order)
        assert shown(panel) == [ALL, "a.weight", "b.weight"]
    session.runs.open_file(recorded(tmp_path / "well.h5"))
    assert panel.list.isColumnHidden(BAD)


def test_that_a_run_without_a_finite_number_promises_nothing(
    panel: TensorsPanel, session: Session, tmp_path: Path
) -> None:
    nothing = TensorStats(1, 0.1, "gradient", NAMES, (1, 1), *only_nan())
    with open_writer(tmp_path / "run.h5") as emit:
        for each in (RunStarted(0.0, 1, 1, "cpu"), nothing, RunEnded(1.0, "completed")):
            emit(each)
    session.runs.open_file(tmp_path / "run.h5")
    assert "Not one finite number was recorded of the gradients." in panel.verdict.text()
    assert [cell(panel, 0, column) for column in (UNDERFLOW, OVERFLOW, SAFE, AMAX)] == ["–"] * 4


def only_nan() -> tuple[bytes, bytes]:
    stats, exponents = np.zeros((2, len(TENSOR_STATS))), np.zeros((2, EXPONENT_BINS), "<u4")
    stats[:, [TENSOR_STATS.index("count"), TENSOR_STATS.index("nan")]] = 7
    stats[:, TENSOR_STATS.index("amax")] = np.nan
    exponents[:, 255] = 7
    return stats.tobytes(), exponents.tobytes()


def test_that_numbers_are_copied_with_all_their_digits(
    panel: TensorsPanel, session: Session, tmp_path: Path, qtbot: QtBot
) -> None:
    session.runs.open_file(recorded(tmp_path / "run.h5"))
    panel.list.choose(1)
    panel.list.setFocus()
    qtbot.keyClick(panel.list, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    head, row = QGuiApplication.clipboard().text().split("\n")
    told = dict(zip(head.split("\t"), row.split("\t"), strict=True))
    assert (told["Tensor"], told["To zero (share)"], told["Largest"]) == ("a.weight", "0.4", "0.00146484375")
    panel.list.copy_all()
    assert len(QGuiApplication.clipboard().text().split("\n")) == 4
    assert panel.table.data(panel.table.index(1, UNDERFLOW), Qt.ItemDataRole.ToolTipRole) == (
        f"a.weight\nTo zero: 40 %, {grouped(1200)} of {grouped(3000)} elements of all recorded steps"
    )


def test_that_a_cell_of_the_picture_tells_its_numbers(panel: TensorsPanel, session: Session, tmp_path: Path) -> None:
    session.runs.open_file(recorded(tmp_path / "run.h5"))
    panel.list.choose(1)
    assert panel.spectrogram.cell_text(12.4, -30) == (
        "Measured at step 12\n2⁻³⁰ to 2⁻²⁹: 40 % of the elements, 40 of 100"
    )
    assert panel.spectrogram.cell_text(12.4, -29).endswith("0 % of the elements, 0 of 100")
    assert panel.spectrogram.cell_text(0, 128) == ""


def test_that_keys_go_from_look_to_look_and_back_to_the_whole(
    panel: TensorsPanel, session: Session, tmp_path: Path, qtbot: QtBot
) -> None:
    run = session.runs.open_file(recorded(tmp_path / "run.h5", 5))
    for key, step in ((Qt.Key.Key_Left, 5), (Qt.Key.Key_Left, 4), (Qt.Key.Key_Right, 5), (Qt.Key.Key_Right, 5)):
        qtbot.keyClick(panel.spectrogram, key)
        assert panel.moment.text.text().startswith(f"{ALL}, step {step}")
    whole = panel.spectrogram.view.viewRange()
    panel.spectrogram.view.zoom_to(QRectF(20, 20, 120, 60))
    session.runs.changed.emit(run)
    assert panel.spectrogram.view.viewRange() != whole  # what a person has chosen stays when data come
    qtbot.keyClick(panel.spectrogram, Qt.Key.Key_Home)
    assert panel.spectrogram.view.viewRange() == whole


def test_that_a_run_that_goes_on_moves_nothing_under_the_hand(
    panel: TensorsPanel, session: Session, tmp_path: Path
) -> None:
    run = live_run([event(step) for step in range(1, 9)])
    key = session.runs.add(run)
    panel.list.choose(2)
    resets: list[bool] = []
    panel.table.modelReset.connect(lambda: resets.append(True))
    panel.bar.kind_choice.model().rowsRemoved.connect(lambda *_: resets.append(True))
    run.extend([odd(9)])
    session.runs.changed.emit(key)
    assert not resets
    assert panel.list.chosen() == 2
    assert "step 9" in panel.moment.text.text()
    assert cell(panel, 1, BAD) == "step 9"


def test_that_the_formats_panel_weighs_samples_as_this_one_does(tmp_path: Path) -> None:
    """a.weight, of which one of 8 blocks was looked at, is 8 times as large as what was seen of it."""
    plain = event(1)
    sampled = TensorStats(1, 0.1, "gradient", NAMES, (8, 1), plain.stats, plain.exponents)
    record = live_run([sampled]).tensors()["gradient"]
    whole, one = recorded_row("all", record, None, 0), recorded_row("a", record, "a.weight", 0)
    assert whole is not None
    assert one is not None
    assert whole.losses("fp16")[0] == 8 * 40 / (8 * 100 + 100)
    assert one.losses("fp16")[0] == 0.4
