"""The ranks of a run over its steps: who waited, what each one did, and what more of them would send, on paper."""

from __future__ import annotations

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QFrame, QScrollArea, QVBoxLayout, QWidget

from precgui.gui.kit.parts import label
from precgui.gui.kit.table import TextTable
from precgui.gui.plots.heat_map import HeatMap
from precgui.gui.ranks_plan import RanksPlan
from precgui.gui.run_task import place_of
from precgui.gui.session import Session
from precgui.places.placed_task import TaskPlace
from precgui.planner.ledger import mib
from precgui.runs.ranks import (
    RankFigures,
    memory_sentence,
    one_rank_step_s,
    rank_figures,
    rank_waits,
    waiting_sentence,
)
from precgui.runs.run import Run
from precgui.words import L_, _, translated

COLUMNS = (
    L_("Rank"), L_("Step"), L_("Waited"), L_("CPU time"), L_("Memory"), L_("Sent"), L_("Interface, all ranks"),
)  # fmt: skip
_TITLE = L_("Waiting, all ranks over the steps")
_ABOUT = L_(
    "One row for each rank, steps from left to right; the colour is the share of the step in which it only waited."
)
_CELL_TEXT = L_("{name}\nstep {step}: {share} of the step waited")
_ONE_PROCESS = L_(
    "This run trained in one process. Below is what several ranks would send for it, on paper; "
    "parallel.strategy in Run starts them."
)
_REFRESH_MS = 1000  # of a run that goes on
_MOST_ROWS = 8  # of ranks, before the picture and the table scroll by themselves
_PLAN_PX = 330


class RanksView(QWidget):
    """Follows a run that goes on once a second; nothing is computed while it is hidden."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self._key: str | None = None
        self._plan_of: str | None = None
        self.verdict = label("")
        self.picture = HeatMap(translated(_TITLE), translated(_ABOUT), translated(_CELL_TEXT), self)
        self.picture.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # nothing follows a chosen cell
        self.picture.choose(-1, None)
        self.table = TextTable(tuple(map(translated, COLUMNS)), _("Medians of each rank"), self)
        self.of_memory = label("", "muted")
        self.plan: RanksPlan | None = None
        self._lay_out()
        self._timer = QTimer(self, singleShot=True, interval=_REFRESH_MS)
        self._timer.timeout.connect(self.refresh)
        session.runs.data_arrived.connect(self._on_data)

    def _lay_out(self) -> None:
        content = QWidget(self)
        self._column = QVBoxLayout(content)
        self._column.setContentsMargins(0, 8, 8, 0)
        for part in (self.verdict, self.picture, self.table, self.of_memory):
            self._column.addWidget(part)
        self._column.addStretch(1)
        area = QScrollArea(self)
        area.setWidgetResizable(True)
        area.setFrameShape(QFrame.Shape.NoFrame)
        area.setWidget(content)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(area)

    def show_run(self, key: str | None) -> None:
        self._key = key
        self.refresh()

    def refresh(self) -> None:
        """Read the columns of the ranks again."""
        opened = self._session.runs.get(self._key or "")
        if opened is None or not self.isVisible():
            return
        figures = rank_figures(opened.run)
        for part in (self.picture, self.table, self.of_memory):
            part.setVisible(bool(figures))
        self.of_memory.setText(translated(memory_sentence(opened.run)))
        self.verdict.setText(translated(waiting_sentence(figures) if figures else _ONE_PROCESS))
        self.picture.show_shares(rank_waits(opened.run) if figures else None)
        self.table.fill([_cells(row) for row in figures])
        rows = min(len(figures), _MOST_ROWS)
        self.picture.setFixedHeight(self.picture.height_px(rows))
        self.table.setFixedHeight(self.table.height_px(rows))
        if opened.run.status != "running" and self._plan_of != self._key:
            self._make_plan(opened.run, figures)

    def _make_plan(self, run: Run, figures: list[RankFigures]) -> None:
        """The model on paper with the config of this run and, where it was measured, the time of its step."""
        if self.plan is not None:
            self.plan.stop()
            self.plan.deleteLater()
        self._plan_of = self._key
        place = place_of(run)
        self.plan = RanksPlan(run.config, TaskPlace(place) if place is not None else None, self)
        self.plan.setMinimumHeight(_PLAN_PX)
        step_s = one_rank_step_s(figures)
        if step_s is not None:
            self.plan.step_ms.setValue(1e3 * step_s)
        self._column.insertWidget(self._column.count() - 1, self.plan)

    def _on_data(self, key: str) -> None:
        if key == self._key and self.isVisible() and not self._timer.isActive():
            self._timer.start()


def _cells(row: RankFigures) -> list[str]:
    return [
        str(row.rank), _milliseconds(row.step_s), _milliseconds(row.wait_s), _milliseconds(row.cpu_s),
        _size(row.memory_bytes), _size(row.sent_bytes), _size(row.interface_bytes),
    ]  # fmt: skip


def _milliseconds(time_s: float) -> str:
    return _("not measured") if time_s != time_s else f"{1e3 * time_s:.3g} ms"


def _size(size_bytes: float) -> str:
    return _("not measured") if size_bytes != size_bytes else mib(size_bytes)
