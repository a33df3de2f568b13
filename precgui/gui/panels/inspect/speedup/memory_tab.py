"""Memory: the peak of a step by part, in FP32, as predicted and as measured; its owners, and the line over a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHeaderView, QSplitter, QTreeWidget, QTreeWidgetItem, QVBoxLayout, QWidget

from precgui.gui.kit.bars import BarChart, BarRow, Segment, part_colour
from precgui.gui.kit.copied_rows import let_copy
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.panels.inspect.speedup.profile_bar import ProfileBar
from precgui.gui.plots.menus import own_menu
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.planner.ledger import PARTS, RESIDUAL_LIMIT, Ledger, mib
from precgui.runs.speedup.profile_file import LEDGERS, ledgers_of
from precgui.words import L_, _, translated

_NEAR_THE_END = 0.85  # of the axis
_COLUMNS = (
    L_("Part"), L_("Module"), L_("Memory"), L_("Share"), L_("Blocks"), L_("Largest"), L_("Made by"),
)  # fmt: skip


class MemoryTab(QWidget):
    """Shows the ledgers of the kept profile of the run, if it has one."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.bar = ProfileBar(session, self)
        self.sentence = PlainLabel(self)
        self.sentence.setWordWrap(True)
        self.chart = BarChart(parent=self)
        self.chart.setAccessibleName(_("Peak of a step by part"))
        self.table = QTreeWidget(self)
        self.owners = QTreeWidget(self)
        let_copy(self.table)
        let_copy(self.owners)
        self.timeline = MemoryLine(self)
        self._content = QSplitter(Qt.Orientation.Vertical, self)
        self._lay_out()
        self.bar.changed.connect(self._show)
        themes().follow(self, self._show)

    def _lay_out(self) -> None:
        upper = QWidget(self)
        column = QVBoxLayout(upper)
        column.setContentsMargins(0, 0, 0, 0)
        for part in (self.sentence, self.chart, self.table):
            column.addWidget(part)
        column.addStretch(1)
        for tree, name in (
            (self.table, _("Parts of the peak")),
            (self.owners, _("Owners of the peak, the largest first")),
        ):
            tree.setRootIsDecorated(False)
            tree.setUniformRowHeights(True)
            tree.setAccessibleName(name)
            tree.header().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        self.owners.setHeaderLabels(list(map(translated, _COLUMNS)))
        lower = QSplitter(Qt.Orientation.Horizontal, self)
        lower.addWidget(self.owners)
        lower.addWidget(self.timeline)
        self._content.addWidget(upper)
        self._content.addWidget(lower)
        self._content.setStretchFactor(1, 1)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(self.bar)
        outer.addWidget(self._content, 1)
        outer.addStretch(0)  # so that the bar stays on top where there is no profile

    def show_run(self, key: str | None) -> None:
        self.bar.show_run(key)

    def _show(self) -> None:
        ledgers = ledgers_of(self.bar.document or {})
        self._content.setVisible(bool(ledgers))
        if not ledgers or self.bar.document is None:
            return
        memory = self.bar.document["memory"]
        self.sentence.setText(_sentence(memory, ledgers))
        self.chart.set_rows([_bar(translated(LEDGERS[name]), ledger) for name, ledger in ledgers.items()])
        self._show_parts(ledgers)
        displayed = ledgers.get("measured") or next(iter(ledgers.values()))
        self._show_owners(displayed)
        self.timeline.show_ledger(ledgers.get("predicted", displayed) if not displayed.timeline else displayed)

    def _show_parts(self, ledgers: Mapping[str, Ledger]) -> None:
        self.table.clear()
        self.table.setHeaderLabels([_("Part of the peak"), *(translated(LEDGERS[name]) for name in ledgers)])
        for number, (part, title) in enumerate(PARTS.items()):
            sizes = [ledger.parts.get(part, 0) for ledger in ledgers.values()]
            if not any(sizes):
                continue
            item = QTreeWidgetItem([translated(title), *(mib(size) for size in sizes)])
            item.setData(0, Qt.ItemDataRole.DecorationRole, part_colour(number))
            self.table.addTopLevelItem(item)
        totals = (mib(ledger.total_bytes) for ledger in ledgers.values())
        self.table.addTopLevelItem(QTreeWidgetItem([_("Peak"), *totals]))
        rows = self.table.topLevelItemCount() + 1
        self.table.setFixedHeight(rows * (self.table.sizeHintForRow(0) or 20) + 16)

    def _show_owners(self, ledger: Ledger) -> None:
        self.owners.clear()
        for owner in ledger.owners:
            shape = " x ".join(str(size) for size in owner.shape)
            texts = [
                translated(PARTS.get(owner.part, owner.part)), owner.module or _("(outside of modules)"),
                mib(owner.size_bytes),
                f"{owner.size_bytes / max(ledger.total_bytes, 1):.1%}", str(owner.tensors),
                f"{shape} {owner.dtype}".strip(), owner.operation,
            ]  # fmt: skip
            self.owners.addTopLevelItem(QTreeWidgetItem(texts))


