"""The plan before the run: its memory, that of a transformer by formula, and formats for its layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QDialog,
    QFormLayout,
    QHBoxLayout,
    QPushButton,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from precgui.config import ConfigError, RunConfig, change, is_own_task
from precgui.gui.answer import Answer, child
from precgui.gui.assigned_formats import AssignedFormats
from precgui.gui.kit.bars import BarChart, BarRow, Segment
from precgui.gui.kit.choice import ignore_wheel
from precgui.gui.kit.pages import PageTabs
from precgui.gui.kit.parts import label
from precgui.gui.kit.plain_text import PlainLabel
from precgui.gui.panels.setup.assign_view import AssignView
from precgui.gui.panels.setup.batch_search import BatchSearch
from precgui.gui.ranks_plan import RanksPlan
from precgui.gui.theme import themes
from precgui.places.placed_task import TaskPlace
from precgui.places.settings import NamedPlace
from precgui.places.tasks import TASKS
from precgui.planner.ledger import PARTS, mib
from precgui.planner.network import NETWORKS, Transformer
from precgui.planner.plan import PlanRequest, first_change, largest_batch, plan
from precgui.planner.storage import BASE_BITS, OPTIMIZERS, STORAGE
from precgui.words import L_, _, error_text, translated

_CHANGE = L_("Change first: {change} Then {needed}, which does not fit yet.")
_CHANGE_FITS = L_("Change first: {change} Then {needed}, which fits.")
_NETWORK_FITS = L_("{billions:.3g} billion parameters. It fits into {size}.")
_NETWORK_DOES_NOT_FIT = L_("{billions:.3g} billion parameters. It does not fit into {size}.")
_FITS = L_("It fits into {size} ({source}); {method}.")
_DOES_NOT_FIT = L_("It does not fit into {size} ({source}); {method}.")
_SIZES = {  # title, least, most, of a transformer
    "layers": (L_("Layers"), 1, 1000), "width": (L_("Width"), 8, 65536), "heads": (L_("Heads"), 1, 512),
    "sequence": (L_("Sequence"), 1, 1 << 20), "vocabulary": (L_("Vocabulary"), 1, 1 << 20),
}  # fmt: skip
_COUNTS = {  # title, least, most, of a request
    "batch": (L_("Batch"), 1, 1 << 16), "accumulation": (L_("Accumulation"), 1, 4096),
    "zero_stage": (L_("ZeRO stage"), 0, 3),
    "ranks": (L_("Ranks"), 1, 65536), "lora_rank": (L_("LoRA rank (0: all weights)"), 0, 4096),
}  # fmt: skip
_CHOICES = {
    "precision": (L_("Precision"), list(STORAGE)), "optimizer": (L_("Optimizer"), list(OPTIMIZERS)),
    "offload": (L_("Off-load to the host"), ["none", "optimizer", "parameters"]),
    "base_format": (L_("Frozen base"), list(BASE_BITS)),
}  # fmt: skip
_DEVICE_GIB = 24


def part_rows(parts: dict[str, int]) -> list[BarRow]:
    """A row for each part that there is, and the peak."""
    total = sum(parts.values())
    rows = [
        BarRow(translated(title), (Segment(0, parts[part], number),), mib(parts[part]))
        for number, (part, title) in enumerate(PARTS.items())
        if parts.get(part)
    ]
    return [*rows, BarRow(_("Peak"), (Segment(0, total, "accent"),), mib(total), strong=True)]


class FormulaPlan(QWidget):
    """A transformer by formula; each change is answered at once."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.network = QComboBox(self)
        self.network.addItems([*NETWORKS])
        self.network.setCurrentText("llama-7b")
        self.device = _spin(1, 4096, _DEVICE_GIB)
        self.sizes = {name: _spin(least, most, 1) for name, (_title, least, most) in _SIZES.items()}
        self.counts = {name: _spin(least, most, least) for name, (_title, least, most) in _COUNTS.items()}
        self.choices = {name: QComboBox(self) for name in _CHOICES}
        self.checkpointing = QCheckBox(_("Compute activations again"), self)
        self.answer = PlainLabel(self)
        self.answer.setWordWrap(True)
        self.chart = BarChart(parent=self)
        self.chart.setAccessibleName(_("Memory by part"))
        self._lay_out()
        self.network.currentTextChanged.connect(self.use_network)
        self.use_network(self.network.currentText())

    def _lay_out(self) -> None:
        form = QFormLayout()
        form.addRow(_("Network"), self.network)
        form.addRow(_("Device, GiB"), self.device)
        for name, spin in (*self.sizes.items(), *self.counts.items()):
            form.addRow(translated((_SIZES | _COUNTS)[name][0]), spin)
            spin.valueChanged.connect(self.refresh)
        for name, box in self.choices.items():
            box.addItems(_CHOICES[name][1])
            ignore_wheel(box)
            form.addRow(translated(_CHOICES[name][0]), box)
            box.currentTextChanged.connect(self.refresh)
        self.choices["precision"].setCurrentText("bf16-amp")
        self.choices["optimizer"].setCurrentText("adamw")
        self.choices["base_format"].setCurrentText("bf16")
        form.addRow(_("Checkpoints"), self.checkpointing)
        self.device.valueChanged.connect(self.refresh)
        self.checkpointing.toggled.connect(self.refresh)
        right = QVBoxLayout()
        right.addWidget(self.answer)
        right.addWidget(self.chart)
        right.addStretch(1)
        row = QHBoxLayout(self)
        row.addLayout(form)
        row.addLayout(right, 1)

    def use_network(self, name: str) -> None:
        """Take over the sizes of a known network."""
        network = NETWORKS[name]
        for size, spin in self.sizes.items():
            spin.blockSignals(True)
            spin.setValue(getattr(network, size))
            spin.blockSignals(False)
        self.refresh()

    def request(self) -> PlanRequest:
        """The plan that is asked for."""
        known: Transformer = NETWORKS[self.network.currentText()]
        sizes = {name: spin.value() for name, spin in self.sizes.items()}
        feed_forward = round(known.feed_forward * sizes["width"] / known.width)
        counts = {name: spin.value() for name, spin in self.counts.items()}
        choices = {name: box.currentText() for name, box in self.choices.items()}
        network = replace(known, **sizes, feed_forward=feed_forward)  # type: ignore[arg-type]
        created = PlanRequest(network=network, checkpointing=self.checkpointing.isChecked())
        return replace(created, **counts, **choices)  # type: ignore[arg-type]

    def refresh(self) -> None:
        """Answer again."""
        request, size = self.request(), self.device.value() * 2**30
        created = plan(request)
        self.chart.set_rows(part_rows(created.parts))
        sentence = _NETWORK_FITS if created.fits(size) else _NETWORK_DOES_NOT_FIT
        reported = [translated(sentence).format(billions=request.network.parameters / 1e9, size=mib(size))]
        reported.append(_("The largest batch by formula: {batch}.").format(batch=largest_batch(request, size)))
        if created.host_bytes:
            reported.append(_("{size} lie in the host's memory.").format(size=mib(created.host_bytes)))
        if (first := first_change(request, size)) is not None:
            sentence = _CHANGE_FITS if first.fits else _CHANGE
            reported.append(
                translated(sentence).format(change=translated(first.sentence), needed=mib(first.plan.total_bytes))
            )
        self.answer.setText("\n".join(reported))


