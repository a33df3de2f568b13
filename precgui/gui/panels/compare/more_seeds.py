"""The button beside an answer that is not decided: it runs the seeds that would decide."""

from __future__ import annotations

from PySide6.QtWidgets import QPushButton, QWidget

from precgui.config import OWN_LOOP
from precgui.config.names import PRECISIONS
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.session import Session
from precgui.runs.report.content import ReportContent
from precgui.words import _, n_


class MoreSeedsButton(QPushButton):
    """Adds seeds to the open study and runs them; of open runs, puts a study of their precisions into Run."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self._content: ReportContent | None = None
        self._is_study = False
        self.clicked.connect(self.act)
        self.show_content(None, is_study=False)

    def show_content(self, content: ReportContent | None, *, is_study: bool) -> None:
        """Offer the seeds that the answer needs; nothing where it needs none or its runs cannot be started here."""
        self._content, self._is_study = content, is_study
        more = content.more_seeds if content is not None else 0
        grid = self._session.study.grid
        waits = grid is not None and grid.document.left > 0
        can_grow = not waits and not self._session.study.is_example
        self.setVisible(bool(more) and (can_grow if is_study else self._is_startable()))
        if is_study:
            self.setText(n_("Run {count} seed more", "Run {count} seeds more", more).format(count=more))
            self.setToolTip(plain_tip(_("Plan them after the others of this study, and run them now")))
        else:
            self.setText(_("Run {seeds} seeds...").format(seeds=self._seeds()))
            self.setToolTip(
                plain_tip(_("Set up a study of these precisions in Run, with the settings of the baseline"))
            )

    def _seeds(self) -> int:
        """The seeds of a study in which these groups are decided."""
        content = self._content
        most = max((group.n for group in content.study.groups), default=0) if content is not None else 0
        return most + (content.more_seeds if content is not None else 0)

    def _precisions(self) -> list[str]:
        groups = self._content.study.groups if self._content is not None else []
        return [group.precision for group in groups]

    def _is_startable(self) -> bool:
        """Whether the groups differ in their precision alone, and precgui can start their training."""
        runs = self._content.runs if self._content is not None else ()
        if not runs or runs[0].work.config.task == OWN_LOOP:
            return False
        return self._content is not None and all(
            group.group == group.precision and group.precision in PRECISIONS for group in self._content.study.groups
        )

    def act(self) -> None:
        """Run the seeds, or set the study up."""
        content = self._content
        if content is None:
            return
        study, more = self._session.study, content.more_seeds
        if not self._is_study:
            base = next((run for run in content.runs if run.group == content.study.groups[0].baseline), content.runs[0])
            self._session.requests.set_up_study(base.work.config, base.name, self._precisions(), self._seeds())
            return
        study.change(lambda folder: folder.add_seeds(more))
        if study.grid is not None and not study.grid.is_run_somewhere:
            study.go_on()
        self._session.requests.go("live/study")
