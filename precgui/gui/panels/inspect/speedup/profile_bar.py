"""The line above both tabs: whether the run has a profile, and the button that makes one in a child process."""

from __future__ import annotations

from typing import Any

import numpy as np
from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from precgui.gui.kit.editors import whole_number
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.run_task import Refusals, RunTaskBar
from precgui.gui.session import Session
from precgui.places.tasks import TASKS
from precgui.runs.facts import seconds_text
from precgui.runs.run import Run
from precgui.runs.speedup.profile_file import MOST_PAIRS_S, PAIRS_S, profile_of
from precgui.runs.speedup.trials import TRIAL_S
from precgui.words import L_, _, translated

NONE_YET = L_(
    "No profile of this run is kept. Profiling takes up to about {duration} on the processor or GPU of the run, and "
    "longer where it tries what compiling the model gains."
)
_FIXED_S, _STEPS = 5.0, 70  # of a profile: seconds for the device's own rates, steps of the run
_TRIALS = 2  # changes that are tried, as a rule at most
LONGEST = L_("Longest time for pairs of plain and profiled steps, in seconds")
LONGER = L_(
    "Plain and profiled steps are measured in pairs for so long, or until the time that the profiler adds is known to "
    "3 % of the step. Choose a longer time on a busy machine."
)


class ProfileBar(RunTaskBar):
    """Emits `changed` when another profile, or none, is to be shown; `document` is it."""

    changed = Signal()
    task = TASKS["profile"]
    title = L_("Profile")
    refusals = Refusals(
        L_("A profile is kept beside a run file; this run has none."),
        L_("The run is still going on; profile it when it has ended."),
        L_(
            "Time and memory are measured in steps of the run beside steps in FP32, which needs a loop that precgui "
            "can start: write this one as a task of your own (docs/own-task.md) and train it from Run."
        ),
    )

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(session, parent)
        self._session = session
        self.document: dict[str, Any] | None = None
        self.seconds = whole_number(int(PAIRS_S), 5, int(MOST_PAIRS_S), translated(LONGEST), self)
        self.seconds.setObjectName("pairs seconds")
        self.seconds.setSingleStep(5)
        before, after = _("for up to {seconds} s").split("{seconds}")
        self.seconds.setPrefix(before)
        self.seconds.setSuffix(after)
        self.seconds.setToolTip(plain_tip(translated(LONGER)))
        self.seconds.valueChanged.connect(lambda seconds: self.say())
        self.line.addWidget(self.text, 1)
        self.line.addWidget(self.seconds)
        self.line.addWidget(self.button)
        self.kept.connect(self.refresh)

    def show_run(self, key: str | None) -> None:
        """Read the profile beside the run of that key."""
        opened = self._session.runs.get(key or "")
        run = opened.run if opened is not None else None
        if run is not self._run:
            self._fault = ""
        self._run = run
        self.refresh()

    def refresh(self) -> None:
        """Read the profile again, which the other tab may have made."""
        self.document = profile_of(self._run.path) if self._run is not None else None
        self.say()
        self.changed.emit()

    def arguments(self, run: Run) -> dict[str, Any]:
        return {"config": run.config.model_dump(), "path": str(run.path), "seconds": float(self.seconds.value())}

    def start_label(self) -> str:
        return _("Profile again") if self.document else _("Profile this run")

    def idle_text(self) -> str:
        if self.document is None:
            if self.why_not() or self._run is None:
                return ""
            return translated(NONE_YET).format(duration=profile_duration(self._run, self.seconds.value()))
        device = self.document["device"]
        text = _("Profiled {time} on {device}.")
        return text.format(time=self.document["created"][:16].replace("T", " "), device=device["name"])

    def _end(self, fault: str) -> None:
        super()._end(fault)
        self.refresh()


def profile_duration(run: Run, pairs_s: float) -> str:
    """The time that a profile of the run takes at most, estimated from its steps, as text."""
    step_s = run.series("step_s")[1]
    trials_s = _TRIALS * min(pairs_s, TRIAL_S)
    return seconds_text(_FIXED_S + pairs_s + trials_s + (_STEPS * float(np.median(step_s)) if len(step_s) else 0.0))
