"""The line above the branches: which precision, how many, and the button that makes them in a child process."""

from __future__ import annotations

from typing import Any

from PySide6.QtWidgets import QWidget

from precgui.config import PRECISIONS
from precgui.config.precision_traits import traits
from precgui.gui.kit.editors import SuggestionEditor, whole_number
from precgui.gui.kit.parts import named
from precgui.gui.run_task import Refusals, RunTaskBar
from precgui.gui.session import Session
from precgui.runs.run import Run
from precgui.words import L_, _, translated

BRANCHES, STEPS = 16, 12
MAKE = L_("Branch this run")
_REFERENCE = "fp32"
_USUAL = "bf16-amp"  # suggested for a run in FP32


class TwinBar(RunTaskBar):
    """Emits `kept` when a new result lies beside the run."""

    task = "precgui.job:serve_twin"
    title = L_("Branches of a run")
    first_text = L_("Training in FP32 up to the first branch ...")
    refusals = Refusals(
        L_("Branches are kept beside a run file; this run has none."),
        L_("The run is still going on; branch it when it has ended."),
        L_(
            "Branches train the run again in FP32, which needs a loop that precgui can start: write this one as a task "
            "of your own (docs/own-task.md) and train it from Run."
        ),
    )

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(session, parent)
        names = [name for name in PRECISIONS if name != _REFERENCE and traits(name).weight_bits is None]
        self.precision = SuggestionEditor(names, self)
        self.branches = whole_number(BRANCHES, 10, 1000, _("Branches"), self)
        self.steps = whole_number(STEPS, 1, 1000, _("Steps of each branch"), self)
        self.precision.setAccessibleName(_("Precision of the branches"))
        self.text.setProperty("kind", "muted")
        for text, part in (
            (_("&Precision"), self.precision), (_("&Branches"), self.branches), (_("Steps of &each"), self.steps),
        ):  # fmt: skip
            self.line.addWidget(named(text, part))
            self.line.addWidget(part)
        self.line.addWidget(self.button)
        self.line.addWidget(self.text, 1)
        self.button.setText(translated(MAKE))

    def show_run(self, run: Run | None) -> None:
        """Offer branches of this run, in its own precision at first."""
        if run is not self._run:
            self._fault = ""
            if run is not None:
                own = run.config.precision
                self.precision.set(_USUAL if own == _REFERENCE or traits(own).weight_bits is not None else own)
        self._run = run
        if not self._work.busy:
            self.say()

    def arguments(self, run: Run) -> dict[str, Any]:
        return {
            "path": str(run.path), "precision": self.precision.get(), "branches": self.branches.value(),
            "steps": self.steps.value(),
        }  # fmt: skip

    def start_label(self) -> str:
        return translated(MAKE)
