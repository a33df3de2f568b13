"""The line above both tabs: whether the run has a profile, and the button that makes one in a child process."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QWidget

from precgui.config import OWN_LOOP, is_own_task
from precgui.gui.session import Session
from precgui.gui.widgets.plain_text import PlainLabel
from precgui.gui.workers.engine_task import EngineTask
from precgui.runs.payoff.profile_file import profile_of
from precgui.runs.run import Run

NONE_YET = "No profile of this run is kept. Profiling takes about half a minute on the processor or GPU of the run."


class ProfileBar(QWidget):
    """Emits `changed` when another profile, or none, is to be shown; `document` is it."""

    changed = Signal()

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self._run: Run | None = None
        self._task: EngineTask | None = None
        self.document: dict[str, Any] | None = None
        self.text = PlainLabel(self)
        self.text.setWordWrap(True)
        self.button = QPushButton("Profile this run", self)
        self.button.clicked.connect(self.toggle)
        line = QHBoxLayout(self)
        line.setContentsMargins(0, 8, 0, 0)
        line.addWidget(self.text, 1)
        line.addWidget(self.button)

    def show_run(self, key: str | None) -> None:
        """Read the profile beside the run of that key."""
        opened = self._session.runs.get(key or "")
        self._run = opened.run if opened is not None else None
        self.refresh()

    def refresh(self) -> None:
        """Read the profile again, which the other tab may have made."""
        self.document = profile_of(self._run.path) if self._run is not None else None
        self._say("")
        self.changed.emit()

    def why_not(self) -> str:
        """The sentence for a run that cannot be profiled from the window; empty when it can."""
        run = self._run
        if run is None or run.path is None:
            return "A profile is kept beside a run file; this run has none."
        if run.status == "running":
            return "The run is still going on; profile it when it has ended."
        if run.config.task == OWN_LOOP or is_own_task(run.config.task):
            return "The run trained code of its own, which no run file starts; use precgui profile CONFIG.toml."
        return ""

    def toggle(self) -> None:
        """Start to profile, or stop."""
        if self._task is not None:
            self._task.stop()
            return
        if self._run is None or self._run.path is None or self.why_not():
            return
        arguments = {"config": self._run.config.model_dump(), "path": str(self._run.path)}
        self._task = EngineTask("precgui.job:serve_profile", arguments)
        self._task.said.connect(self._take)
        self._task.ended.connect(self._end)
        self._task.start()
        self._say("Starting the engine.")

    def _take(self, event: dict[str, Any]) -> None:
        if event["kind"] == "progress":
            text = str(event["text"])
            self._say(f"{text[:1].upper()}{text[1:]} ...")
        elif event["kind"] == "fault":
            self._say(str(event["message"]))
        elif event["kind"] == "kept":
            self.refresh()

    def _end(self, fault: str) -> None:
        self._task = None
        if fault:
            self._say(fault)
        else:
            self.refresh()

    def _say(self, text: str) -> None:
        why_not, busy = self.why_not(), self._task is not None
        self.button.setText("Stop" if busy else "Profile again" if self.document else "Profile this run")
        self.button.setEnabled(busy or not why_not)
        self.text.setText(text or self._standing() or why_not)

    def _standing(self) -> str:
        if self.document is None:
            return "" if self.why_not() else NONE_YET
        device = self.document["device"]
        return f"Profiled {self.document['created'][:16].replace('T', ' ')} on {device['name']}."
