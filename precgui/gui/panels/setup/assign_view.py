"""Formats of layers: found in a child process within a budget, verified by a study, then put into the form."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import (
    QAbstractItemView,
    QDoubleSpinBox,
    QHBoxLayout,
    QHeaderView,
    QLineEdit,
    QPushButton,
    QSpinBox,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

from precgui.config import ConfigError, RunConfig, build
from precgui.gui.engine_answer import EngineAnswer
from precgui.gui.session import Session
from precgui.gui.widgets.editors import ChoiceEditor, ignore_wheel
from precgui.gui.widgets.empty_state import named

ABOUT = (
    "Trains this run in FP32 and finds a format for each linear and convolutional layer within the budget. A study "
    "then trains these formats beside FP32; only formats that keep the metric can be put into the form."
)
_TASK = "precgui.engine.assignment.serving:serve"
_BASELINE, _VERDICT = "fp32", "accuracy_lost"
_FIND, _STOP = "Find formats", "Stop"
_BUDGETS = {"bits": (6.0, 0.5, 32.0, 1), "loss": (0.05, 0.0, 100.0, 3)}  # value, least, most, decimals


class AssignView(EngineAnswer):
    """`config_requested` carries the verified config."""

    own_code = "The run trains code of its own; use precgui assign CONFIG.toml in a terminal."

    config_requested = Signal(object)

    def __init__(self, config: RunConfig, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(config, parent)
        self._session = session
        self._planned: RunConfig | None = None
        self._folder: Path | None = None  # of the study that verifies
        self._is_verified = False
        self._measured = ""  # the measured plans as sentences
        self.formats = QLineEdit("e4m3fn, e2m1, bf16", self)
        self.kind = ChoiceEditor(list(_BUDGETS), self)
        self.budget = QDoubleSpinBox(self)
        self.seeds = QSpinBox(self)
        self.find_button, self.verify_button, self.use_button = (
            QPushButton(text, self) for text in (_FIND, "Verify by a study", "Use in the form")
        )
        self.answer.setText(ABOUT)
        self.table = QTreeWidget(self)
        self._lay_out()
        self.kind.currentIndexChanged.connect(self._choose_budget)
        self.find_button.clicked.connect(self.toggle)
        self.verify_button.clicked.connect(self.verify)
        self.use_button.clicked.connect(self._use)
        session.study.changed.connect(self._follow_study)
        session.study.groups_read.connect(self._judge)
        self._choose_budget()
        self._mark()

    def _lay_out(self) -> None:
        self.formats.setAccessibleName("Formats, commas between them")
        self.kind.setAccessibleName("Kind of the budget")
        self.budget.setAccessibleName("Budget")
        self.seeds.setAccessibleName("Seeds of the study")
        self.seeds.setRange(2, 100)
        self.seeds.setValue(5)
        for spin in (self.budget, self.seeds, self.kind):
            ignore_wheel(spin)
        self.table.setAccessibleName("Formats of the layers")
        self.table.setProperty("kind", "facts")
        self.table.setRootIsDecorated(False)
        self.table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.table.header().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        line, buttons = QHBoxLayout(), QHBoxLayout()
        for text, part in (
            ("&Formats", self.formats),
            ("&Budget", self.kind),
            ("", self.budget),
            ("&Seeds", self.seeds),
        ):
            if text:
                line.addWidget(named(text, part))
            line.addWidget(part, 1 if part is self.formats else 0)
        for button in (self.find_button, self.verify_button, self.use_button):
            buttons.addWidget(button)
        buttons.addStretch(1)
        column = QVBoxLayout(self)
        column.addLayout(line)
        column.addLayout(buttons)
        column.addWidget(self.answer)
        column.addWidget(self.table, 1)

    def _choose_budget(self) -> None:
        value, least, most, decimals = _BUDGETS[self.kind.get()]
        self.budget.setDecimals(decimals)
        self.budget.setRange(least, most)
        self.budget.setValue(value)
        self.budget.setToolTip(
            "Bits of a weight on average" if self.kind.get() == "bits" else "How much the held-out loss may rise"
        )

    def toggle(self) -> None:
        """Begin to search, or stop."""
        if self._slot.is_busy:
            self.stop()
            return
        if not self.is_allowed:
            return
        names = [name.strip() for name in self.formats.text().split(",") if name.strip()]
        self._planned, self._folder, self._is_verified = None, None, False
        self.table.clear()
        arguments = {"formats": names, "kind": self.kind.get(), "budget": self.budget.value()}
        self.start_task(_TASK, "Training in FP32, then scoring the layers ...", arguments)
        self._mark()

    def receive(self, event: dict[str, Any]) -> None:
        """Show the formats of the layers."""
        try:
            self._planned = build(event["config"])
        except ConfigError as error:
            self.answer.setText(str(error))
            return
        self._fill(event["assignment"])
        self._mark()

    def _fill(self, assignment: dict[str, Any]) -> None:
        uniform = assignment["uniform"]
        self.table.setHeaderLabels(["Layer", "Weights", "Format", *(f"Score in {name}" for name in uniform)])
        for layer, chosen in assignment["layers"].items():
            scores = (f"{assignment['scores'][layer][name]:.2g}" for name in uniform)
            count = f"{assignment['weights'][layer]:,}".replace(",", " ")
            self.table.addTopLevelItem(QTreeWidgetItem([layer, count, chosen, *scores]))
        lines = [_sentence("These formats", assignment, assignment["loss_rise"])]
        lines += [_sentence(f"{name} in all layers", plan, plan["rise"]) for name, plan in uniform.items()]
        lines.append("Scores order the layers; they do not say how much the loss rises.")
        self._measured = "\n".join(lines)
        self._say("Nothing is verified yet.")

    def _say(self, sentence: str) -> None:
        """A sentence above those of the measured plans."""
        self.answer.setText(f"{sentence}\n{self._measured}")

    def verify(self) -> None:
        """Begin a study of the formats beside FP32."""
        from precgui.sweeps.errors import SweepError
        from precgui.sweeps.spec import make_spec

        if self._planned is None:
            return
        if self._session.is_busy:
            self._say("A run or a study is going on; verify when it has ended.")
            return
        try:
            spec = make_spec(
                self._planned, [_BASELINE, self._planned.precision], self.seeds.value(), twins=0,
                order_seed=secrets.randbelow(2**31), title="Formats of layers",
            )  # fmt: skip
        except SweepError as error:
            self._say(f"{error}.")
            return
        folder = self._session.folder / time.strftime("assign-%Y%m%d-%H%M%S")
        if self._session.study.start(spec, folder):
            self._folder, self._is_verified = folder, False
            self._say(f"The study runs in {folder}; it is shown in Live, and goes on when this is closed.")
        self._mark()

    def _follow_study(self) -> None:
        study = self._session.study
        if self._folder is not None and study.folder == self._folder and not study.is_running:
            study.read_groups()
        self._mark()

    def _judge(self) -> None:
        """Say whether the formats keep the metric, once the study has ended."""
        study = self._session.study
        if self._folder is None or study.folder != self._folder or study.is_running or self._planned is None:
            return
        groups = study.groups.study.groups if study.groups is not None else ()
        own = [group for group in groups if group.precision == self._planned.precision]
        verdict = own[0].verdicts.get(_VERDICT) if own else None
        if verdict is None:
            self._say(f"The study was not judged: {study.why_no_groups or 'no run of it has ended'}.")
        elif verdict.verdict == "met":
            self._is_verified = True
            self._say(f"Verified: with {verdict.n} seeds the metric stays within its target beside FP32.")
        else:
            why = f" ({verdict.why})" if verdict.why else ""
            self._say(
                f"Not verified: the metric beside FP32 with {verdict.n} seeds is {verdict.verdict}{why}. More seeds in "
                "Live or a larger budget may decide; the form stays as it is."
            )
        self._mark()

    def _use(self) -> None:
        self.config_requested.emit(self._planned)

    def task_ended(self, fault: str) -> None:
        super().task_ended(fault)
        self._mark()

    def _mark(self) -> None:
        """Which buttons can be pressed."""
        self.find_button.setText(_STOP if self._slot.is_busy else _FIND)
        is_verifying = self._folder is not None and self._session.study.is_running
        self.verify_button.setEnabled(self._planned is not None and not self._slot.is_busy and not is_verifying)
        self.use_button.setEnabled(self._is_verified)


def _sentence(name: str, plan: dict[str, Any], rise: float) -> str:
    text = f"{name}: {plan['bits']:.3g} bits a weight, the held-out loss rises by {rise:+.2g}."
    return text if plan["above_noise"] else f"{text} This is within the noise of the held-out data."
