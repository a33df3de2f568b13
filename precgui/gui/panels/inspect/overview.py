"""Overview: all that is recorded of one run besides its curves, and the note of the user."""

from __future__ import annotations

from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QVBoxLayout, QWidget

from precgui.gui.answer import Answer, thread
from precgui.gui.kit.caveat import CaveatLabel
from precgui.gui.kit.plain_text import PlainLabel, plain_tip
from precgui.gui.open_run import Problem
from precgui.gui.panels.inspect.fact_tree import FactTree
from precgui.gui.panels.inspect.run_tab import RunTab
from precgui.gui.session import Session
from precgui.paths import is_example
from precgui.runs.caveats import arithmetic_of
from precgui.runs.errors import RunFileError
from precgui.runs.facts import run_facts
from precgui.runs.file.reader import SavedRun
from precgui.runs.file.user_notes import read_notes
from precgui.runs.library import annotate
from precgui.runs.models.model_facts import model_facts
from precgui.runs.models.model_file import holds_scan
from precgui.words import L_, _, error_text, translated

_NO_FILE = L_("A note can be written when the run has ended and its file is open.")
_EXAMPLE = L_("An example stays as it is, without a note of yours.")
REFRESH_MS = 1000  # of a run that goes on


class OverviewTab(RunTab):
    """Follows a run that goes on once a second."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(session, REFRESH_MS, parent)
        self.caveat = CaveatLabel(self)
        self.search = QLineEdit(self)
        self.note = QLineEdit(self)
        self.tree = FactTree(self)
        self._model = Answer(self, answered=self.tree.show_groups, title=_("Reading the scan of a model"))
        self._lay_out()
        self.search.textChanged.connect(self.tree.set_words)
        self.note.editingFinished.connect(self._keep_note)

    def _lay_out(self) -> None:
        self.search.setPlaceholderText(_("Filter by any word"))
        self.search.setAccessibleName(_("Filter the facts"))
        self.search.setClearButtonEnabled(True)
        self.note.setPlaceholderText(_("Your note on this run"))
        self.note.setAccessibleName(_("Your note on this run"))
        line = QHBoxLayout()
        line.addWidget(self.search, 1)
        label = PlainLabel(_("&Note"), self)
        label.setBuddy(self.note)
        line.addWidget(label)
        line.addWidget(self.note, 2)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 8, 0, 0)
        column.setSpacing(8)
        column.addWidget(self.caveat)
        column.addLayout(line)
        column.addWidget(self.tree, 1)

    def show_run(self, key: str | None) -> None:
        opened = self._session.runs.get(key or "")
        path = opened.run.path if opened is not None else None
        self.note.setText(read_notes(path).note if path is not None else "")
        why_not = "" if opened is not None and isinstance(opened.run, SavedRun) else _NO_FILE
        why_not = _EXAMPLE if path is not None and is_example(path) else why_not
        self.note.setReadOnly(bool(why_not))
        self.note.setToolTip(plain_tip(translated(why_not)))
        super().show_run(key)

    def refresh(self) -> None:
        """Read the facts again; nothing is computed while the tab is hidden."""
        opened = self._session.runs.get(self._key or "")
        if opened is None or not self.isVisible():
            return
        path = opened.run.path
        if holds_scan(opened.run) and path is not None:
            self.caveat.set_text("")
            self._model.ask(thread(model_facts, path, opened.run.created), latest_only=True)
            return
        self._model.cancel()
        self.caveat.set_text(arithmetic_of(opened.run).caveat)
        self.tree.show_groups(run_facts(opened.run))

    def _keep_note(self) -> None:
        opened = self._session.runs.get(self._key or "")
        path = opened.run.path if opened is not None else None
        if path is None or self.note.isReadOnly() or self.note.text().strip() == read_notes(path).note:
            return
        try:
            annotate(path, self.note.text())
        except RunFileError as error:
            self._session.notice.emit(Problem(error_text(error)))
        else:
            self._session.folder_changed.emit()
