"""The formats panel as a user drives it: mouse, keyboard, absurd input, themes, small windows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyqtgraph as pg
import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QFileDialog, QLabel, QPushButton, QScrollArea, QToolButton, QWidget
from pytestqt.qtbot import QtBot

from precgui.formats.registry import MAIN, formats
from precgui.gui.panels.formats import FormatsPanel
from precgui.gui.panels.formats.bits import BitsTab
from precgui.gui.panels.formats.lab import LabTab
from precgui.gui.panels.formats.panel import TABS
from precgui.gui.panels.formats.ranges import RangesTab
from precgui.gui.panels.formats.reference import ReferenceTab
from precgui.gui.theme import themes
from tests.gui.theme_changes import change_theme


@pytest.fixture
def panel(qtbot: QtBot) -> Iterator[FormatsPanel]:
    made = FormatsPanel(object())
    qtbot.addWidget(made)
    made.resize(1200, 800)
    made.show()
    yield made


@pytest.fixture
def bits(panel: FormatsPanel) -> BitsTab:
    tab = panel.tab(0)
    assert isinstance(tab, BitsTab)
    tab.grid.setFocus()
    return tab


def _tab(panel: FormatsPanel, kind: type) -> object:
    index = [made for _, _, made in TABS].index(kind)
    panel.tabs.setCurrentIndex(index)
    return panel.tab(index)


def _click(qtbot: QtBot, bits: BitsTab, name: str, bit: int) -> None:
    qtbot.mouseClick(bits.grid, Qt.MouseButton.LeftButton, pos=bits.grid.cell_rect(name, bit).center())


def test_that_the_seven_main_formats_are_shown_at_first(bits: BitsTab) -> None:
    assert set(MAIN) <= set(bits.explorer.names)
    for name in MAIN:
        assert bits.grid.cell_rect(name, 0).isValid()


def test_that_a_click_flips_a_bit_and_every_format_follows(qtbot: QtBot, bits: BitsTab) -> None:
    bits.set_text("1")
    _click(qtbot, bits, "fp16", 0)
    assert bits.edit.text() == "fp16:0x3c01"
    assert bits.explorer.report("fp32").stored.real.value == 1 + 2**-10
    _click(qtbot, bits, "fp16", 15)
    assert bits.explorer.real.negative


def test_that_a_drag_sets_bits_and_is_one_step_of_undo(qtbot: QtBot, bits: BitsTab) -> None:
    bits.set_text("fp16:0x3c00")
    start, end = bits.grid.cell_rect("fp16", 9).center(), bits.grid.cell_rect("fp16", 6).center()
    qtbot.mousePress(bits.grid, Qt.MouseButton.LeftButton, pos=start)
    for share in (0.25, 0.5, 0.75, 1.0):
        step = QPoint(round(start.x() + share * (end.x() - start.x())), start.y())
        qtbot.mouseMove(bits.grid, step)
    qtbot.mouseRelease(bits.grid, Qt.MouseButton.LeftButton, pos=end)
    assert bits.explorer.report("fp16").stored.code == 0x3FC0
    bits.undo()
    assert bits.explorer.report("fp16").stored.code == 0x3C00
    bits.redo()
    assert bits.explorer.report("fp16").stored.code == 0x3FC0


def test_that_the_keyboard_reaches_every_bit(qtbot: QtBot, bits: BitsTab) -> None:
    bits.set_text("0")
    bits.grid.choose("e4m3fn")
    for key in (Qt.Key.Key_End, Qt.Key.Key_Space):
        qtbot.keyClick(bits.grid, key)
    assert bits.explorer.report("e4m3fn").stored.code == 1
    qtbot.keyClick(bits.grid, Qt.Key.Key_Home)
    for key in (Qt.Key.Key_1, Qt.Key.Key_0, Qt.Key.Key_1):
        qtbot.keyClick(bits.grid, key)
    assert bits.explorer.report("e4m3fn").stored.code == 0b10100001
    qtbot.keyClick(bits.grid, Qt.Key.Key_Down)
    assert bits.grid.chosen == "e5m2"
    assert "e5m2, bit" in bits.grid.accessibleDescription()


def test_that_bits_and_letters_grow_with_a_wide_window(qtbot: QtBot, bits: BitsTab) -> None:
    grid = bits.grid
    sizes = []
    for width in (700, 1000, 1600, 4000):
        grid.resize(width, grid.height())
        cells = [grid.cell_rect("fp64", bit) for bit in range(64)]
        assert max(cell.right() for cell in cells) < width
        assert all(not one.intersects(two) for one, two in pairwise(cells))
        sizes.append((cells[0].width(), grid.font().pointSizeF()))
    assert sizes[0] == sizes[1]
    assert sizes[2] == (26, pytest.approx(1.6 * sizes[0][1]))
    assert sizes[3] == sizes[2]


def test_that_a_scroll_bar_does_not_change_the_size_of_letters_to_and_fro(
    panel: FormatsPanel, qtbot: QtBot, bits: BitsTab
) -> None:
    area = next(area for area in bits.findChildren(QScrollArea) if area.isAncestorOf(bits.grid))
    bits.menu.choose(list(formats()))
    for width in (1300, 1420, 1560):
        panel.resize(width, 800)
        QApplication.processEvents()
        needed = bits.grid.height()
        for room in range(needed - 30, needed + 31, 10):  # where the bar comes and goes
            panel.resize(width, panel.height() + room - area.viewport().height())
            QApplication.processEvents()
            sizes = set()
            for _ in range(8):
                QApplication.processEvents()
                sizes.add(bits.grid.font().pointSizeF())
            assert len(sizes) == 1


def test_that_stepping_goes_through_zero_and_to_infinity(qtbot: QtBot, bits: BitsTab) -> None:
    bits.set_text("fp16:0x8001")
    bits.grid.choose("fp16")
    codes = []
    for _ in range(3):
        qtbot.keyClick(bits.grid, Qt.Key.Key_PageUp)
        codes.append(bits.explorer.report("fp16").stored.code)
    assert codes == [0, 1, 2]
    bits.set_text("65504")
    bits.up.click()
    assert bits.explorer.report("fp16").stored.real.kind == "inf"


def test_that_typing_shows_at_once_and_what_was_typed_stays(qtbot: QtBot, bits: BitsTab) -> None:
    bits.edit.clear()
    qtbot.keyClicks(bits.edit, "1/3")
    assert bits.edit.text() == "1/3"
    assert bits.explorer.report("bf16").stored.real.value == 171 / 512
    assert "1/3" in bits.message.text() or "exactly" in bits.message.text()


@pytest.mark.parametrize(
    "words", ["1e999999", "9" * 10_000, "1/0", "😀", "(((((", "nan(", "0x", "1e-20000", "-", "inf-inf"]
)
def test_that_absurd_input_gets_one_sentence_and_keeps_the_rows(qtbot: QtBot, bits: BitsTab, words: str) -> None:
    bits.edit.setText(words)
    bits.edit.textEdited.emit(words)
    assert bits.grid.chosen is not None
    assert "\n" not in bits.message.text()
    assert bits.message.text()
    bits.grid.grab()
    bits.edit.setText("2")
    bits.edit.textEdited.emit("2")
    assert bits.explorer.report("fp16").stored.real.value == 2


def test_that_the_payload_of_a_nan_is_edited(bits: BitsTab) -> None:
    bits.set_text("nan")
    bits.grid.choose("fp32")
    editor = bits.details.nan_box
    assert editor.isVisible()
    editor.payload.setText("0x2a")
    editor.payload.editingFinished.emit()
    assert bits.explorer.report("fp32").stored.code == 0x7FC0002A
    editor.quiet.click()
    assert bits.explorer.report("fp32").stored.category == "signalling nan"
    editor.payload.setText("0xffffffff")
    editor.payload.editingFinished.emit()
    assert "does not fit" in editor.fault.text()
    for words in ("9" * 6000, "😀", ""):
        editor.payload.setText(words)
        editor.payload.editingFinished.emit()
        assert "such as 0x2a" in editor.fault.text()
    bits.set_text("1")
    assert not editor.isVisible()


def test_that_rounding_and_stack_change_what_is_stored(bits: BitsTab) -> None:
    bits.set_text("500")
    assert bits.explorer.report("e4m3fn").stored.real.kind == "nan"
    bits.switches.stack.setCurrentText("torch >= 2.12")
    assert bits.explorer.report("e4m3fn").stored.real.value == 448
    bits.switches.rounding.setCurrentIndex(bits.switches.rounding.findData("stochastic"))
    assert bits.switches.seed.isVisible()


def test_that_formats_are_chosen_and_made(bits: BitsTab) -> None:
    bits.menu.choose(["fp16", "bf16"])
    assert list(bits.explorer.names) == ["bf16", "fp16"]
    bits.menu.custom.setText("e5m7")
    bits.menu.custom.returnPressed.emit()
    assert "e5m7" in bits.explorer.names
    bits.menu.custom.setText("e99m7")
    bits.menu.custom.returnPressed.emit()
    assert "too wide" in bits.menu.custom.toolTip()


def test_that_values_are_copied(bits: BitsTab) -> None:
    bits.set_text("0.1")
    bits.grid.choose("fp16")
    (button,) = [button for button in bits.findChildren(QToolButton) if button.text() == "Copy"]
    menu = button.menu()
    menu.aboutToShow.emit()
    forms = {action.text().split(":")[0]: action for action in menu.actions()}
    assert {"Hexadecimal", "Python", "C", "torch", "Exact decimal"} <= forms.keys()
    forms["Python"].trigger()
    assert QGuiApplication.clipboard().text() == "float.fromhex('0x1.998p-4')"
    assert float.fromhex("0x1.998p-4") == float(np.float16(0.1))


def test_that_a_toggle_with_all_formats_repaints_within_a_frame(bits: BitsTab) -> None:
    """Ten times the promised 16 ms, of the time of this process: a test must not fail because the machine is busy."""
    bits.menu.choose(list(formats()))
    best = 1.0
    for turn in range(5):
        begin = time.process_time()
        bits.grid.bit_set.emit("fp32", 3, turn % 2 == 0, False)
        bits.grid.repaint()
        best = min(best, time.process_time() - begin)
    assert best < 0.16


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_that_every_tab_is_made_in_both_themes_and_small(panel: FormatsPanel, mode: str, qtbot: QtBot) -> None:
    change_theme(qtbot, mode)
    for size in ((1200, 800), (640, 420)):
        panel.resize(*size)
        for index in range(len(TABS)):
            panel.tabs.setCurrentIndex(index)
            qtbot.wait(60)
            assert not panel.grab().isNull()


def test_that_the_reference_sorts_filters_and_exports(panel: FormatsPanel, tmp_path: Path) -> None:
    tab = _tab(panel, ReferenceTab)
    assert isinstance(tab, ReferenceTab)
    tab.table.sortByColumn(2, Qt.SortOrder.AscendingOrder)
    bits = [float(tab.proxy.index(row, 2).data()) for row in range(tab.proxy.rowCount())]
    assert bits == sorted(bits)
    tab.filter.setText("nvfp4")
    assert tab.proxy.rowCount() == 1
    tab.filter.clear()
    tab.table.selectRow(3)
    assert tab.title.text()
    tab.export(tmp_path / "formats.csv")
    assert "65504" in (tmp_path / "formats.csv").read_text(encoding="utf-8")
    tab.export(tmp_path / "formats.json")
    assert (tmp_path / "formats.json").stat().st_size > 10_000
    tab.export(tmp_path / "none" / "formats.csv")
    assert "cannot be written" in tab.title.text()


def test_that_the_reference_says_where_a_format_comes_from_and_whether_that_was_opened(panel: FormatsPanel) -> None:
    tab = _tab(panel, ReferenceTab)
    assert isinstance(tab, ReferenceTab)
    tab.filter.setText("e2m3")
    tab.table.selectRow(0)
    assert "OCP Microscaling Formats (MX) Specification" in tab.words.text()
    assert "not opened for this table" in tab.words.text()
    assert "float6_e2m3fn" in tab.words.text()


def test_that_a_refuted_claim_shows_its_bits(panel: FormatsPanel) -> None:
    tab = _tab(panel, ReferenceTab)
    assert isinstance(tab, ReferenceTab)
    claim = next(label for label in tab.findChildren(QLabel) if "6.1e-5" in label.text())
    claim.linkActivated.emit("show")
    bits = panel.tab(0)
    assert isinstance(bits, BitsTab)
    assert panel.tabs.currentIndex() == 0
    assert bits.edit.text() == "2**-24"
    assert bits.explorer.report("fp16").stored.code == 1


def test_that_every_experiment_says_what_is_seen_in_any_format(panel: FormatsPanel, qtbot: QtBot) -> None:
    tab = _tab(panel, LabTab)
    assert isinstance(tab, LabTab)
    for row in range(tab.list.count()):
        tab.list.setCurrentRow(row)
        experiment = tab.experiment(row)
        for name in ("e5m7", "int8", "nf4", "e8m0", "e15m60", "fp16"):
            experiment.format.setCurrentText(name)  # type: ignore[attr-defined]
            experiment.refresh()
            qtbot.waitUntil(lambda experiment=experiment: not experiment.computing.busy)
            assert len(experiment.result.text()) > 30
            assert experiment.result.property("kind") != "error"
        assert experiment.plot.getPlotItem().listDataItems() or experiment.plot.getPlotItem().items
        experiment.format.setCurrentText("fp17")  # type: ignore[attr-defined]
        assert "no number format" in experiment.result.text()


def test_that_the_ranges_are_drawn_for_any_choice(panel: FormatsPanel) -> None:
    tab = _tab(panel, RangesTab)
    assert isinstance(tab, RangesTab)
    tab.menu.choose(list(formats()))
    tab.menu.choose([])
    assert not panel.grab().isNull()


def test_that_a_bar_that_leaves_the_picture_has_an_arrow_at_each_end(panel: FormatsPanel) -> None:
    tab = _tab(panel, RangesTab)
    assert isinstance(tab, RangesTab)

    def arrows(name: str) -> set[str]:
        tab.menu.choose([name])
        items = tab.bars.getPlotItem().items
        return {item.toPlainText() for item in items if isinstance(item, pg.TextItem)} & {"◂", "▸"}

    assert arrows("fp64") == {"◂", "▸"}
    assert arrows("fp16") == set()


@pytest.mark.parametrize(("kind", "button"), [(ReferenceTab, "Export…"), (RangesTab, "Open tensor…")])
def test_that_a_file_dialog_is_let_go_when_it_is_closed(
    qtbot: QtBot, panel: FormatsPanel, kind: type, button: str
) -> None:
    tab = _tab(panel, kind)
    assert isinstance(tab, QWidget)
    next(each for each in tab.findChildren(QPushButton) if each.text() == button).click()
    (dialog,) = tab.findChildren(QFileDialog)
    dialog.reject()
    qtbot.waitUntil(lambda: not tab.findChildren(QFileDialog))


def test_that_no_figure_of_the_reference_is_cut_when_it_is_first_shown(qtbot: QtBot, panel: FormatsPanel) -> None:
    themes().dress(panel)
    tab = _tab(panel, ReferenceTab)
    assert isinstance(tab, ReferenceTab)
    table = tab.table

    def all_fit() -> bool:
        return all(table.columnWidth(n) >= table.sizeHintForColumn(n) for n in range(tab.model.columnCount()))

    qtbot.waitUntil(all_fit)
