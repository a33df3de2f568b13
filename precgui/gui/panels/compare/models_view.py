"""Compare > Models: what moved from one trained model to another, read from their own files."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QWidget

from precgui.formats.checkpoints.comparison import ModelComparison, compare_models
from precgui.formats.checkpoints.contents import StoredModel, open_checkpoint
from precgui.gui.answer import Answer, ProgressCallback, computation
from precgui.gui.kit.choice import Choice
from precgui.gui.kit.parts import button, column, label, named
from precgui.gui.kit.parts import row as side_by_side
from precgui.gui.kit.table import TextTable
from precgui.gui.session import Session
from precgui.runs.models.comparison_rows import TITLES, change_rows, comparison_notes
from precgui.runs.models.model_file import holds_scan, read_model_file
from precgui.words import L_, Sentence, _, translated

PROGRESS_MS = 200
_FEW = L_("Two models are compared here; scan another one in Runs, or drop its folder on the window.")
_READY = L_("Both models are read from their files, which takes about as long as copying them.")
_PROGRESS = L_("Comparing {first} with {second}: {share:.0%}")


class ModelsView(QWidget):
    """Two of the open models; nothing is read before the button is pressed."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session, self._sentence = session, _FEW
        self.first, self.second = Choice(_("First model")), Choice(_("Second model"))
        self.start = button(
            _("Compare"), self.compare, _("What moved from the first model to the second, in dB and ulps")
        )
        self.result_text, self.notes = (
            label(translated(_FEW), "heading", selectable=True),
            label("", "muted", selectable=True),
        )
        self.table = TextTable([translated(title) for title in TITLES], _("Tensors that differ"))
        bar = side_by_side(
            named(_("&From"), self.first), (self.first, 1), named(_("&to"), self.second), (self.second, 1), self.start
        )
        self.column = column(bar, self.result_text, (self.table, 1), self.notes, on=self)
        self.notes.hide()
        self._work = Answer(self, answered=self._show, failed=self._fail, title=_("Comparing two models"))
        self._timer = QTimer(self, interval=PROGRESS_MS)
        self._timer.timeout.connect(self._tell_share)
        for choice in (self.first, self.second):
            choice.activated.connect(lambda place: self._work.cancel())
            choice.activated.connect(lambda place: self._forget_result())
        self._work.changed.connect(self._follow)

    def show_models(self) -> int:
        """Offer the open models; returns how many there are."""
        entries = [(each.name, key) for key, each in self._session.runs.items() if holds_scan(each.run)]
        fresh = self.first.count() == 0
        for choice in (self.first, self.second):
            choice.offer(entries)
        if fresh and len(entries) > 1:
            self.second.setCurrentIndex(1)
        self.start.setEnabled(len(entries) > 1)
        if self._sentence in (_READY, _FEW):
            self._tell(_READY if len(entries) > 1 else _FEW)
        return len(entries)

    def choose(self, first: str, second: str) -> None:
        """Choose two models by their keys and compare them."""
        self.show_models()
        for choice, key in ((self.first, first), (self.second, second)):
            choice.setCurrentIndex(max(choice.findData(key), 0))
        self.compare()

    def compare(self) -> None:
        """Compare the chosen models, or stop the comparison that goes on."""
        if self._work.busy:
            self._work.cancel()
            return
        opened = [self._session.runs.get(choice.currentData() or "") for choice in (self.first, self.second)]
        paths = [each.run.path for each in opened if each is not None and each.run.path is not None]
        if len(paths) == 2:
            self._forget_result()
            self._work.ask(computation(lambda progress: _compared(paths[0], paths[1], progress)))

    def _follow(self) -> None:
        self.start.setText(_("Stop") if self._work.busy else _("Compare"))
        if self._work.busy:
            self._timer.start()
            self._tell_share()
        else:
            self._timer.stop()
            self.result_text.setText(translated(self._sentence))

    def _tell_share(self) -> None:
        names = {"first": self.first.currentText(), "second": self.second.currentText()}
        self.result_text.setText(translated(_PROGRESS).format(**names, share=self._work.share))

    def _tell(self, sentence: str) -> None:
        self._sentence = sentence
        if not self._work.busy:
            self.result_text.setText(translated(sentence))

    def _forget_result(self) -> None:
        self.table.fill([])
        self.notes.hide()
        self._tell(_READY)

    def _show(self, result: ModelComparison) -> None:
        rows = change_rows(result) if result.changes else []
        self.table.fill([[translated(cell) for cell in row] for row in rows])
        self._tell(result.sentence)
        self.notes.setText("\n".join(translated(note) for note in comparison_notes(result)))
        self.notes.setVisible(bool(self.notes.text()))

    def _fail(self, sentence: str) -> None:
        self._tell(sentence)


def _compared(first: Path, second: Path, progress: ProgressCallback) -> ModelComparison:
    """Open the files that two scans were made of and compare them; for a thread."""
    return compare_models(_source(first), _source(second), progress)


def _source(path: Path) -> StoredModel:
    scan = read_model_file(path)
    if scan is None:
        raise ValueError(Sentence("{file} holds no scan of a model; scan it again.", file=path))
    return open_checkpoint(Path(scan.source))
