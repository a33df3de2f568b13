"""Runs: the folder of runs as a table; open, rename, note, show in folder, delete to the bin."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from PySide6.QtCore import Qt, QTimer, QUrl
from PySide6.QtGui import QAction, QDesktopServices, QKeySequence, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QPushButton, QVBoxLayout, QWidget

from precgui.gui.answer import Answer, thread
from precgui.gui.broken_runs import BrokenRuns, may_go_on
from precgui.gui.examples import offer_examples
from precgui.gui.kit.empty_state import EmptyState, Pages
from precgui.gui.kit.file_dialogs import ask_for_folder
from precgui.gui.kit.icons import icon
from precgui.gui.kit.parts import label
from precgui.gui.kit.plain_text import ElidedLabel, PlainInputDialog, PlainLabel, plain_tip
from precgui.gui.kit.when_visible import WhenVisible
from precgui.gui.kit.wrapping_row import WrappingRow
from precgui.gui.open_run import Problem
from precgui.gui.panels.library.arrange_bar import ArrangeBar
from precgui.gui.panels.library.buttons import ModelButton, StudiesMenu
from precgui.gui.panels.library.diagnoses import FolderDiagnoses
from precgui.gui.panels.library.folder import RunsFolder
from precgui.gui.panels.library.quantised_dialog import IntegerModels
from precgui.gui.panels.library.studies_view import StudiesView
from precgui.gui.panels.library.table import NOTE, STEPS, TITLE, RunFilter, RunTable
from precgui.gui.panels.library.view import ConfirmBar, RunsView, tool
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.runs.bin import can_restore
from precgui.runs.errors import RunFileError
from precgui.runs.library import add_tag, annotate, delete, files_beside, rename, undelete
from precgui.runs.library_index import LibraryEntry
from precgui.runs.live import LiveRun
from precgui.words import L_, _, error_text, n_, p_, translated

FOLLOW_MS = 2000  # between reads of runs that are being written
READING = L_("Reading the folder...")
ALL_FROM_WIDTH = 900
_SEARCH_MARGINS_PX = 28
ON_RUNS = ("open", "inspect", "start", "rename", "note", "integers", "library", "bin")


class LibraryPanel(QWidget):
    """The runs of `session.folder`; changes of the folder appear at once."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self._folder = RunsFolder(session.folder, self)
        self._doomed: list[LibraryEntry] = []
        self._is_showing = False  # the rows of the folder come, and bring back what was selected
        self._deleting = Answer(self, answered=self._on_deleted)
        self._restoring = Answer(self, answered=self._on_restored)
        self._integers = IntegerModels(self)
        self._broken_runs = BrokenRuns(session, self)
        self.actions_ = self._make_actions()
        self.table = RunTable(self._edit, self)
        self.filtered = RunFilter(self)
        self.filtered.setSourceModel(self.table)
        self.view = RunsView(self.filtered, [self.actions_[name] for name in (*ON_RUNS, "tag")], self)
        self.arrange = ArrangeBar(self)
        self.bar = ConfirmBar([self.actions_[name] for name in ON_RUNS], _("Move to the bin"), _("Keep"), self)
        self.search = QLineEdit(self)
        self.folder = ElidedLabel(self)
        self.message = PlainLabel(self)
        self.pages = Pages(EmptyState("library", translated(READING), "", _("Set up a run")), self)
        self._follow = QTimer(self, interval=FOLLOW_MS)
        self._lay_out()
        self._diagnoses = FolderDiagnoses(self)
        self._diagnoses.judged.connect(self.table.set_diagnosis)
        self._connect()
        self._recolour()
        self.pages.empty.button.hide()
        self._use_folder()
        self._mark_current()

    def _make_actions(self) -> dict[str, QAction]:
        actions: dict[str, QAction] = {}
        for name, text, keys, act in (
            ("open", _("Open"), "", self.open_selected),
            ("inspect", _("Inspect"), "", self.inspect_selected),
            ("start", _("Go on"), "", self.go_on),
            ("rename", _("Rename"), "F2", partial(self._edit_cell, TITLE)),
            ("note", p_("of a run", "Note"), "Ctrl+E", partial(self._edit_cell, NOTE)),
            ("tag", _("Tag..."), "Ctrl+T", self.ask_for_tag),
            ("integers", _("Integer model"), "", self.show_integers),
            ("library", _("Show in folder"), "", self.show_in_folder),
            ("bin", _("Delete"), "Del", self.ask_to_delete),
            ("refresh", _("Refresh"), "F5", self.refresh),
        ):
            action = QAction(text, self)
            action.setToolTip(plain_tip(_("{text} ({keys})").format(text=text, keys=keys) if keys else text))
            action.setShortcut(QKeySequence(keys))
            action.setShortcutContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
            action.triggered.connect(lambda _=False, act=act: act())
            self.addAction(action)
            actions[name] = action
        return actions

    def _lay_out(self) -> None:
        self.search.setPlaceholderText(_("Filter by any word"))
        self.search.setClearButtonEnabled(True)
        self.search.setAccessibleName(_("Filter the runs"))
        for part in (self.folder, self.message):
            part.setProperty("kind", "muted")
        self.message.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.message.setWordWrap(True)
        self.message.setFixedHeight(2 * self.fontMetrics().height() + 8)
        self.message.setAlignment(Qt.AlignmentFlag.AlignTop)
        column = QVBoxLayout(self.pages.content)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(8)
        column.addWidget(self.bar)
        column.addWidget(self.view, 1)
        column.addWidget(self.message)
        self.choose = QPushButton(_("Choose folder..."), self)
        refresh = tool(self.actions_["refresh"], self, with_text=False)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(24, 12, 24, 8)
        layout.setSpacing(8)
        self.studies, self.studies_view = StudiesMenu(self._session, self), StudiesView(self._session, self)
        self.models = ModelButton(self._session, self)
        title = label(_("Runs"), "title", wrap=False)
        parts = [title, self.search, refresh, self.models, self.studies]
        layout.addWidget(WrappingRow(parts, self, at_right=self.choose, fills=title))
        line = QHBoxLayout()
        line.addWidget(self.folder, 1)
        line.addWidget(self.arrange)
        layout.addLayout(line)
        layout.addWidget(self.studies_view)
        layout.addWidget(self.pages, 1)

    def _connect(self) -> None:
        self.search.textChanged.connect(self.filtered.set_words)
        self.arrange.grouped.connect(self._group)
        self.arrange.tag_chosen.connect(self.filtered.set_tag)
        self.view.activated.connect(self.inspect_selected)
        self.view.selectionModel().selectionChanged.connect(self._on_selection)
        self.filtered.modelReset.connect(self._on_selection)
        self.bar.agreed.connect(self._delete_doomed)
        self.choose.clicked.connect(self.ask_for_folder)
        self.pages.empty.button.clicked.connect(lambda: self._session.requests.go("setup"))
        offer_examples(self.pages.empty, self._session)
        self._changed = WhenVisible(self, self.refresh)
        self._folder.changed.connect(self._changed.request)
        self._follow.timeout.connect(self._follow_running)
        self._folder.read.connect(self._show)
        self._folder.read_so_far.connect(self._show_part)
        self._folder.failed.connect(lambda text: self._session.notice.emit(Problem(text)))
        self._session.folder_changed.connect(self._use_folder)
        self._session.runs.current_changed.connect(self._mark_current)
        self._session.runs.added.connect(lambda _: self._folder.announce_soon())
        self._integers.failed.connect(lambda text: self._session.notice.emit(Problem(text, severity="warning")))
        themes().follow(self, self._recolour)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._diagnoses.go_on()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        hint = self.search.fontMetrics().horizontalAdvance(self.search.placeholderText()) + _SEARCH_MARGINS_PX
        self.search.setFixedWidth(max(hint, 200 if self.width() >= ALL_FROM_WIDTH else 0))
        for column in (STEPS, NOTE):
            self.view.setColumnHidden(column, self.width() < ALL_FROM_WIDTH)

    def _recolour(self) -> None:
        for name, action in self.actions_.items():
            action.setIcon(icon(name, themes().theme.muted, 18))
        self.table.recolour()

    # Reading the folder ------------------------------------------------------------------------------------

    def _use_folder(self) -> None:
        self._folder.use(self._session.folder)
        self.folder.setText(_from_home(self._session.folder))
        self.folder.setToolTip(plain_tip(str(self._session.folder)))
        self._changed.request()

    def refresh(self) -> None:
        """Read the folder again, but not while a name is being edited in the table."""
        self.studies_view.refresh()
        if self.view.is_editing():
            self._folder.announce_soon()
        else:
            self._folder.refresh()

    def _show_part(self, entries: list[LibraryEntry], total: int) -> None:
        """The runs that have been read, while the rest is: only more of them than are shown already."""
        if len(entries) <= self.table.rowCount() or self.view.is_editing():
            return
        self._show(entries)
        if not self.selected():
            reading = _("Reading the folder... {count} of {total} runs")
            self.message.setText(reading.format(count=len(entries), total=total))

    def _show(self, entries: list[LibraryEntry]) -> None:
        chosen = {entry.path for entry in self.selected()}
        self._is_showing = True
        self.table.show_entries(self._as_they_stand(entries))
        self.view.show_places(any(entry.place for entry in entries))
        self.arrange.show_tags(entries)
        self._select(chosen)
        self._is_showing = False
        self._diagnoses.ask(entries)
        if any(entry.status == "running" for entry in entries):
            self._follow.start()
        else:
            self._follow.stop()
        self.pages.empty.heading.setText(_("No runs yet"))
        self.pages.empty.button.show()
        self.pages.empty.set_text(
            _("Every run is kept as a file in {folder}. Start one, or choose a folder that holds runs.").format(
                folder=self._session.folder
            )
        )
        self.pages.show_content(bool(entries))

    def _as_they_stand(self, entries: list[LibraryEntry]) -> list[LibraryEntry]:
        """A run that trains in this window as the window knows it: its file is a moment behind.

        A file that has ended stands as it is, also where the training went on without its record.
        """
        opened = [each.run for each in self._session.runs.values()]
        live = {run.path.absolute(): run for run in opened if isinstance(run, LiveRun) and run.path is not None}
        if not live:
            return entries
        runs = [live.get(entry.path.absolute()) for entry in entries]
        return [
            entry
            if run is None or entry.status != "running"
            else replace(entry, steps=max(run.steps, entry.steps), status=run.status)
            for entry, run in zip(entries, runs, strict=True)
        ]

    def _follow_running(self) -> None:
        if self.isVisible():
            self.refresh()

    # The selection -----------------------------------------------------------------------------------------

    def selected(self) -> list[LibraryEntry]:
        """The chosen runs, in the order of the table."""
        indexes = [self.filtered.index(row, TITLE) for row in self.view.selected_rows()]
        return [self.table.entry(self.filtered.mapToSource(index).row()) for index in indexes]

    def _select(self, paths: set[Path]) -> None:
        sources = [row for path in paths if (row := self.table.row_of(path)) is not None]
        rows = [self.filtered.mapFromSource(self.table.index(row, TITLE)).row() for row in sources]
        self.view.select_rows([row for row in rows if row >= 0])

    def _on_selection(self) -> None:
        chosen = self.selected()
        self.bar.drop()
        single = len(chosen) == 1 and not chosen[0].error
        for name in ("open", "inspect", "library", "bin", "tag"):
            self.actions_[name].setEnabled(bool(chosen))
        for name in ("rename", "note"):
            self.actions_[name].setEnabled(single)
        self.actions_["start"].setEnabled(single and may_go_on(chosen[0].path, chosen[0].status, chosen[0].place))
        self.actions_["integers"].setEnabled(single and chosen[0].precision.endswith("-qat"))
        displayed, total = self.filtered.rowCount(), self.table.rowCount()
        if len(chosen) == 1:
            entry = chosen[0]
            reported = translated(entry.error) or "\n".join(part for part in (entry.path.name, entry.note) if part)
        else:
            reported = _counts(len(chosen), displayed, total)
        self.message.setText(reported)
        keys = self._keys_of(chosen) if single else []
        if keys and self.isVisible() and not self._is_showing:
            self._session.runs.choose(keys[0])

    def _mark_current(self) -> None:
        """Name the current run in bold."""
        opened = self._session.runs.get(self._session.runs.current or "")
        self.table.mark(opened.run.path if opened is not None else None)

    # What a user does with runs ----------------------------------------------------------------------------

    def open_selected(self) -> None:
        """Open the chosen runs and show them."""
        paths = [entry.path for entry in self.selected()]
        self._session.runs.opener.open(paths, self._show_run)

    def _show_run(self, key: str) -> None:
        self._session.runs.choose(key)
        self._session.requests.go("live")

    def inspect_selected(self) -> None:
        """Open the chosen runs and inspect the first of them."""
        self._session.runs.opener.open([entry.path for entry in self.selected()], self._session.requests.inspect)

    def go_on(self) -> None:
        """Go on with the chosen run, which broke off, from its checkpoint."""
        self._broken_runs.go_on(self.selected()[0].path)

    def _edit_cell(self, column: int) -> None:
        rows = self.view.selectionModel().selectedRows()
        if len(rows) == 1:
            self.view.setColumnHidden(column, False)
            index = self.filtered.index(rows[0].row(), column)
            self.view.scrollTo(index)
            self.view.setCurrentIndex(index)
            self.view.edit(index)

    def _edit(self, entry: LibraryEntry, column: int, text: str) -> bool:
        try:
            rename(entry.path, text) if column == TITLE else annotate(entry.path, text)
        except RunFileError as error:
            self._session.notice.emit(Problem(error_text(error)))
            return False
        if column == TITLE and text.strip():
            for key in self._keys_of([entry]):
                self._session.runs.rename(key, text.strip())
        self._folder.announce_soon()
        return True

    def _group(self, name: str) -> None:
        self.table.group_by(name)
        self.view.verticalHeader().setVisible(name != "nothing")

    def ask_for_tag(self) -> PlainInputDialog | None:
        """Ask for a word and put it as a tag into the notes of the chosen runs."""
        chosen = [entry.path for entry in self.selected() if not entry.error]
        if not chosen:
            return None
        dialog = PlainInputDialog(self, _("Tag"), _("One word; it is kept in the note, with # before it."))
        dialog.textValueSelected.connect(lambda tag: self._tag(chosen, tag))
        dialog.open()
        return dialog

    def _tag(self, paths: list[Path], tag: str) -> None:
        for path in paths:
            try:
                add_tag(path, tag)
            except RunFileError as error:
                self._session.notice.emit(Problem(error_text(error), severity="warning"))
                break
        self._folder.announce_soon()

    def _keys_of(self, entries: list[LibraryEntry]) -> list[str]:
        """The keys under which these runs are open in the window."""
        paths = {entry.path.absolute() for entry in entries}
        return [
            k for k, opened in self._session.runs.items() if opened.run.path and opened.run.path.absolute() in paths
        ]

    def show_integers(self) -> None:
        """Shows the measurements of the chosen run's integer model."""
        self._integers.show_model(self.selected()[0].path)

    def show_in_folder(self) -> None:
        for folder in {entry.path.parent for entry in self.selected()}:
            QDesktopServices.openUrl(QUrl.fromLocalFile(str(folder)))

    def ask_to_delete(self) -> None:
        """Ask in the place of the buttons; the run that is training cannot be deleted."""
        self._doomed = self.selected()
        if self._session.runs.active_key in self._keys_of(self._doomed):
            text = _("A run that is still training cannot be deleted; stop it first.")
            self._session.notice.emit(Problem(text, severity="warning"))
        elif self._doomed:
            count, title = len(self._doomed), self._doomed[0].title
            question = n_("Move “{title}” to the bin?", "Move these {count} runs to the bin?", count)
            self.bar.ask(question.format(title=title, count=count))

    def _delete_doomed(self) -> None:
        doomed, self._doomed = self._doomed, []
        open_paths = [self._session.runs[key].run.path for key in self._keys_of(doomed)]
        for key in self._keys_of(doomed):
            self._session.runs.close(key)
        moved = n_("“{title}” was moved to the bin.", "{count} runs were moved to the bin.", len(doomed))
        done = moved.format(title=doomed[0].title, count=len(doomed))
        paths = [entry.path for entry in doomed]
        self._deleting.ask(thread(_delete, paths, [path for path in open_paths if path], done))

    def _on_deleted(self, deleted: _Deleted) -> None:
        for fault in deleted.faults:
            self._session.notice.emit(Problem(fault))
        if deleted.paths and can_restore():
            self._session.undo.offer(deleted.done, lambda: self._restoring.ask(thread(_restore, deleted)))
        self.refresh()

    def _on_restored(self, answer: tuple[_Deleted, list[str]]) -> None:
        deleted, faults = answer
        for fault in faults:
            self._session.notice.emit(Problem(fault))
        self._session.runs.opener.open([path for path in deleted.opened if path.exists()], lambda _: None)
        self.refresh()

    def ask_for_folder(self) -> None:
        ask_for_folder(self, _("Choose the folder of runs"), self._session.folder, self._session.set_folder)


