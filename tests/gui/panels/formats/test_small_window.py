"""The Formats panel in little room: names of dots that stay apart, and an experiment that keeps place for its plot."""

from __future__ import annotations

from itertools import combinations

import pyqtgraph as pg
import pytest
from PySide6.QtCore import QPointF, QRectF, QSizeF
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.panels.formats.control_grid import ControlGrid
from precgui.gui.panels.formats.lab import LabTab
from precgui.gui.panels.formats.ranges import LabelledDot, RangesTab, place_labels


def test_that_a_label_avoids_other_dots_other_labels_and_the_edge() -> None:
    size = QSizeF(40, 14)
    above, below = LabelledDot(QPointF(100, 60), 15, size), LabelledDot(QPointF(100, 90), 15, size)
    at_the_top = LabelledDot(QPointF(50, 5), 5, size)
    places = place_labels([above, below, at_the_top], QRectF(0, 0, 200, 200))
    assert places[0].point == QPointF(100, 45) and places[0].anchor == (0.5, 1.0)
    assert places[1].point.y() >= 90  # the dot above would lie under it
    assert places[2].point != QPointF(50, 0)  # half of it would be outside
    assert place_labels([], QRectF()) == []


@pytest.mark.parametrize("size", [(720, 480), (900, 600), (1300, 760)])
def test_that_no_name_of_a_format_in_range_lies_on_another(qtbot: QtBot, size: tuple[int, int]) -> None:
    tab = RangesTab(object())
    qtbot.addWidget(tab)
    tab.resize(*size)
    tab.show()
    plot = tab.dots.getPlotItem()

    def boxes() -> list[QRectF]:
        return [item.mapRectToScene(item.boundingRect()) for item in plot.items if isinstance(item, pg.TextItem)]

    def all_apart() -> bool:
        return not any(one.intersects(two) for one, two in combinations(boxes(), 2))

    qtbot.waitUntil(lambda: len(boxes()) == 11 and all_apart())


def test_that_a_menu_takes_the_place_of_the_list_of_experiments_in_a_narrow_window(qtbot: QtBot) -> None:
    tab = LabTab(object())
    qtbot.addWidget(tab)
    tab.resize(1200, 700)
    tab.show()
    assert tab.list.isVisible() and not tab.menu.isVisible()
    tab.resize(720, 480)
    qtbot.waitUntil(lambda: tab.menu.isVisible() and not tab.list.isVisible())
    tab.menu.setCurrentText("A function in a format")
    assert tab.stack.currentWidget() is tab.experiment(5)
    tab.resize(1200, 700)
    assert tab.list.currentItem().text() == "A function in a format"


def test_that_controls_stand_side_by_side_where_there_is_room_and_below_one_another_where_not(qtbot: QtBot) -> None:
    frame = QWidget()
    qtbot.addWidget(frame)
    grid, controls = ControlGrid(frame), [QWidget() for _ in range(4)]
    captions = [PlainLabel(f"Control {number}") for number in range(4)]
    for caption, control in zip(captions, controls, strict=True):
        grid.add(caption, control)
        assert caption.buddy() is control
    frame.show()

    def columns(width: int) -> int:
        grid.resize(width, 400)
        grid.layout().activate()
        return len({control.mapTo(grid, control.rect().topLeft()).x() for control in controls})

    assert [columns(width) for width in (200, 500, 700, 200)] == [1, 2, 3, 1]


def test_that_controls_close_the_gap_of_one_that_is_left_out(qtbot: QtBot) -> None:
    frame = QWidget()
    qtbot.addWidget(frame)
    grid, controls = ControlGrid(frame), [QWidget() for _ in range(3)]
    for control in controls:
        grid.add(PlainLabel("Control"), control)
    frame.show()
    grid.resize(700, 400)

    def columns() -> list[int]:
        grid.layout().activate()
        left = [control.mapTo(grid, control.rect().topLeft()).x() for control in controls if control.isVisible()]
        return sorted(left)

    before = columns()
    grid.show_control(controls[1], False)
    assert columns()[0] == before[0]
    assert columns()[1] < before[2]
    assert not controls[1].isVisible()
    grid.show_control(controls[1], True)
    assert columns() == before
