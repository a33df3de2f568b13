"""Step: the anatomy of a replayed step: its operations on two rails, its moments and its casts."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFrame,
    QHBoxLayout,
    QHeaderView,
    QScrollArea,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from precgui.gui.kit.copied_rows import let_copy
from precgui.gui.kit.empty_state import EmptyState
from precgui.gui.kit.parts import column, named
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.panels.inspect.step.rails import FormatLegend, StepRails, describe
from precgui.gui.replay_bar import ReplayBar
from precgui.gui.session import Session
from precgui.gui.step_pages import StepPages
from precgui.runs.anatomy import ANATOMIES, StepAnatomy
from precgui.words import L_, _, translated

_EMPTY = L_(
    "No step of this run was replayed yet. Choose a step above and replay it: it is made again with FP64 beside it, "
    "and its operations are kept beside the run."
)
_HINT = L_("Click an operation, or use the arrow keys, to read its formats, its range and its error.")
_COLUMNS = (
    L_("Casts asked for by"), L_("From"), L_("To"), L_("Of"), L_("Count"), L_("Bytes"), L_("Reused"),
)  # fmt: skip


class StepTab(StepPages[StepAnatomy]):
    """Shows the anatomies that are kept beside the run."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        empty = EmptyState("inspect", _("No replayed step"), translated(_EMPTY))
        super().__init__(session, empty, _("Replayed step"), ReplayBar(session), parent)
        self.legend = FormatLegend(self)
        self.rails = StepRails(self)
        self.details = PlainLabel(translated(_HINT), self)
        self.moments = PlainLabel(self)
        self.casts = QTableWidget(0, len(_COLUMNS), self)
        let_copy(self.casts)
        self._lay_out()
        self.rails.operation_chosen.connect(self._describe)

    def _lay_out(self) -> None:
        self.casts.setHorizontalHeaderLabels(list(map(translated, _COLUMNS)))
        self.casts.setAccessibleName(_("Casts of the step by who asked for them"))
        self.casts.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.casts.verticalHeader().hide()
        self.casts.setShowGrid(False)
        self.casts.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        self.casts.horizontalHeader().setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        self.casts.setMinimumHeight(110)
        for label in (self.details, self.moments):
            label.setWordWrap(True)
        self.moments.setProperty("kind", "muted")
        self.moments.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop)
        head = QHBoxLayout()
        head.addWidget(named(_("&Step"), self.step_choice))
        head.addWidget(self.step_choice)
        head.addWidget(self.legend, 1)
        below = QHBoxLayout()
        below.setSpacing(16)
        below.addWidget(self.moments, 2)
        below.addWidget(self.casts, 3)
        inner = QWidget()
        column(head, (self.rails, 3), self.details, (below, 2), margins=(0, 8, 8, 0), on=inner)
        area = QScrollArea()  # in a small window the rails keep their height
        area.setWidgetResizable(True)
        area.setFrameShape(QFrame.Shape.NoFrame)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        area.setWidget(inner)
        column(area, on=self.content)

    def read(self, path: Path) -> list[StepAnatomy]:
        return ANATOMIES.all(path)

    def show_step(self) -> None:
        anatomy = self.chosen
        self.rails.show_operations(anatomy.operations if anatomy is not None else ())
        self.details.setText(translated(_HINT))
        self.casts.setRowCount(0)
        if anatomy is None:
            return
        names = dict.fromkeys(one.format for one in anatomy.operations)
        counts = {name: sum(one.format == name for one in anatomy.operations) for name in names}
        texts = {name: f"{name}: {count}" for name, count in counts.items()}
        bad = sum(not one.finite for one in anatomy.operations)
        self.legend.show_formats(texts | ({"": _("NaN, or made Inf: {count}").format(count=bad)} if bad else {}))
        self.moments.setText("\n".join(map(translated, anatomy.sentences())))
        self.casts.setVisible(bool(anatomy.casts))  # a step in one format has none, as its sentences say
        self.casts.setRowCount(len(anatomy.casts))
        for row, casts in enumerate(anatomy.casts):
            size = f"{casts.bytes:,}".replace(",", " ")
            cells = (
                translated(casts.asked_by),
                casts.source,
                casts.target,
                translated(casts.of),
                str(casts.count),
                size,
                str(casts.reused),
            )
            for place, text in enumerate(cells):
                cell = QTableWidgetItem(text)
                if place > 3:
                    cell.setTextAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
                self.casts.setItem(row, place, cell)

    def _describe(self, index: int) -> None:
        if (anatomy := self.chosen) is not None:
            self.details.setText(describe(anatomy.operations[index]))