class MemoryLine(pg.PlotWidget):  # type: ignore[misc]  # pyqtgraph is untyped
    """Bytes alive after each allocation of a step, and where its phases begin."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent, enableMenu=False)
        own_menu(self)
        self._curve = pg.PlotCurveItem()
        self._marks: list[Any] = []
        self._ledger: Ledger | None = None
        self.addItem(self._curve)
        self.setMouseEnabled(x=False, y=False)
        self.hideButtons()
        self.getAxis("bottom").setLabel(_("blocks taken and given back in a step"))
        self.getAxis("left").setLabel(_("memory"), units="B")
        self.setAccessibleName(_("Memory over a step"))
        themes().follow(self, self._draw)

    def show_ledger(self, ledger: Ledger) -> None:
        """Draw the line of a ledger; where it has none, nothing."""
        self._ledger = ledger
        self._draw()

    def _draw(self) -> None:
        theme, ledger = themes().theme, self._ledger
        self.setBackground(theme.base)
        for name in ("bottom", "left"):
            self.getAxis(name).setPen(theme.muted)
            self.getAxis(name).setTextPen(theme.muted)
        for mark in self._marks:
            self.removeItem(mark)
        self._marks = []
        points = np.array(ledger.timeline if ledger is not None else (), float).reshape(-1, 2)
        self._curve.setData(points[:, 0], points[:, 1])
        self._curve.setPen(pg.mkPen(theme.accent, width=1))
        phases = ledger.phases if ledger is not None and len(points) else ()
        for number, (name, place) in enumerate(phases):
            if name != "end":
                height = 0.25 - 0.1 * (number % 2)
                side = 0 if place < _NEAR_THE_END * points[-1, 0] else 1  # a name right of the last line would be cut
                options = {"position": height, "color": theme.muted, "anchors": [(side, 0), (side, 0)]}
                line = pg.InfiniteLine(place, pen=pg.mkPen(theme.line), label=translated(name), labelOpts=options)
                self.addItem(line)
                self._marks.append(line)
        if len(points):
            self.setXRange(0, float(points[-1, 0]), padding=0.01)
            self.setYRange(0, float(points[:, 1].max()) * 1.05, padding=0)


def _sentence(memory: Mapping[str, Any], ledgers: Mapping[str, Ledger]) -> str:
    reported = [translated(str(memory["difference"]))] if memory.get("difference") else []
    if {"predicted", "measured"} <= ledgers.keys():
        total, result = ledgers["measured"].total_bytes, ledgers["predicted"].total_bytes
        miss = (total - result) / max(total, 1)
        text = _("Predicted from shapes {predicted}, measured {measured}: {difference:+.1%}.")
        reported.append(text.format(predicted=mib(result), measured=mib(total), difference=miss))
        if abs(miss) > RESIDUAL_LIMIT:
            reported.append(_("The difference is more than a tenth: see the parts."))
    return "\n".join(reported)


def _bar(name: str, ledger: Ledger) -> BarRow:
    start, segments = 0, []
    for number, part in enumerate(PARTS):
        size = ledger.parts.get(part, 0)
        if size:
            segments.append(Segment(start, start + size, number))
        start += size
    return BarRow(name, tuple(segments), mib(ledger.total_bytes))
