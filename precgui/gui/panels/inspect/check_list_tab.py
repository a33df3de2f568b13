"""Check list: what guides on mixed precision ask of a run, each line measured from its file, with settings to try."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QScrollArea, QVBoxLayout, QWidget

from precgui.gui.kit.parts import column, label, row
from precgui.gui.panels.inspect.run_tab import RunTab
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.gui.trial import pairs_button, trial_button
from precgui.runs.check_list import CheckLine, check_list, lines_met
from precgui.words import L_, _, translated

REFRESH_MS = 2000  # of a run that goes on
_MARKS = {L_("met"): "✓", L_("missed"): "✗", L_("not needed"): "–", L_("not measured"): "?"}
_ABOUT = L_(
    "Sizes of products should fill the rows of tensor cores; the other lines are those of the guides. A line says what "
    "the file of this run holds; Measure in pairs sets up a study that tells what a change does."
)


class CheckListTab(RunTab):
    """Reads the run again every two seconds while it goes on and is in sight."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(session, REFRESH_MS, parent)
        self.lines: tuple[CheckLine, ...] = ()
        self.summary = label("", "heading")
        self.rows: list[QWidget] = []
        self._column = QVBoxLayout()
        self._lay_out()
        themes().follow(self, self._show)

    def _lay_out(self) -> None:
        inner = QWidget()
        self._column.setSpacing(12)
        about = label(translated(_ABOUT), "muted")
        column(self.summary, about, self._column, 1, spacing=12, margins=(0, 0, 8, 0), on=inner)
        area = QScrollArea()
        area.setWidgetResizable(True)
        area.setFrameShape(QFrame.Shape.NoFrame)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        area.setWidget(inner)
        column((area, 1), margins=(0, 8, 0, 0), on=self)

    def refresh(self) -> None:
        """Measure the lines again; nothing is done while the tab is hidden."""
        opened = self._session.runs.get(self._key or "")
        if opened is None or not self.isVisible():
            return
        lines = check_list(opened.run)
        if lines != self.lines or not self.rows:
            self.lines = lines
            self._show()

    def _show(self) -> None:
        for old in self.rows:
            self._column.removeWidget(old)
            old.hide()
            old.deleteLater()
        self.rows = [self._row(line) for line in self.lines]
        for each in self.rows:
            self._column.addWidget(each)
        self.summary.setText(_("{sentence}.").format(sentence=translated(lines_met(self.lines))) if self.lines else "")

    def _row(self, line: CheckLine) -> QWidget:
        theme = themes().theme
        colours = {"met": theme.ok, "missed": theme.error, "not needed": theme.muted, "not measured": theme.muted}
        named = _("{title}: {state}").format(title=translated(line.title), state=translated(line.state))
        mark, text = label(_MARKS[line.state], "heading", wrap=False), label(named)
        for part in (mark, text):
            part.setStyleSheet(f"color: {colours[line.state]}")
        mark.setFixedWidth(18)
        found = translated(line.measured)
        sentence = _("{sentence}.").format(sentence=f"{found[:1].upper()}{found[1:]}")
        measured = label(sentence, "muted", selectable=True)
        for part in (text, measured):
            part.setMinimumWidth(60)
        made = QFrame(self)
        made.setAccessibleName(named)
        parts = [
            make({path: value}, self._session, self._key)
            for path, value in line.change.items()
            for make in (pairs_button, trial_button)
        ]
        words = column(text, measured, spacing=2)
        row(mark, (words, 1), *parts, on=made)
        row_layout = made.layout()
        if row_layout is not None:
            row_layout.setAlignment(mark, Qt.AlignmentFlag.AlignTop)
        return made
