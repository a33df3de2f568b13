"""The line above the branches: which precision, how many, and the button that makes them in a child process."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QSpinBox, QWidget

from precgui.config import OWN_LOOP, PRECISIONS, is_own_task
from precgui.config.precision_traits import traits
from precgui.gui.session import Session
from precgui.gui.widgets.editors import SuggestionEditor, ignore_wheel
from precgui.gui.widgets.empty_state import named
from precgui.gui.widgets.plain_text import PlainLabel
from precgui.gui.workers.engine_task import EngineTask
from precgui.runs.run import Run

BRANCHES, STEPS = 16, 12
MAKE, STOP = "Branch this run", "Stop"
_REFERENCE = "fp32"
_USUAL = "bf16-amp"  # suggested for a run in FP32


class TwinBar(QWidget):
    """Emits `kept` when a new result lies beside the run."""

    kept = Signal()

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self._run: Run | None = None
        self._task: EngineTask | None = None
        self._fault = ""  # of the last branches, as a sentence
        names = [name for name in PRECISIONS if name != _REFERENCE and traits(name).weight_bits is None]
        self.precision = SuggestionEditor(names, self)
        self.branches = _number(BRANCHES, 10, 1000, "Branches", self)
        self.steps = _number(STEPS, 1, 1000, "Steps of each branch", self)
        self.precision.setAccessibleName("Precision of the branches")
        self.button = QPushButton(MAKE, self)
        self.button.clicked.connect(self.toggle)
        self.text = PlainLabel(self)
        self.text.setWordWrap(True)
        self.text.setProperty("kind", "muted")
        line = QHBoxLayout(self)
        line.setContentsMargins(0, 8, 0, 0)
        for text, part in (
            ("&Precision", self.precision), ("&Branches", self.branches), ("Steps of &each", self.steps),
        ):  # fmt: skip
            line.addWidget(named(text, part))
            line.addWidget(part)
        line.addWidget(self.button)
        line.addWidget(self.text, 1)

    def show_run(self, run: Run | None) -> None:
        """Offer branches of this run, in its own precision at first."""
        if run is not self._run and run is not None:
            own = run.config.precision
            self.precision.set(_USUAL if own == _REFERENCE or traits(own).weight_bits is not None else own)
        if run is not self._run and self._task is None:
            self._fault = ""
        self._run = run
        if self._task is None:
            self._say(self._fault)

    def why_not(self) -> str:
        """The sentence for a run that cannot be branched from the window; empty when it can."""
        run = self._run
        if run is None or run.path is None:
            return "Branches are kept beside a run file; this run has none."
        if run.status == "running":
            return "The run is still going on; branch it when it has ended."
        if run.config.task == OWN_LOOP or is_own_task(run.config.task):
            return "The run trained code of its own; use precgui twin CONFIG.toml in a terminal."
        return ""

    def toggle(self) -> None:
        """Begin to branch, or stop."""
        if self._task is not None:
            self._task.stop()
            return
        if self._run is None or self._run.path is None or self.why_not():
            return
        arguments = {
            "path": str(self._run.path), "precision": self.precision.get(), "branches": self.branches.value(),
            "steps": self.steps.value(),
        }  # fmt: skip
        self._fault = ""
        self._task = EngineTask("precgui.job:serve_twin", arguments)
        self._task.said.connect(self._take)
        self._task.ended.connect(self._end)
        self._task.start()
        self._say("Training in FP32 up to the first branch ...")

    def _take(self, event: dict[str, Any]) -> None:
        if event["kind"] == "progress":
            self._say(f"{event['text']} ...")
        elif event["kind"] == "fault":
            self._fault = str(event["message"])
        elif event["kind"] == "kept":
            self.kept.emit()

    def _end(self, fault: str) -> None:
        self._task = None
        self._say(fault or self._fault)

    def _say(self, text: str) -> None:
        why_not, busy = self.why_not(), self._task is not None
        self.button.setText(STOP if busy else MAKE)
        self.button.setEnabled(busy or not why_not)
        self.text.setText(text or why_not)


def _number(value: int, least: int, most: int, name: str, parent: QWidget) -> QSpinBox:
    editor = QSpinBox(parent)
    editor.setRange(least, most)
    editor.setValue(value)
    editor.setAccessibleName(name)
    ignore_wheel(editor)
    return editor
