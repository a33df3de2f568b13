"""The grid of a study in Live: the state of every run, followed by reading the folder; Pause, Stop and Go on."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, Qt
from PySide6.QtGui import QColor, QPainter, QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHBoxLayout,
    QHeaderView,
    QMenu,
    QPushButton,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from precgui.gui.kit.consent import Consent
from precgui.gui.kit.copied_rows import let_copy
from precgui.gui.kit.plain_text import PlainInputDialog, PlainLabel, plain_tip
from precgui.gui.panels.live.cluster_button import ClusterButton
from precgui.gui.panels.live.study_cells import (
    GridCell,
    GridTable,
    column_text,
    column_title,
    grid_table,
    queued_jobs,
    seeds_text,
    seeds_to_next_verdict,
    summary,
)
from precgui.gui.plots.bands_view import BandsView
from precgui.gui.plots.signals import duration
from precgui.gui.session import Session
from precgui.gui.study_control import StudyControl
from precgui.gui.theme import themes
from precgui.sweeps.report import MemberRow
from precgui.words import L_, _, n_, paragraph, translated

MOST_SEEDS = 1000
_LEAST_COLUMN_PX = 120
_READS = L_("Reading the curves of the runs that have ended...")
_NO_LIMIT = 16777215  # Qt's QWIDGETSIZE_MAX
_CURVES_FROM_PX = 560  # the height of the view from which there is room for both
_PAUSING = L_("Paused: the present run ends, and no further one begins.")
_RUNNING = L_("Running in a process of its own; closing precgui stops it, and it goes on later where it was.")
_MOST_OF_VIEW = 0.4  # that the grid takes before it scrolls, where the curves are below it
_SHARE, _SHADE = Qt.ItemDataRole.UserRole, Qt.ItemDataRole.UserRole + 1
_SHADES = {"completed": 0.16, "running": 0.35}
_RUNNING_THERE = L_(
    "Running at {places}; each file comes home at its end. Closing precgui stops it, and it goes on later where it was."
)


class RunCellDelegate(QStyledItemDelegate):
    """Fills a cell from the left as far as its run has come; the style sheet would hide a background brush."""

    def paint(
        self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> None:
        share = index.data(_SHARE)
        if share is not None:
            theme = themes().theme
            area = option.rect.adjusted(2, 2, -2, -2)
            area.setWidth(round(area.width() * min(max(share, 0.0), 1.0)))
            painter.fillRect(area, QColor(theme.blend(theme.accent, index.data(_SHADE))))
        super().paint(painter, option, index)


class StudyGridView(QWidget):
    """Rows are seeds, columns are precisions. A double click on a run inspects it."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self._table = GridTable((), (), {})
        self.title = PlainLabel(self)
        self.summary = PlainLabel(self)
        self.state = PlainLabel(self)
        self.pause_button = self._button(_("Pause"), _("Let the present run end and begin no further one"))
        self.stop_button = self._button(
            _("Stop study"), _("End the present run now; it runs again when the study goes on")
        )
        self.go_on_button = self._button(_("Go on"), _("Run what is left"))
        self.take_button = self._button(
            _("Take over"), _("Let the present run end in the other process, and run what is left from this window")
        )
        self.seeds_button = self._button(_("Add seeds..."), _("Plan more seeds, after all that is planned"))
        self.run_button = self._button(
            _("This run"), _("Leave the chosen run out, run it again, or change when it runs")
        )
        self.run_menu = QMenu(self)
        self.run_button.setMenu(self.run_menu)
        self.compare_button = self._button(_("Compare"), _("The groups of this study and their verdicts"))
        self.table = QTableWidget(self)
        self.curves = BandsView(self)
        self._judged = -1  # runs that had ended when the curves were asked for
        self.consent = Consent(self, session.agreed_code)
        self.cluster_button = ClusterButton(session, self.consent, self)
        self._lay_out()
        self._connect()

    def _button(self, text: str, tip: str) -> QPushButton:
        button = QPushButton(text, self)
        button.setToolTip(plain_tip(tip))
        return button

    def _lay_out(self) -> None:
        self.title.setProperty("kind", "heading")
        self.state.setProperty("kind", "muted")
        self.state.setWordWrap(True)
        self.table.setAccessibleName(_("Runs of the study"))
        self.table.setItemDelegate(RunCellDelegate(self.table))
        self.table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        let_copy(self.table)
        self.table.setCornerButtonEnabled(False)
        self.table.setShowGrid(False)
        self.table.setTextElideMode(Qt.TextElideMode.ElideRight)
        self.table.setWordWrap(False)
        self.table.horizontalHeader().setMinimumSectionSize(_LEAST_COLUMN_PX)
        self.table.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
        self.table.verticalHeader().setDefaultSectionSize(self.fontMetrics().height() + 14)
        bar = QHBoxLayout()
        bar.setSpacing(8)
        bar.addWidget(self.title)
        bar.addWidget(self.summary, 1)
        buttons = QHBoxLayout()
        buttons.setSpacing(8)
        runs = (self.go_on_button, self.take_button, self.pause_button, self.stop_button)
        for button in (*runs, self.seeds_button, self.run_button, self.cluster_button):
            buttons.addWidget(button)
        buttons.addStretch(1)
        buttons.addWidget(self.compare_button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(24, 8, 24, 8)
        layout.addLayout(bar)
        layout.addLayout(buttons)
        layout.addWidget(self.state)
        layout.addWidget(self.table, 1)
        layout.addWidget(self.curves, 1)
        layout.addStretch()

    def _connect(self) -> None:
        study = self._session.study
        study.grid_read.connect(self.refresh)
        study.opened.connect(self._on_opened)
        study.groups_read.connect(self._show_curves)
        study.changed.connect(self._show_state)
        self.pause_button.clicked.connect(study.pause)
        self.stop_button.clicked.connect(study.stop)
        self.go_on_button.clicked.connect(lambda _: self.go_on())
        self.take_button.clicked.connect(lambda _: self.go_on(take_over=True))
        self.compare_button.clicked.connect(lambda: self._session.requests.go("compare/groups"))
        self.seeds_button.clicked.connect(lambda _: self.ask_for_seeds())
        self.run_menu.aboutToShow.connect(self.fill_run_menu)
        self.table.currentCellChanged.connect(lambda *_: self._show_state())
        self.table.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.table.customContextMenuRequested.connect(lambda at: self.run_menu.popup(self.table.mapToGlobal(at)))
        self.table.cellDoubleClicked.connect(self._inspect)
        themes().follow(self, self.refresh)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _on_opened(self) -> None:
        self._judged = -1
        self.refresh()

    def _show_curves(self) -> None:
        """Show the curves of the runs that have ended; nothing is drawn while they are hidden."""
        if self.curves.isVisible():
            self.curves.show_content(
                self._session.study.groups, self._session.study.why_no_groups or translated(_READS)
            )

    def _ask_for_curves(self) -> None:
        """Have the curves read where runs have ended since."""
        study = self._session.study
        if study.grid is not None and self.curves.isVisible() and study.grid.document.done != self._judged:
            self._judged = study.grid.document.done
            self._show_curves()
            study.read_groups()

    def _fit(self) -> None:
        """Leave the height that the grid does not need to the curves."""
        self.curves.setVisible(self.height() >= _CURVES_FROM_PX)
        header, frame = self.table.horizontalHeader().sizeHint().height(), 2 * self.table.frameWidth()
        rows = self.table.rowCount() * self.table.verticalHeader().defaultSectionSize()
        bar = self.table.horizontalScrollBar().sizeHint().height()
        needed = header + rows + bar + frame
        is_shared = self.curves.isVisible()
        self.table.setMaximumHeight(needed if is_shared else _NO_LIMIT)
        self.table.setMinimumHeight(min(needed, int(_MOST_OF_VIEW * self.height())) if is_shared else 0)

    def go_on(self, take_over: bool = False) -> None:
        """Run what is left, after consent to code that the study names: its folder may be of somebody else."""
        study = self._session.study
        if study.grid is not None:
            where = ", ".join(study.places)
            self.consent.before(study.grid.tasks, lambda: study.go_on(take_over=take_over), where)

    def refresh(self) -> None:
        """Show the grid as it was read last; nothing is drawn while it is hidden."""
        study = self._session.study
        if not self.isVisible() or study.folder is None:
            return
        self._show_state()
        if study.grid is None:
            self.title.setText(study.folder.name)
            self.summary.setText(_("Reading the folder..."))
            self.table.setRowCount(0)
            return
        self.title.setText(study.grid.title)
        self.title.setToolTip(plain_tip(str(study.folder)))
        self.summary.setText(summary(study.grid))
        self._fill(grid_table(study.grid, study.starting_s))
        self._fit()
        self._ask_for_curves()

    def _fill(self, result: GridTable) -> None:
        if (result.rows, result.columns) != (self._table.rows, self._table.columns) or not self.table.rowCount():
            self.table.clear()
            self.table.setRowCount(len(result.rows))
            self.table.setColumnCount(len(result.columns))
            self.table.setVerticalHeaderLabels(result.rows)
            for column, name in enumerate(result.columns):
                header = QTableWidgetItem(column_title(name))
                header.setToolTip(plain_tip(column_text(name)))
                self.table.setHorizontalHeaderItem(column, header)
        self._table = result
        for row in range(len(result.rows)):
            for column in range(len(result.columns)):
                self.table.setItem(row, column, _item(result.cells.get((row, column))))

    def _show_state(self) -> None:
        """Say who runs the study, and offer what can be done now."""
        study = self._session.study
        document = study.grid.document if study.grid is not None else None
        left = document is not None and document.left > 0
        paused = document is not None and document.paused
        runner = study.grid.runner if study.grid is not None and not study.is_running else ""
        elsewhere = bool(runner)
        left_behind = not study.is_running and study.grid is not None and study.grid.is_run_somewhere and not elsewhere
        self.pause_button.setVisible((study.is_running or elsewhere) and not paused)
        self.stop_button.setVisible(study.is_running)
        self.take_button.setVisible(left and elsewhere and not paused)
        self.take_button.setEnabled(not self._session.training.is_training)
        self.go_on_button.setVisible(left and (paused or not (study.is_running or elsewhere)))
        self.go_on_button.setEnabled(not self._session.training.is_training)
        self.compare_button.setEnabled(document is not None and document.done > 0)
        self.seeds_button.setEnabled(document is not None and not study.is_example)
        self.run_button.setEnabled(self._chosen() is not None)
        self.cluster_button.refresh()
        self.state.setText(self._state_text(elsewhere=elsewhere, runner=runner, left_behind=left_behind))

    def _state_text(self, *, elsewhere: bool, runner: str, left_behind: bool) -> str:
        """Who runs the study, in a sentence."""
        study = self._session.study
        document = study.grid.document if study.grid is not None else None
        if document is None:
            return ""
        if not document.left:
            if study.is_example:
                return _("All runs have ended. Compare shows the verdicts. It is an example, which stays as it is.")
            return _("All runs have ended. Compare shows the verdicts.")
        if document.paused:
            now = study.is_running or elsewhere
            return translated(_PAUSING) if now else _("Paused. Go on continues with what is left.")
        if study.is_running:
            return _running_text(study)
        if elsewhere:
            text = _("Another {runner} runs this study; what is changed here counts there, too.")
            return text.format(runner=translated(runner))
        if jobs := queued_jobs(document):
            text = n_(
                "{count} job of this study in the queue of the cluster; the grid shows each.",
                "{count} jobs of this study in the queue of the cluster; the grid shows each.",
                jobs,
            )
            return text.format(count=jobs)
        if left_behind:
            return _("A run that was begun before still trains; the process that ran the study has ended.")
        return _("Nobody runs this study now.")

    # What a user changes -----------------------------------------------------------------------------------

    def _chosen(self) -> MemberRow | None:
        """The run of the current cell."""
        cell = self._table.cells.get((self.table.currentRow(), self.table.currentColumn()))
        return cell.member if cell is not None else None

    def fill_run_menu(self) -> None:
        """Offer what can be done with the run of the current cell."""
        self.run_menu.clear()
        member = self._chosen()
        if member is None:
            self.run_menu.addAction(_("Choose a run in the table")).setEnabled(False)
            return
        change, name = self._session.study.change, member.name
        waits, is_out = member.status in ("waiting", "cut off"), member.status == "skipped"
        can_run_again = member.status in ("completed", "failed")
        can_run_again = can_run_again and not self._session.study.is_example
        for text, enabled, act in (
            (_("Run next"), waits, lambda folder: folder.put_first(name)),
            (_("Run last"), waits, lambda folder: folder.put_last(name)),
            (_("Leave out"), waits, lambda folder: folder.skip(name)),
            (_("Take in again"), is_out, lambda folder: folder.skip(name, skipped=False)),
            (_("Give up and run again"), member.is_out_of_reach, lambda folder: folder.give_up(name)),
            (_("Run again"), can_run_again, lambda folder: folder.run_again(name)),
        ):
            action = self.run_menu.addAction(text)
            action.setEnabled(enabled)
            action.triggered.connect(lambda _=False, act=act: change(act))
        inspect = self.run_menu.addAction(_("Inspect"))
        inspect.setEnabled(member.run is not None)
        inspect.triggered.connect(lambda: self._inspect(self.table.currentRow(), self.table.currentColumn()))

    def ask_for_seeds(self) -> PlainInputDialog | None:
        """Ask how many seeds more; the proposal leads to the next verdict of the plan."""
        grid = self._session.study.grid
        if grid is None:
            return None
        dialog = PlainInputDialog(self, _("Add seeds"), seeds_text(grid))
        dialog.setInputMode(PlainInputDialog.InputMode.IntInput)
        dialog.setIntRange(1, MOST_SEEDS)
        dialog.setIntValue(seeds_to_next_verdict(grid))
        dialog.setOkButtonText(_("Add"))
        dialog.intValueSelected.connect(lambda n: self._session.study.change(lambda folder: folder.add_seeds(n)))
        dialog.open()
        return dialog

    def _inspect(self, row: int, column: int) -> None:
        """Open the file of a started run."""
        cell = self._table.cells.get((row, column))
        if cell is not None and cell.member.run is not None:
            key = self._session.runs.open_file(Path(cell.member.run))
            if key is not None:
                self._session.requests.inspect(key)


def _item(cell: GridCell | None) -> QTableWidgetItem:
    if cell is None:
        item = QTableWidgetItem("")
        item.setFlags(Qt.ItemFlag.NoItemFlags)
        return item
    item = QTableWidgetItem(cell.text)
    item.setToolTip(plain_tip(cell.tooltip))
    theme = themes().theme
    colours = {"failed": theme.error, **dict.fromkeys(("completed", "running", "starting"), theme.text)}
    item.setForeground(QColor(colours.get(cell.state, theme.muted)))
    if cell.state in _SHADES:
        item.setData(_SHARE, 1.0 if cell.state == "completed" else cell.share)
        item.setData(_SHADE, _SHADES[cell.state])
    return item


def _running_text(study: StudyControl) -> str:
    """How the window runs a study, and what its end means for it."""
    if study.why_it_waits:
        return _("This window waits: {why}.").format(why=translated(study.why_it_waits))
    if study.places:
        return translated(_RUNNING_THERE).format(places=", ".join(study.places))
    text = translated(_RUNNING)
    if starting_s := max(study.starting_s.values(), default=0.0):
        return paragraph(_("The engine starts, {time} so far.").format(time=duration(round(starting_s))), text)
    return text
