"""Arithmetic in the formats panel: operations, operands by their bits, sums with accumulators, absurd input."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from pytestqt.qtbot import QtBot

from precgui.formats.registry import formats
from precgui.gui.panels.formats import FormatsPanel
from precgui.gui.panels.formats.arithmetic import ArithmeticTab
from precgui.gui.panels.formats.bits import BitsTab
from precgui.gui.panels.formats.panel import TABS

PLACE = [made for _, _, made in TABS].index(ArithmeticTab)


@pytest.fixture
def panel(qtbot: QtBot) -> Iterator[FormatsPanel]:
    made = FormatsPanel(object())
    qtbot.addWidget(made)
    made.resize(1200, 800)
    made.show()
    made.tabs.setCurrentIndex(PLACE)
    yield made


@pytest.fixture
def tab(panel: FormatsPanel, qtbot: QtBot) -> ArithmeticTab:
    made = panel.tab(PLACE)
    assert isinstance(made, ArithmeticTab)
    _settle(qtbot, made)
    return made


def _settle(qtbot: QtBot, tab: ArithmeticTab) -> None:
    qtbot.waitUntil(lambda: not tab.work.busy)


def _choose(qtbot: QtBot, tab: ArithmeticTab, operation: str, *texts: str) -> None:
    tab.operation.setCurrentIndex(tab.operation.findText(f"{operation}:", Qt.MatchFlag.MatchStartsWith))
    for edit, words in zip(tab.operands.edits, texts, strict=False):
        edit.setText(words)
    _settle(qtbot, tab)


def _stored(tab: ArithmeticTab, name: str) -> object:
    return dict(tab.model.rows)[name].rounded.value


def test_that_an_operation_is_rounded_in_every_chosen_format(qtbot: QtBot, tab: ArithmeticTab) -> None:
    tab.menu.choose(list(formats()))
    _choose(qtbot, tab, "fma", "1/3", "3", "-1")
    assert len(tab.model.rows) == len(formats())
    assert tab.message.text() == "exactly 0"
    assert _stored(tab, "fp16") == -(2**-12)
    assert _stored(tab, "e4m3fn") == 2**-5


def test_that_the_bits_of_an_operand_are_toggled(qtbot: QtBot, tab: ArithmeticTab) -> None:
    tab.menu.choose(["fp16"])
    _choose(qtbot, tab, "add", "1", "2")
    for bit in (9, 8):  # faster than the results come: the second one must know of the first
        tab.grid.bit_set.emit("a", bit, True, bit == 8)
    assert tab.operands.edits[0].text() == "fp16:0x3f00"
    _settle(qtbot, tab)
    assert _stored(tab, "fp16") == 3.75
    assert tab.grid.row_names == ["a", "b", "result"]
    qtbot.mouseClick(tab.grid, Qt.MouseButton.LeftButton, pos=tab.grid.cell_rect("result", 0).center())
    _settle(qtbot, tab)
    assert _stored(tab, "fp16") == 3.75
    tab.operands.edits[0].undo()
    assert tab.operands.edits[0].text() != "fp16:0x3f00"


def test_that_sums_take_accumulators_orders_and_outputs(qtbot: QtBot, tab: ArithmeticTab) -> None:
    tab.menu.choose(["bf16"])
    _choose(qtbot, tab, "sum", "repeat(1, 3000)")
    assert _stored(tab, "bf16") == 256
    tab.accumulator.setCurrentText("e8m9")
    _settle(qtbot, tab)
    assert _stored(tab, "bf16") == 1024
    tab.accumulator.setCurrentText("fp17")
    _settle(qtbot, tab)
    assert "no number format" in tab.message.text()
    tab.accumulator.setCurrentText("fp32")
    tab.output.setCurrentText("bf16")
    _choose(qtbot, tab, "dot", "repeat(1, 3000)", "repeat(1, 3000)")
    assert _stored(tab, "bf16") == 3008
    assert tab.product.isVisible()


def test_that_stochastic_rounding_depends_on_the_seed(qtbot: QtBot, tab: ArithmeticTab) -> None:
    tab.menu.choose(["e4m3fn"])
    tab.switches.rounding.setCurrentIndex(tab.switches.rounding.findData("stochastic"))
    found = set()
    for seed in range(8):
        tab.switches.seed.setValue(seed)
        _choose(qtbot, tab, "divide", "1", "3")
        found.add(_stored(tab, "e4m3fn"))
    assert found == {0.3125, 0.34375}


@pytest.mark.parametrize("words", ["1e999999", "1/0", "😀", "", "9" * 30_000, "nan(", "repeat(1, 5)"])
def test_that_absurd_operands_get_one_sentence_and_keep_the_rows(qtbot: QtBot, tab: ArithmeticTab, words: str) -> None:
    _choose(qtbot, tab, "add", "1", "2")
    _choose(qtbot, tab, "add", words, "2")
    assert tab.message.text()
    assert "\n" not in tab.message.text()
    assert tab.message.property("kind") == "error"
    assert _stored(tab, "fp16") == 3
    assert not tab.table.isEnabled()
    _choose(qtbot, tab, "add", "1.5", "2")
    assert tab.table.isEnabled()


def test_that_rows_are_copied_and_shown_as_bits(qtbot: QtBot, panel: FormatsPanel, tab: ArithmeticTab) -> None:
    tab.menu.choose(["fp16", "bf16"])
    _choose(qtbot, tab, "multiply", "3", "0.5")
    copy, *_ = tab.table.actions()
    copy.trigger()
    headings, row = (line.split("\t") for line in QGuiApplication.clipboard().text().splitlines())
    assert (headings[:2], row[:2]) == (["Format", "Result"], ["bf16", "1.5"])
    tab.show_bits.click()
    bits = panel.tab(0)
    assert isinstance(bits, BitsTab)
    assert bits.edit.text() == "bf16:0x3fc0"
