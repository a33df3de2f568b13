"""The button that writes the report on the groups: HTML, Markdown or CSV, and the page on FP16 and BF16."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from PySide6.QtWidgets import QMenu, QPushButton, QWidget

from precgui.gui.answer import Answer, thread
from precgui.gui.kit.file_dialogs import ask_for_new_file
from precgui.gui.open_run import Problem
from precgui.gui.session import Session
from precgui.runs.errors import RunFileError
from precgui.runs.report.content import ReportContent
from precgui.runs.report.writing import ReportKind, write_report
from precgui.words import L_, _, error_text, translated, wording

KINDS: dict[ReportKind, tuple[str, str, str]] = {  # text, suffix, filter
    "html": (L_("Report to read and print (HTML)..."), "html", "HTML (*.html)"),
    "markdown": (L_("Report as Markdown..."), "md", "Markdown (*.md)"),
    "csv": (L_("Figures as CSV..."), "csv", L_("Comma-separated values (*.csv)")),
    "sixteen bits": (L_("FP16 or BF16 as a page (HTML)..."), "html", "HTML (*.html)"),
}


class ReportExport(QPushButton):
    """Writes what is shown; a file that exists already is never overwritten."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(_("Report"), parent)
        self._writing = Answer(self, answered=self._report)
        self._session = session
        self.content: ReportContent | None = None
        self.setToolTip(_("Write the answer, all figures, verdicts and claims as one file"))
        menu = QMenu(self)
        self._actions = {kind: menu.addAction(translated(texts[0])) for kind, texts in KINDS.items()}
        for kind, action in self._actions.items():
            action.triggered.connect(partial(self.ask, kind))
        self.setMenu(menu)
        self.show_content(None)

    def show_content(self, content: ReportContent | None) -> None:
        self.content = content
        self.setEnabled(content is not None)
        self._actions["sixteen bits"].setEnabled(content is not None and content.sixteen_bits is not None)

    def ask(self, kind: ReportKind) -> None:
        """Ask for the file, then write it."""
        if self.content is None:
            return
        text, suffix, files = KINDS[kind]
        folder = self._session.study.folder or self._session.folder
        name = re.sub(r"[^\w.-]+", "-", self.content.title).strip("-.") or "report"
        ask_for_new_file(
            self, translated(text).removesuffix("..."), folder, translated(files), partial(self.write, kind),
            suffix=suffix, name=f"{name}.{suffix}", replaces=False,
        )  # fmt: skip

    def write(self, kind: ReportKind, path: Path) -> None:
        """Write in a thread; a notice says what became of it."""
        if self.content is not None:
            self._writing.ask(thread(_written, self.content, kind, path))

    def _report(self, problem: Problem) -> None:
        self._session.notice.emit(problem)


def _written(content: ReportContent, kind: ReportKind, path: Path) -> Problem:
    try:
        write_report(content, kind, path, wording())
    except RunFileError as error:
        return Problem(error_text(error))
    return Problem(_("Written: {file}").format(file=path), severity="info", file=path)