@dataclass(frozen=True)
class _Deleted:
    """The runs in the bin, each with the files beside it; those that were open; what could not be moved."""

    done: str
    paths: dict[Path, tuple[Path, ...]]
    opened: list[Path]
    faults: list[str]


def _delete(paths: list[Path], opened: list[Path], done: str) -> _Deleted:
    """Move files to the bin."""
    faults: list[str] = []
    moved: dict[Path, tuple[Path, ...]] = {}
    for path in paths:
        beside = files_beside(path)
        try:
            delete(path)
            moved[path] = beside
        except RunFileError as error:
            faults.append(error_text(error))
    return _Deleted(done, moved, opened, faults)


def _restore(deleted: _Deleted) -> tuple[_Deleted, list[str]]:
    """Bring files back from the bin; what could not be brought back, as sentences."""
    faults = []
    for path, beside in deleted.paths.items():
        try:
            undelete(path, beside)
        except RunFileError as error:
            faults.append(error_text(error))
    return deleted, faults


def _counts(chosen: int, displayed: int, total: int) -> str:
    """How many runs there are, are chosen, and are hidden."""
    runs = n_("{count} run", "{count} runs", total)
    if chosen:
        runs = n_("{chosen} of {count} run selected", "{chosen} of {count} runs selected", total)
    counts = [runs.format(count=total, chosen=chosen)]
    if displayed < total:
        counts.append(_("{count} hidden by the filter").format(count=total - displayed))
    return _(", ").join(counts)


def _from_home(path: Path) -> str:
    """A path as people say it: `~/precgui-runs`."""
    home = Path.home()
    return str(Path("~", path.relative_to(home))) if path.is_relative_to(home) else str(path)
