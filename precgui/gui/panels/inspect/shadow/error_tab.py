"""Error: a replayed step beside FP64: the verdict, the part of each source line, and the error left without some."""

from __future__ import annotations

import math
from pathlib import Path

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRect, Qt
from PySide6.QtGui import QBrush, QColor, QPainter
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHBoxLayout,
    QHeaderView,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

from precgui.gui.kit.copied_rows import let_copy
from precgui.gui.kit.empty_state import EmptyState
from precgui.gui.kit.parts import named
from precgui.gui.kit.plain_text import PlainLabel, plain_tip
from precgui.gui.replay_bar import ReplayBar
from precgui.gui.session import Session
from precgui.gui.step_pages import StepPages
from precgui.gui.theme import themes
from precgui.runs.replays import REPLAYS, ReplayedLine, StepReplay
from precgui.words import L_, _, p_, translated

_EMPTY = L_(
    "No step of this run was replayed in FP64 yet. Choose a step above and replay it: it is made again with FP64 "
    "beside it, and the result is kept beside the run."
)
_VERDICTS = (L_("healthy"), L_("problems"), L_("not explained"))  # as side files have them
SHARE_ROLE = int(Qt.ItemDataRole.UserRole) + 1
_TICK_PX, _NUMBER_PX = 28, 56


class ShareDelegate(QStyledItemDelegate):
    """Draws the number of `SHARE_ROLE`, 1 for the whole error."""

    def paint(
        self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> None:
        super().paint(painter, option, index)
        share = index.data(SHARE_ROLE)
        if not isinstance(share, float):
            return
        theme, rect = themes().theme, QRect(option.rect)
        room = rect.adjusted(_TICK_PX, 3, -_NUMBER_PX, -3)
        bar = QRect(room)
        bar.setWidth(round(room.width() * min(1.0, abs(share))))
        painter.save()
        painter.fillRect(bar, QColor(theme.accent if share >= 0 else theme.muted))
        painter.setPen(QColor(theme.text))
        numbers = rect.adjusted(0, 0, -6, 0)
        painter.drawText(numbers, int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter), f"{share:z.1%}")
        painter.restore()


