"""Formats of layers: found here or at a place within a budget, verified by a study, then put into the form."""

from __future__ import annotations

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

from precgui.config import ConfigError, RunConfig, build, is_own_task
from precgui.gui.answer import Answer, child
from precgui.gui.assigned_formats import AssignedFormats
from precgui.gui.kit.choice import ignore_wheel
from precgui.gui.kit.copied_rows import let_copy
from precgui.gui.kit.editors import ChoiceEditor
from precgui.gui.kit.parts import label, named
from precgui.places.placed_task import TaskPlace
from precgui.places.tasks import TASKS
from precgui.words import L_, _, error_text, translated

ABOUT = L_(
    "Trains this run in FP32 and finds a format for each linear and convolutional layer within the budget. A study "
    "then trains these formats beside FP32; only formats that keep the metric can be put into the form."
)
_OTHER_SETTINGS = L_("They were found for other settings than those of the form now; using them puts those back, too.")
_OWN_CODE = L_("The run trains code of its own; use precgui assign CONFIG.toml in a terminal.")
_FIND, _STOP = L_("Find formats"), L_("Stop")
_VERIFY, _VERIFY_ANYWAY = L_("Verify by a study"), L_("Verify anyway")
_BUDGETS = {"bits": (6.0, 0.5, 32.0, 1), "loss": (0.05, 0.0, 100.0, 3)}  # value, least, most, decimals


