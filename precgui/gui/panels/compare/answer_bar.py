"""The answer on top of Compare: one sentence, the button that makes it surer, and the small print behind a fold."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from precgui.config import OWN_LOOP, PRECISIONS
from precgui.gui.kit.answer_label import AnswerLabel
from precgui.gui.kit.folded_text import FoldedText
from precgui.gui.kit.parts import button, column, row
from precgui.gui.session import Session
from precgui.runs.facts import wait_text
from precgui.runs.short_answer import SEEDS, ShortAnswer
from precgui.words import L_, _, translated

_REPEAT = L_("Set up a study of both precisions in Run, with the settings of the baseline and {seeds} seeds of each")
_NONE = L_("Open a second run, or train the same in another precision, for an answer.")


class AnswerBar(QWidget):
    """`study_requested(baseline)` asks for the study of both runs."""

    study_requested = Signal(str)

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self._answer: ShortAnswer | None = None
        self.answer = AnswerLabel()
        self.more_seeds = button("", self._ask, translated(_REPEAT).format(seeds=SEEDS), kind="primary")
        self.fold = FoldedText()
        self.note = self.fold.note
        self.line = row(self.more_seeds, self.fold, 1)
        column(self.answer, self.line, self.note, spacing=8, on=self)
        self.more_seeds.hide()

    @property
    def run(self) -> str:
        """The name of the run that the answer is about; "" without an answer."""
        return self._answer.run if self._answer is not None else ""

    def tell(self, text: str) -> None:
        """Show a sentence in the place of the answer, while there is none yet."""
        self.answer.setText(text)
        self.more_seeds.hide()

    def show_answer(self, answer: ShortAnswer | None, notes: Sequence[str]) -> None:
        """The sentence with its button, and one line for each note behind the fold."""
        self._answer = answer
        self.answer.setText(translated(answer.sentence if answer is not None else _NONE))
        self.more_seeds.setVisible(answer is not None and answer.can_repeat and self._is_startable())
        seconds = answer.seconds if answer is not None else None
        text = _("Run {seeds} seeds, {time}") if seconds else _("Run {seeds} seeds")
        self.more_seeds.setText(text.format(seeds=SEEDS, time=translated(wait_text(seconds or 0.0))))
        self.fold.set_remarks([translated(note) for note in notes])

    def _is_startable(self) -> bool:
        """Whether precgui can start the training of both runs."""
        names = (self._answer.run, self._answer.baseline) if self._answer is not None else ()
        configs = [each.run.config for each in self._session.runs.values() if each.name in names]
        return all(config.task != OWN_LOOP and config.precision in PRECISIONS for config in configs)

    def _ask(self) -> None:
        if self._answer is not None:
            self.study_requested.emit(self._answer.baseline)
