"""What a reader of a window cannot read: texts that are cut, parts that lie on one another, and content out of view."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import pyqtgraph as pg
from PySide6.QtCore import QModelIndex, QPoint, QRect, Qt
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractScrollArea,
    QAbstractSpinBox,
    QComboBox,
    QHeaderView,
    QLabel,
    QLineEdit,
    QSizePolicy,
    QStyle,
    QStyleOptionComboBox,
    QStyleOptionFrame,
    QTabBar,
    QTableView,
    QToolButton,
    QTreeView,
    QWidget,
)

CUT, LIES, SCROLLS, ELIDED = "cut", "lies on another", "scrolls sideways", "elided"
READ = (QAbstractButton, QLabel, QComboBox, QLineEdit, QAbstractSpinBox, QTabBar, QAbstractItemView)
FRAME_PX = 3  # beside a text
CELLS_READ = 60  # of a table, from its top


@dataclass(frozen=True)
class Fault:
    """`part` is the same in every language; `kind` is CUT, LIES, SCROLLS (sideways) or ELIDED (a cell or a head)."""

    part: str
    kind: str
    words: str


def faults(window: QWidget) -> list[Fault]:
    """All that is wrong with what is in view."""
    found: list[Fault] = []
    shown = [part for part in window.findChildren(QWidget) if part.isVisible() and not part.visibleRegion().isEmpty()]
    for part in shown:
        found += [Fault(name_of(part, window), kind, words) for kind, words in _faults_of(part)]
    found += [Fault(name_of(part, window), CUT, f"{_text(part)}: out of view") for part in _out_of_view(window)]
    found += _overlaps([part for part in shown if isinstance(part, READ) and _text(part)], window)
    return found


def _out_of_view(window: QWidget) -> Iterator[QWidget]:
    """Parts that are shown beyond the edges of a parent that does not scroll."""
    for part in window.findChildren(QWidget):
        parent = part.parentWidget()
        if not isinstance(part, READ) or not part.isVisible() or not _text(part) or parent is None:
            continue
        if part.visibleRegion().isEmpty() and not parent.visibleRegion().isEmpty() and not _scrolls(part):
            yield part


def _scrolls(part: QWidget) -> bool:
    while (parent := part.parentWidget()) is not None:
        if isinstance(parent, QAbstractScrollArea):
            return True
        part = parent
    return False


def name_of(part: QWidget, window: QWidget) -> str:
    """The way to a part: classes with their places among the children of their kind."""
    names: list[str] = []
    while part is not window and (parent := part.parentWidget()) is not None:
        alike = [each for each in parent.children() if type(each) is type(part)]
        names.append(f"{type(part).__name__}{alike.index(part)}")
        part = parent
    return "/".join(reversed(names))


def _text(part: QWidget) -> str:
    if isinstance(part, (QAbstractButton, QLabel)):
        return part.text()
    if isinstance(part, QComboBox):
        return part.currentText()
    if isinstance(part, QLineEdit):
        return part.text() or part.placeholderText()
    return type(part).__name__


def _faults_of(part: QWidget) -> Iterator[tuple[str, str]]:
    """Kind and words of each."""
    checks = ((QAbstractButton, _of_button), (QLabel, _of_label), (QComboBox, _of_choice), (QLineEdit, _of_edit),
              (QTabBar, _of_tabs), (pg.PlotWidget, _of_axes))  # fmt: skip
    for kind, check in checks:
        if isinstance(part, kind):
            yield from ((CUT, words) for words in check(part))
    if isinstance(part, QHeaderView):
        yield from ((ELIDED, words) for words in _of_header(part))
    if isinstance(part, (QTableView, QTreeView)):
        yield from ((ELIDED, words) for words in _of_cells(part))
    if isinstance(part, QAbstractScrollArea) and part.horizontalScrollBar().isVisible():
        yield SCROLLS, f"by {part.horizontalScrollBar().maximum()}"


def _of_tabs(part: QTabBar) -> Iterator[str]:
    need = sum(part.tabRect(tab).width() for tab in range(part.count()))
    if need > part.width() + 1:
        yield f"tabs {part.tabText(0)}...: {part.width()} < {need}"


def _of_axes(part: pg.PlotWidget) -> Iterator[str]:
    for side in ("left", "bottom"):
        axis = part.getAxis(side)
        if axis.isVisible() and axis.label.isVisible() and axis.labelText:
            room = axis.size().height() if side == "left" else axis.size().width()
            need = axis.label.boundingRect().width()
            if room + 1 < need:
                yield f"axis {axis.labelText}: {room:.0f} < {need:.0f}"


def _of_button(part: QAbstractButton) -> Iterator[str]:
    text = part.text()
    only_icon = isinstance(part, QToolButton) and part.toolButtonStyle() == Qt.ToolButtonStyle.ToolButtonIconOnly
    if not text or (only_icon and not part.icon().isNull()) or _may_shrink(part):
        return
    need = part.minimumSizeHint().width()
    if part.width() < need:
        yield f"{text}: {part.width()} < {need}"
    yield from _clipped(part, text)


def _of_label(part: QLabel) -> Iterator[str]:
    text = part.text()
    folded = part.maximumHeight() < 2 * part.fontMetrics().lineSpacing() + 8  # beside a button that shows all of it
    if not text or not part.pixmap().isNull() or _may_shrink(part) or folded:
        return
    if part.wordWrap():
        need = part.heightForWidth(part.width())
        if part.height() < need:
            yield f"{text}: {part.height()} < {need} high"
    elif part.width() < part.minimumSizeHint().width():
        yield f"{text}: {part.width()} < {part.minimumSizeHint().width()}"
    yield from _clipped(part, text)


def _of_choice(part: QComboBox) -> Iterator[str]:
    option = QStyleOptionComboBox()
    part.initStyleOption(option)
    room = part.style().subControlRect(
        QStyle.ComplexControl.CC_ComboBox, option, QStyle.SubControl.SC_ComboBoxEditField, part
    )
    icon = part.iconSize().width() + 4 if not option.currentIcon.isNull() else 0
    need = part.fontMetrics().horizontalAdvance(part.currentText()) + icon
    if room.width() + FRAME_PX < need and not _may_shrink(part):
        yield f"{part.currentText()}: {room.width()} < {need}"
    yield from _clipped(part, part.currentText())


def _of_edit(part: QLineEdit) -> Iterator[str]:
    text = "" if part.text() else part.placeholderText()
    need = part.fontMetrics().horizontalAdvance(text)
    option = QStyleOptionFrame()
    part.initStyleOption(option)
    room = part.style().subElementRect(QStyle.SubElement.SE_LineEditContents, option, part).width() - 4
    if room < need:
        yield f"{text}: {room} < {need}"


def _of_header(part: QHeaderView) -> Iterator[str]:
    across = part.orientation() == Qt.Orientation.Horizontal
    for section in range(part.count()):
        text = part.model().headerData(section, part.orientation(), Qt.ItemDataRole.DisplayRole)
        if not text or part.isSectionHidden(section):
            continue
        room = part.sectionSize(section) if across else part.width()
        need = max(part.fontMetrics().horizontalAdvance(line) for line in str(text).split("\n"))
        if room < need:
            yield f"head {text}: {room} < {need}"


def _of_cells(part: QTableView | QTreeView) -> Iterator[str]:
    view = part.viewport().rect()
    columns = range(part.model().columnCount())
    for index in _indexes_in_view(part):
        for column in columns:
            cell = index.siblingAtColumn(column)
            place, text = part.visualRect(cell), cell.data(Qt.ItemDataRole.DisplayRole)
            if not isinstance(text, str) or not text or not place.intersects(view) or part.isColumnHidden(column):
                continue
            if isinstance(part, QTableView) and part.columnSpan(cell.row(), column) > 1:
                continue
            need = max(part.fontMetrics().horizontalAdvance(line) for line in text.split("\n"))
            if place.width() < need and not (part.wordWrap() and place.height() > 1.8 * part.fontMetrics().height()):
                yield f"cell {column} {text}: {place.width()} < {need}"


def _indexes_in_view(part: QTableView | QTreeView) -> Iterator[QModelIndex]:
    if isinstance(part, QTreeView):
        index = part.indexAt(QPoint(2, 2))
        for _ in range(CELLS_READ):
            if not index.isValid() or part.visualRect(index).top() > part.viewport().height():
                return
            yield index
            index = part.indexBelow(index)
    else:
        for row in range(min(part.model().rowCount(), CELLS_READ)):
            yield part.model().index(row, 0)


def _may_shrink(part: QWidget) -> bool:
    """Whether it is made to be elided: its tool tip has the whole text."""
    return part.sizePolicy().horizontalPolicy() == QSizePolicy.Policy.Ignored


def _clipped(part: QWidget, text: str) -> Iterator[str]:
    """Cut by the edge of one of its parents that cannot be scrolled sideways."""
    seen = part.visibleRegion().boundingRect()
    if seen.width() >= part.width() - 1:
        return
    parent = part.parentWidget()
    while parent is not None:
        if isinstance(parent, QAbstractScrollArea) and parent.horizontalScrollBar().maximum() > 0:
            return
        parent = parent.parentWidget()
    yield f"{text}: {seen.width()} of {part.width()} in view"


def _overlaps(parts: list[QWidget], window: QWidget) -> list[Fault]:
    places = {part: _in_window(part, window) for part in parts}
    found: list[Fault] = []
    for one, other in combinations(parts, 2):
        common = places[one] & places[other]
        if common.width() <= 2 or common.height() <= 2 or one.isAncestorOf(other) or other.isAncestorOf(one):
            continue
        words = f"{_text(one)} on {_text(other)} by {common.width()}x{common.height()}"
        found.append(Fault(name_of(one, window), LIES, words))
    return found


def _in_window(part: QWidget, window: QWidget) -> QRect:
    seen = part.visibleRegion().boundingRect()
    return QRect(part.mapTo(window, seen.topLeft()), seen.size())
