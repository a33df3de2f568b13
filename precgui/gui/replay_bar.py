"""The line above replayed steps: which step, what it takes, and the button that makes it again in a child process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from PySide6.QtWidgets import QWidget

from precgui.gui.kit.editors import ListEditor, whole_number
from precgui.gui.kit.parts import button, named
from precgui.gui.run_task import Refusals, RunTaskBar
from precgui.gui.session import Session
from precgui.places.tasks import TASKS
from precgui.runs.facts import seconds_text
from precgui.runs.layer_errors import compared_precisions
from precgui.runs.loop_lines import shadow_lines
from precgui.runs.replays import first_bad_step, last_step, repeating_s, snapshot_path
from precgui.runs.run import Run
from precgui.words import L_, _, error_text, translated

REPLAY, COMPARE = L_("Replay this step"), L_("Compare layers")
_SHADOW_STEPS = 12.0  # time of a step with its FP64 shadow and the lines left out, in steps of the run
_PASS_STEPS = 2.0  # time of a pass in another precision with the outputs of every layer, in steps of the run
_REFUSALS = Refusals(
    L_("A step is made again from a run file; this run has none."),
    L_("The run is still going on; make a step again when it has ended."),
    L_(
        "precgui cannot start this loop. With these lines in place of its two passes the loop keeps a step with FP64 "
        "beside it, and this tab shows it:"
    ),
)
_LAYERS_REFUSALS = replace(
    _REFUSALS,
    own_loop=L_(
        "Layers are compared by running the model in several precisions, which needs a model that precgui can "
        "start: write the loop as a task of your own (docs/own-task.md) and train it from Run. By line shows this loop."
    ),
)


class ReplayBar(RunTaskBar):
    """Offers every recorded step, at first the first with NaN or Inf, else the last; `step` holds the chosen one."""

    task = TASKS["replay"]
    title = L_("Replay of a step")
    refusals = _REFUSALS

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(session, parent)
        self.step = whole_number(1, 1, 1, _("Step to be made again"), self)
        self.bad_button = button(_("First bad"), self._choose_bad, _("Choose the first step with NaN or Inf"))
        self.last_button = button(_("Last"), self._choose_last, _("Choose the last recorded step"))
        self._bad: int | None = None
        self.text.setProperty("kind", "muted")
        for part in (named(_("Step to &replay"), self.step), self.step, self.last_button, self.bad_button):
            self.line.addWidget(part)
        self.line.addWidget(self.button)
        self.line.addStretch(1)
        self.lines.addWidget(self.text)
        self.step.valueChanged.connect(lambda step: self._say_idle())

    def show_run(self, run: Run | None) -> None:
        """Offer the steps of this run; while it stays the same the chosen step stays, too."""
        if run is not self._run:
            self._fault = ""
            self._run = run
            self._offer_steps(choose=True)
        else:
            self._offer_steps(choose=False)
        self._say_idle()

    def _offer_steps(self, *, choose: bool) -> None:
        last = last_step(self._run) if self._run is not None else 0
        self._bad = first_bad_step(self._run) if self._run is not None else None
        self.step.setRange(1, max(1, last))
        self.bad_button.setVisible(self._bad is not None)
        if choose:
            self.step.setValue(self._bad or last)

    def _choose_bad(self) -> None:
        self.step.setValue(self._bad or self.step.value())

    def _choose_last(self) -> None:
        self.step.setValue(self.step.maximum())

    def _say_idle(self) -> None:
        if not self._work.busy:
            self._fault = ""
            self.say()

    def why_not(self) -> str:
        reason = super().why_not()
        if not reason and self._run is not None and not last_step(self._run):
            return _("The run has no recorded step.")
        return reason

    def arguments(self, run: Run) -> dict[str, Any]:
        return {"path": str(run.path), "step": self.step.value()}

    def loop_lines(self, run: Run) -> str:
        return shadow_lines(run, self._bad or last_step(run))

    def start_label(self) -> str:
        return translated(REPLAY)

    def inspecting_steps(self) -> float:
        """The time in which the step itself is inspected, in steps of the run."""
        return _SHADOW_STEPS

    def idle_text(self) -> str:
        if self._run is None or self._run.path is None or self.why_not():
            return ""
        step = self.step.value()
        duration = seconds_text(repeating_s(self._run, step, self.inspecting_steps()))
        if snapshot_path(self._run.path, step).exists():
            text = _("Step {step} is made from its snapshot, in about {duration}.")
        else:
            text = _("The run is trained again up to step {step}, in about {duration}.")
        return text.format(step=step, duration=duration)


class LayersBar(ReplayBar):
    """The same for a comparison of the layers in up to five precisions."""

    task = TASKS["layers"]
    title = L_("Comparison of layers")
    refusals = _LAYERS_REFUSALS

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(session, parent)
        self.precisions = ListEditor(self)
        self.precisions.setAccessibleName(_("Precisions to be compared with FP64, separated by commas"))
        self.precisions.set(["bf16-amp", "fp16-amp"])
        place = self.line.indexOf(self.button)
        self.line.insertWidget(place, self.precisions, 1)
        self.line.insertWidget(place, named(_("&in"), self.precisions))
        self.precisions.edited.connect(self._say_idle)

    def why_not(self) -> str:
        return super().why_not() or self._wrong_precisions()

    def _wrong_precisions(self) -> str:
        try:
            compared_precisions(self.precisions.get())
        except ValueError as error:
            return _("Precisions: {error}.").format(error=error_text(error))
        return ""

    def arguments(self, run: Run) -> dict[str, Any]:
        return super().arguments(run) | {"precisions": compared_precisions(self.precisions.get())}

    def loop_lines(self, run: Run) -> str:
        return ""

    def start_label(self) -> str:
        return translated(COMPARE)

    def inspecting_steps(self) -> float:
        return _PASS_STEPS * (1 + len(self.precisions.get()))