class ErrorTab(StepPages[StepReplay]):
    """Shows the replays that are kept beside the run."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        empty = EmptyState("inspect", _("No replayed step"), translated(_EMPTY))
        super().__init__(session, empty, _("Replayed step"), ReplayBar(session), parent)
        self.verdict = PlainLabel(self)
        self.mechanisms = PlainLabel(self)
        self.left = PlainLabel(self)
        self.notes = PlainLabel(self)
        self.tree = QTreeWidget(self)
        let_copy(self.tree)
        self._lay_out()
        self.tree.itemChanged.connect(lambda: self._say_left())
        themes().follow(self, self._recolour)

    def _lay_out(self) -> None:
        self.tree.setHeaderLabels(
            [_("Share of the error"), _("Left in FP64"), p_("of code", "Line"), _("Module"), p_("of code", "Source")]
        )
        self.tree.setAccessibleName(_("Source lines by their share of the error"))
        self.tree.setProperty("kind", "facts")
        self.tree.setRootIsDecorated(False)
        self.tree.setUniformRowHeights(True)
        self.tree.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.tree.setItemDelegateForColumn(0, ShareDelegate(self.tree))
        self.tree.header().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        self.tree.header().setSectionResizeMode(0, QHeaderView.ResizeMode.Interactive)
        self.tree.header().resizeSection(0, 220)
        for label in (self.verdict, self.mechanisms, self.left, self.notes):
            label.setWordWrap(True)
        for label in (self.mechanisms, self.notes):
            label.setProperty("kind", "muted")
        head = QHBoxLayout()
        head.addWidget(named(_("&Step"), self.step_choice))
        head.addWidget(self.step_choice)
        head.addStretch(1)
        column = QVBoxLayout(self.content)
        column.setContentsMargins(0, 8, 0, 0)
        column.setSpacing(8)
        column.addLayout(head)
        for part in (self.verdict, self.mechanisms):
            column.addWidget(part)
        column.addWidget(self.tree, 1)
        for part in (self.left, self.notes):
            column.addWidget(part)

    def read(self, path: Path) -> list[StepReplay]:
        return REPLAYS.all(path)

    def label(self, step: StepReplay) -> str:
        return f"{step.step} ({translated(step.verdict)})"

    def show_step(self) -> None:
        replay = self.chosen
        self.tree.blockSignals(True)
        self.tree.clear()
        for line in replay.lines if replay is not None else ():
            self.tree.addTopLevelItem(_row(line, line.line in (replay.blamed if replay is not None else ())))
        self.tree.blockSignals(False)
        if replay is not None:
            self.verdict.setText(translated(replay.message))
            self.mechanisms.setText(_mechanisms_text(replay))
            self.notes.setText("\n".join(map(translated, replay.notes)))
        self._recolour()
        self._say_left()

    def _recolour(self) -> None:
        replay = self.chosen
        if replay is None:
            return
        theme = themes().theme
        colour = {"healthy": theme.ok, "not explained": theme.warning}.get(replay.verdict, theme.error)
        self.verdict.setStyleSheet(f"color: {colour}; font-weight: 600")
        for row in range(self.tree.topLevelItemCount()):
            item = self.tree.topLevelItem(row)
            if item is not None and replay.lines[row].line in replay.blamed:
                item.setForeground(2, QBrush(QColor(theme.error)))

    def _say_left(self) -> None:
        """The error left when the ticked lines run in FP64: measured for one line where it was, else by the shares."""
        replay = self.chosen
        chosen = [line for row, line in enumerate(replay.lines) if self._ticked(row)] if replay is not None else []
        if replay is None or not replay.lines:
            self.left.setText("")
        elif not chosen:
            self.left.setText(_("Tick lines to see the error of the gradient that is left when they run in FP64."))
        elif len(chosen) == 1 and (measured := chosen[0].left_measured) is not None:
            text = _("{share:z.0%} of the error is left when all of this line runs in FP64 (measured).")
            self.left.setText(text.format(share=measured))
        elif (predicted := left_together(chosen)) is None:
            self.left.setText(_("The error left cannot be told: the shares of this step do not add up to its error."))
        else:
            text = _(
                "About {share:z.0%} of the error is left when the ticked lines run in FP64 (by their shares; "
                "precgui.shadow measures it)."
            )
            self.left.setText(text.format(share=predicted))

    def _ticked(self, row: int) -> bool:
        item = self.tree.topLevelItem(row)
        return item is not None and item.checkState(0) == Qt.CheckState.Checked


def left_together(lines: list[ReplayedLine]) -> float | None:
    """The error left, 0 to 1, when lines run in FP64, from what each leaves alone; None where that is not known."""
    alone = [line.left_predicted for line in lines]
    saved = [1 - value * value for value in alone if value is not None]
    if len(saved) < len(alone):
        return None
    return math.sqrt(max(0.0, 1 - math.fsum(saved)))


def _row(line: ReplayedLine, blamed: bool) -> QTreeWidgetItem:
    left = _("not told")
    if line.left_measured is not None:
        left = _("{share:z.0%} (measured)").format(share=line.left_measured)
    elif line.left_predicted is not None:
        left = _("about {share:z.0%}").format(share=line.left_predicted)
    item = QTreeWidgetItem(["", left, translated(line.line), line.module, line.source])
    item.setData(0, SHARE_ROLE, line.share)
    item.setCheckState(0, Qt.CheckState.Checked if blamed else Qt.CheckState.Unchecked)
    item.setToolTip(4, plain_tip(line.source))
    item.setToolTip(2, plain_tip(translated(line.line)))
    return item


def _mechanisms_text(replay: StepReplay) -> str:
    if replay.gradient_error is None or replay.explained is None:
        return _("The step is not finite, so its error has no parts.")
    parts = replay.mechanisms
    explained = _(
        "Explained {explained:z.1%}: rounding {rounding:z.1%}, casts {casts:z.1%}, numbers too small {flush:z.1%}, too "
        "large {overflow:z.1%}."
    ).format(
        explained=replay.explained, rounding=parts.rounding, casts=parts.casts, flush=parts.flush,
        overflow=parts.overflow,
    )  # fmt: skip
    if parts.flips is None:
        flips = _("Other decisions of kinks (ReLU, maxima) are not known.")
    else:
        flips = _("Other decisions of kinks (ReLU, maxima) make {share:z.1%} of both errors together.")
    return f"{explained} {flips.format(share=parts.flips)}"
