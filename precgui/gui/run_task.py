"""Work on a run that a button starts in a child process, or at the place of the run: why a run cannot have it, and the
line with the button.

The code of a task of the user's own runs only after consent, as when such a run is started.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QPushButton, QWidget

from precgui.config import OWN_LOOP
from precgui.gui.answer import Answer, child
from precgui.gui.kit.code_block import CodeBlock
from precgui.gui.kit.consent import Consent
from precgui.gui.kit.parts import column, row
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.session import Session
from precgui.paths import is_example
from precgui.places.settings import NamedPlace, known_place
from precgui.runs.run import Run
from precgui.words import L_, _, translated

if TYPE_CHECKING:
    from precgui.places.placed_task import TaskPlace

STOP = L_("Stop")
EXAMPLE = L_("This run is an example, beside which nothing is kept; press Run again for one of your own.")


@dataclass(frozen=True)
class Refusals:
    """One marked sentence for each reason why precgui cannot train a run again from the window."""

    no_file: str
    running: str
    own_loop: str

    def reason(self, run: Run | None) -> str:
        """The sentence that applies to a run; empty when it can be trained again."""
        if run is None or run.path is None:
            return translated(self.no_file)
        if is_example(run.path):
            return translated(EXAMPLE)
        if run.status == "running":
            return translated(self.running)
        return translated(self.own_loop) if run.config.task == OWN_LOOP else ""


class RunTaskBar(QWidget):
    """A sentence and a button that starts a task "module:function" on the shown run, or stops it.

    `kept` is emitted when the task has written a side file beside the run. Subclasses give the arguments of the task
    and the texts of the button. For a recorded loop, which cannot be trained again, the controls make place for
    `own_loop`: the lines to paste into that loop, or why there are none.
    """

    kept = Signal()
    task = ""  # "module:function" of precgui, which emits events of the kinds progress, fault and kept
    title = ""  # of the work, in the status bar
    first_text = L_("Starting the engine ...")
    refusals: Refusals

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.consent = Consent(self, session.agreed_code)
        self._run: Run | None = None
        self._fault = ""  # of the last task, as a sentence
        self._work = Answer(
            self, progress=self._take, failed=self._refuse, ended=self._end, title=translated(self.title)
        )
        self.text = PlainLabel(self)
        self.text.setWordWrap(True)
        self.button = QPushButton(self)
        self.button.clicked.connect(self.toggle)
        self.controls = QWidget(self)
        self.own_loop = CodeBlock(self)
        self.own_loop.hide()
        self.line = row(on=self.controls)
        self.lines = column(self.controls, self.own_loop, margins=(0, 8, 0, 0), on=self)

    def arguments(self, run: Run) -> dict[str, Any]:
        """The arguments of the task for a run."""
        raise NotImplementedError

    def start_label(self) -> str:
        """The text of the button that starts the task."""
        raise NotImplementedError

    def idle_text(self) -> str:
        """The sentence while no task is going on and none has failed."""
        return ""

    def loop_lines(self, run: Run) -> str:
        """The lines of Python that do the work in a recorded loop; empty where none can."""
        return ""

    @property
    def is_own_loop(self) -> bool:
        """Whether the run is a recorded loop that has ended."""
        run = self._run
        return run is not None and run.path is not None and run.status != "running" and run.config.task == OWN_LOOP

    def why_not(self) -> str:
        """The sentence for a run that cannot be trained again from the window; empty when it can."""
        return self.refusals.reason(self._run)

    def toggle(self) -> None:
        """Start the task, or stop it."""
        if self._work.busy:
            self._work.cancel()
        elif self._run is not None and not self.why_not():
            place = place_of(self._run)
            self.consent.before([self._run.config.task], self._start, place.name if place is not None else "")

    def _start(self) -> None:
        if self._run is not None and not self._work.busy:
            self._fault = ""
            self._work.ask(child(self.task, self.arguments(self._run), at_run(self._run)))
            there = place_of(self._run)
            first = _("Starting the engine at {place} ...").format(place=there.name) if there is not None else ""
            self.say(first or translated(self.first_text))

    def say(self, text: str = "") -> None:
        """Show a sentence, or that of the present state, and what the button does now."""
        why_not, busy = self.why_not(), self._work.busy
        own = self.is_own_loop and not busy
        self.controls.setHidden(own)
        self.own_loop.setHidden(not own)
        if own and self._run is not None:
            self.own_loop.show_lines(why_not, self.loop_lines(self._run))
            self.text.setText("")
            return
        self.button.setText(translated(STOP) if busy else self.start_label())
        self.button.setEnabled(busy or not why_not)
        self.text.setText(text or self._fault or self.idle_text() or why_not)

    def _take(self, event: dict[str, Any]) -> None:
        if event["kind"] == "progress":
            text = translated(event["text"])
            self.say(f"{text[:1].upper()}{text[1:]} ...")
        elif event["kind"] == "kept":
            self.kept.emit()

    def _refuse(self, why: str) -> None:
        self._fault = why

    def _end(self, fault: str) -> None:
        self._fault = fault or self._fault
        self.say()


def place_of(run: Run) -> NamedPlace | None:
    """The place at which a run was trained; None for this machine, and where its place is not known any more."""
    return known_place(str(run.environment.get("place") or ""))


def at_run(run: Run, *homes: Path) -> TaskPlace | None:
    """The place of a run, for a task on its file, which it has there; None for this machine.

    `homes` are the paths here of what the task makes.
    """
    place = place_of(run)
    if place is None or run.path is None:
        return None
    from precgui.places.placed_task import TaskPlace

    return TaskPlace(place, run.run_id, run.path, homes)