class AssignView(QWidget):
    """`config_requested` carries the verified config. What was found stays in `kept` when the view is gone."""

    config_requested = Signal(object)

    def __init__(
        self, config: RunConfig, kept: AssignedFormats, there: TaskPlace | None = None, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self._config, self._there = config, there
        self.answer = label(translated(ABOUT))
        self._search = Answer(
            self, progress=self.take, failed=self.answer.setText, ended=self._end, title=_("Search of formats")
        )
        self._kept = kept
        self.formats = QLineEdit("e4m3fn, e2m1, bf16", self)
        self.kind = ChoiceEditor(list(_BUDGETS), self)
        self.budget = QDoubleSpinBox(self)
        self.seeds = QSpinBox(self)
        self.find_button, self.verify_button, self.use_button = (
            QPushButton(text, self) for text in (translated(_FIND), translated(_VERIFY), _("Use in the form"))
        )
        self.table = QTreeWidget(self)
        let_copy(self.table)
        self._lay_out()
        self.kind.currentIndexChanged.connect(self._choose_budget)
        self.find_button.clicked.connect(self.toggle)
        self.verify_button.clicked.connect(self.verify)
        self.use_button.clicked.connect(self._use)
        kept.changed.connect(self._show_kept)
        self._choose_budget()
        self._restore()
        self._fill()
        self._show_kept()
        kept.is_displayed = True

    def stop(self) -> None:
        """End a search; a study goes on."""
        self._search.cancel()
        self._kept.is_displayed = False

    def _lay_out(self) -> None:
        self.formats.setAccessibleName(_("Formats, commas between them"))
        self.kind.setAccessibleName(_("Kind of the budget"))
        self.budget.setAccessibleName(_("Budget"))
        self.seeds.setAccessibleName(_("Seeds of the study"))
        self.seeds.setRange(2, 100)
        self.seeds.setValue(5)
        for spin in (self.budget, self.seeds, self.kind):
            ignore_wheel(spin)
        self.table.setAccessibleName(_("Formats of the layers"))
        self.table.setProperty("kind", "facts")
        self.table.setRootIsDecorated(False)
        self.table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.table.header().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        line, buttons = QHBoxLayout(), QHBoxLayout()
        for text, part in (
            (_("&Formats"), self.formats),
            (_("&Budget"), self.kind),
            ("", self.budget),
            (_("&Seeds"), self.seeds),
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

    def _restore(self) -> None:
        """Fill in what was asked for the last time."""
        if request := self._kept.request:
            self.formats.setText(", ".join(request["formats"]))
            self.kind.set(request["kind"])
            self.budget.setValue(request["budget"])

    def _choose_budget(self) -> None:
        value, least, most, decimals = _BUDGETS[self.kind.get()]
        self.budget.setDecimals(decimals)
        self.budget.setRange(least, most)
        self.budget.setValue(value)
        self.budget.setToolTip(
            _("Bits of a weight on average") if self.kind.get() == "bits" else _("How much the held-out loss may rise")
        )

    def toggle(self) -> None:
        """Begin to search, or stop."""
        if self._search.busy:
            self.stop()
            return
        if is_own_task(self._config.task):
            self.answer.setText(translated(_OWN_CODE))
            return
        names = [name.strip() for name in self.formats.text().split(",") if name.strip()]
        arguments = {"formats": names, "kind": self.kind.get(), "budget": self.budget.value()}
        self._kept.begin(arguments)
        self._fill()
        self.answer.setText(_("Training in FP32, then scoring the layers ..."))
        self._search.ask(child(TASKS["assign"], {"config": self._config.model_dump(), **arguments}, self._there))
        self._mark()

    def take(self, event: dict[str, Any]) -> None:
        """Show the formats of the layers."""
        try:
            planned = build(event["config"])
        except ConfigError as error:
            self.answer.setText(error_text(error))
            return
        self._kept.take(self._config, planned, event["assignment"])
        self._fill()

    def _fill(self) -> None:
        """The table of what was found, with scores where there are some."""
        self.table.clear()
        planned, assignment = self._kept.planned, self._kept.assignment or {}
        uniform = assignment.get("uniform", {})
        self.table.setHeaderLabels(
            [_("Layer"), _("Weights"), _("Format"), *(_("Score in {name}").format(name=name) for name in uniform)]
        )
        for layer, chosen in (planned.precision_options.layers if planned is not None else {}).items():
            scores = (f"{assignment['scores'][layer][name]:.2g}" for name in uniform)
            count = f"{assignment['weights'][layer]:,}".replace(",", " ") if assignment else ""
            self.table.addTopLevelItem(QTreeWidgetItem([layer, count, chosen, *scores]))

    def _show_kept(self) -> None:
        """The sentence of what was found, above those of the measured plans."""
        kept = self._kept
        if self.table.topLevelItemCount() == 0 and kept.planned is not None:
            self._fill()
        if kept.sentence:
            self.answer.setText("\n".join([translated(kept.sentence), *self._measured()]))
        self._mark()

    def _measured(self) -> list[str]:
        """Sentences on the measured plans, and on settings that are others now."""
        kept, assignment = self._kept, self._kept.assignment
        own = kept.base is None or self._config in (kept.base, kept.planned)
        lines = [] if own else [translated(_OTHER_SETTINGS)]
        if assignment is None:
            return lines
        lines += [translated(sentence)] if (sentence := assignment.get("over_budget")) else []
        lines.append(_sentence(_("These formats"), assignment, assignment["loss_rise"]))
        lines += [
            _sentence(_("{name} in all layers").format(name=name), plan, plan["rise"])
            for name, plan in assignment["uniform"].items()
        ]
        return [*lines, _("Scores order the layers; they do not say how much the loss rises.")]

    def verify(self) -> None:
        """Begin a study of the formats beside FP32, where they were searched."""
        self._kept.verify(self.seeds.value(), [self._there.place.name] if self._there is not None else [])

    def _use(self) -> None:
        self.config_requested.emit(self._kept.planned)

    def _end(self, fault: str) -> None:
        if fault:
            self.answer.setText(fault)
        self._mark()

    def _mark(self) -> None:
        """Which buttons can be pressed."""
        kept = self._kept
        self.find_button.setText(translated(_STOP if self._search.busy else _FIND))
        is_over = bool(kept.assignment and kept.assignment.get("over_budget"))
        self.verify_button.setText(translated(_VERIFY_ANYWAY if is_over else _VERIFY))
        self.verify_button.setEnabled(kept.planned is not None and not self._search.busy and not kept.is_verifying)
        self.use_button.setEnabled(kept.is_verified)


def _sentence(name: str, plan: dict[str, Any], rise: float) -> str:
    text = _("{name}: {bits:.3g} bits a weight, the held-out loss rises by {rise:+.2g}.").format(
        name=name, bits=plan["bits"], rise=rise
    )
    return text if plan["above_noise"] else _("{text} This is within the noise of the held-out data.").format(text=text)