_OWN_CODE = L_("The run trains code of its own; plan it with precgui plan CONFIG.toml.")


class RunPlan(QWidget):
    """The run that is set up, gone through on shapes in a child process, or at the place `there`."""

    config_requested = Signal(object)  # a RunConfig to try
    planned = Signal(dict)  # with the keys of `precgui plan --json`

    def __init__(self, config: RunConfig, there: TaskPlace | None, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._config, self._there = config, there
        self.answer = label()
        self._plan = Answer(
            self, progress=self.take, failed=self.answer.setText, ended=self._end, title=_("Plan of a run")
        )
        self.chart = BarChart(parent=self)
        self.chart.setAccessibleName(_("Memory by part"))
        self.tries = QVBoxLayout()
        self.search = BatchSearch(config, there, self)
        self.search.chosen.connect(lambda batch: self._try({"data.batch_size": batch}))
        column = QVBoxLayout(self)
        column.addWidget(self.answer)
        column.addWidget(self.chart)
        column.addLayout(self.tries)
        column.addWidget(self.search, 1)
        column.addStretch(0)

    def ask(self) -> None:
        """Plan in a child process or at the place; code of the user's own is not run for it."""
        if is_own_task(self._config.task):
            self.answer.setText(translated(_OWN_CODE))
            return
        self.answer.setText(_("Going through a step on shapes ..."))
        arguments = {"config": self._config.model_dump()}
        self._plan.ask(child(TASKS["plan"], arguments, self._there))

    def stop(self) -> None:
        """End the plan and the search, as far as they are going on."""
        self.search.stop()
        self._plan.cancel()

    def _end(self, fault: str) -> None:
        if fault:
            self.answer.setText(fault)

    def take(self, event: dict[str, Any]) -> None:
        """Show a plan."""
        created = event["plan"]
        self.planned.emit(created)
        self.search.allow(int(created["memory"]["limit_bytes"]))
        self.chart.set_rows(part_rows({part: created["parts"][f"{part}_bytes"] for part in PARTS}))
        memory = created["memory"]
        sentence = _FITS if created["fits"] else _DOES_NOT_FIT
        size = mib(memory["device_bytes"])
        reported = [
            translated(sentence).format(
                size=size, source=translated(memory["from"]), method=translated(created["method"])
            )
        ]
        reported.append(
            _("The largest batch by the plan: {largest} samples; set are {batch}.").format(
                largest=created["largest_batch"], batch=created["batch_size"]
            )
        )
        reported += [translated(created["against_fp32"])] if created.get("against_fp32") else []
        self.answer.setText("\n".join(reported))
        for row in created["changes"]:
            button = QPushButton(
                _("{change} Then {needed}.").format(change=translated(row["change"]), needed=mib(row["total_bytes"])),
                self,
            )
            button.setToolTip(_("Put this change into the form"))
            button.clicked.connect(lambda _=False, settings=row["settings"]: self._try(settings))
            self.tries.addWidget(button, 0, Qt.AlignmentFlag.AlignLeft)

    def _try(self, settings: dict[str, Any]) -> None:
        try:
            words = {True: "true", False: "false"}
            texts = [f"{path}={words[v] if isinstance(v, bool) else v}" for path, v in settings.items()]
            self.config_requested.emit(change(self._config, texts))
        except ConfigError as error:
            self.answer.setText(error_text(error))


class PlanSheet(QDialog):
    """The plans and the formats, made for and at a place, None for this machine.

    `config_requested` carries a config that is to be put into the form.
    """

    config_requested = Signal(object)

    def __init__(
        self, config: RunConfig, kept: AssignedFormats, parent: QWidget | None = None, place: NamedPlace | None = None
    ) -> None:
        super().__init__(parent)
        themes().dress(self)
        there = TaskPlace(place) if place is not None else None
        title = _("Plan before the run at {place}").format(place=place.name) if place is not None else ""
        self.setWindowTitle(title or _("Plan before the run"))
        self.resize(900, 620)
        self.run_plan = RunPlan(config, there, self)
        self.formula, self.ranks = FormulaPlan(self), RanksPlan(config, there, self)
        self.assignment = AssignView(config, kept, there, self)
        self.tabs = tabs = PageTabs(self)
        tabs.addTab(self.run_plan, _("This run"))
        tabs.addTab(self.assignment, _("Formats of layers"))
        tabs.addTab(self.formula, _("A transformer by formula"))
        tabs.addTab(self.ranks, _("Several ranks"))
        QVBoxLayout(self).addWidget(tabs)
        self.run_plan.config_requested.connect(self.config_requested)
        self.assignment.config_requested.connect(self.config_requested)
        self.run_plan.planned.connect(self.ranks.take_plan)
        for part in (self.run_plan, self.assignment, self.ranks):
            self.finished.connect(part.stop)


def _spin(least: int, most: int, value: int) -> QSpinBox:
    spin = QSpinBox()
    spin.setRange(least, most)
    spin.setValue(value)
    ignore_wheel(spin)
    return spin
