"""A training script in Diagnose: its text with marked lines, its findings, and the change of each as a diff to copy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFrame, QPlainTextEdit, QScrollArea, QSplitter, QVBoxLayout, QWidget

from precgui.formats.claims import claims_about
from precgui.gui.answer import Answer, thread
from precgui.gui.kit.code_edit import CodeEdit
from precgui.gui.kit.file_dialogs import ask_for_file
from precgui.gui.kit.measures import fixed_font
from precgui.gui.kit.parts import button, column, label, row
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.panels.diagnose.card import severity_name
from precgui.gui.theme import severity_colour, themes
from precgui.lint.check import ScriptError, ScriptFinding, check, read_script
from precgui.lint.notebook import SUFFIX
from precgui.lint.rewrites import difference
from precgui.words import L_, Sentence, _, error_text, n_, translated

DEBOUNCE_MS = 300
_SEVERITIES = ("info", "warning", "error")
_EMPTY = L_(
    "Drop a Python file or a notebook here, paste a script or a part of one, or type. It is read, never run: "
    "mistakes in mixed precision are named beside their lines."
)
_NOTHING = L_("Nothing was found. The text of a script shows only some mistakes; a recorded run shows the others.")


@dataclass(frozen=True)
class CheckedScript:
    """Findings of a text, each with its change as a unified diff or an empty text; `fault` where there are none."""

    findings: tuple[tuple[ScriptFinding, str], ...]
    fault: str = ""


def checked(text: str, name: str) -> CheckedScript:
    """The findings of a script called `name`; a text that cannot be checked is a fault with its reason."""
    try:
        return CheckedScript(tuple((each, difference(text, each, name)) for each in check(text)))
    except ScriptError as error:
        return CheckedScript((), Sentence("The text {error}.", error=error))


class _DiffText(QPlainTextEdit):
    """A change without its two lines of file names, as high as it is long."""

    def __init__(self, change: str, parent: QWidget) -> None:
        super().__init__("\n".join(change.splitlines()[2:]), parent)
        self.setReadOnly(True)
        self.setAccessibleName(_("Change of the script"))
        self.setFont(fixed_font())
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        edges = 2 * (self.frameWidth() + round(self.document().documentMargin()))
        bar = self.horizontalScrollBar().sizeHint().height()
        self.setFixedHeight(self.blockCount() * self.fontMetrics().lineSpacing() + edges + bar + 8)


class ScriptFindingCard(QFrame):
    """One finding. `chosen` carries its line."""

    chosen = Signal(int)

    def __init__(self, finding: ScriptFinding, change: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.finding, self.change = finding, change
        self.setProperty("kind", "card")
        self.title = label(_("{title}.").format(title=translated(finding.title)), "heading", selectable=True)
        self.place = label("", "muted")
        self.fix = label(_("Fix: {fix}.").format(fix=translated(finding.fix)), selectable=True)
        self.claims = label(
            "\n".join(translated(each.sentence) for each in claims_about(finding.rule)), "muted", selectable=True
        )
        self.diff = _DiffText(change, self)
        self.copy_button = button(_("Copy the change"), self._copy, _("Copy this change as a unified diff"))
        self.line_button = button(
            _("Line {line}").format(line=finding.line), lambda: self.chosen.emit(finding.line), _("Show this line")
        )
        column(
            self.title,
            self.place,
            self.fix,
            self.claims,
            self.diff,
            row(self.line_button, self.copy_button, 1),
            spacing=8,
            margins=(12, 12, 12, 12),
            on=self,
        )
        self.claims.setVisible(bool(self.claims.text()))
        for text in (self.title, self.place, self.fix, self.claims):
            text.setMinimumWidth(60)
        for part in (self.diff, self.copy_button):
            part.setVisible(bool(change))
        themes().follow(self, self._recolour)
        self._recolour()

    def _recolour(self) -> None:
        self.place.setText(f"{severity_name(self.finding.severity)} · {self.finding.rule}")
        self.place.setStyleSheet(f"color: {severity_colour(self.finding.severity)}")

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.change)


class ScriptView(QWidget):
    """Checks the text a moment after it was changed, in a thread; the result of an older text is left out."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._name = ""
        self.cards: list[ScriptFindingCard] = []
        self.editor = CodeEdit(_("Training script"), self)
        self.editor.setPlaceholderText(translated(_EMPTY))
        self.summary = label(translated(_EMPTY))
        self.name = label("", "muted")
        self.open_button = button(_("Open a script..."), self._ask, _("Choose a Python file or a notebook"))
        self.clear_button = button(_("Clear"), lambda: self.show_text("", ""), _("Empty the field"))
        self._column = QVBoxLayout()
        self._checking = Answer(self, answered=self._show)
        self._wait = QTimer(self, singleShot=True, interval=DEBOUNCE_MS)
        self._lay_out()
        self._wait.timeout.connect(self._check)
        self.editor.textChanged.connect(self._wait.start)
        self.editor.file_dropped.connect(self.open)

    def _lay_out(self) -> None:
        inner = QWidget()
        self._column.setSpacing(12)
        column(self.summary, self._column, 1, spacing=12, margins=(8, 0, 8, 0), on=inner)
        area = QScrollArea()
        area.setWidgetResizable(True)
        area.setFrameShape(QFrame.Shape.NoFrame)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        area.setWidget(inner)
        split = QSplitter(Qt.Orientation.Horizontal)
        split.addWidget(self.editor)
        split.addWidget(area)
        split.setChildrenCollapsible(False)
        split.setSizes([1000, 1000])
        for part in (self.editor, area):
            part.setMinimumWidth(220)
        head = row(self.open_button, self.clear_button, (self.name, 1))
        column(head, (split, 1), margins=(24, 12, 24, 8), on=self)

    def open(self, path: Path) -> None:
        """Show a file; one that cannot be read becomes a sentence."""
        try:
            self.show_text(read_script(path), path.name)
        except ScriptError as error:
            self.show_text("", "")
            self.summary.setText(error_text(error))
            self._wait.stop()

    def show_text(self, text: str, name: str) -> None:
        """Show a text in the place of the present one."""
        self._name = name
        self.name.setText(name)
        self.name.setToolTip(plain_tip(name))
        self.editor.setPlainText(text)

    def _ask(self) -> None:
        ask_for_file(self, _("Open a script"), "", _("Python (*.py *.ipynb);;All files (*)"), self.open)

    def _check(self) -> None:
        text = self.editor.toPlainText()
        if text.strip():
            self._checking.ask(thread(checked, text, _script_name(self._name)), latest_only=True)
        else:
            self._checking.cancel()
            self._show(None)

    def _show(self, result: CheckedScript | None) -> None:
        for card in self.cards:
            self._column.removeWidget(card)
            card.hide()
            card.deleteLater()
        findings = result.findings if result is not None else ()
        self.cards = [ScriptFindingCard(finding, change, self) for finding, change in findings]
        for card in self.cards:
            card.chosen.connect(self.editor.go_to)
            self._column.addWidget(card)
        marks: dict[int, str] = {}
        for finding, _change in sorted(findings, key=lambda each: _SEVERITIES.index(each[0].severity)):
            marks[finding.line] = finding.severity
        self.editor.mark(marks)
        self.summary.setText(_summary(result))


def _script_name(name: str) -> str:
    """The name of a text in its changes: those of a notebook are changes of the script that its cells make."""
    return f"{Path(name).stem}.py" if name.endswith(SUFFIX) else name or "script.py"


def _summary(result: CheckedScript | None) -> str:
    if result is None:
        return translated(_EMPTY)
    if result.fault:
        return translated(result.fault)
    count = len(result.findings)
    return n_("{count} finding.", "{count} findings.", count).format(count=count) if count else translated(_NOTHING)
