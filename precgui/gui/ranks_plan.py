"""Bytes, time and memory of the configured run on 1 to 1024 ranks, on paper; follows each change."""

from __future__ import annotations

from typing import Any

from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QCheckBox, QComboBox, QDoubleSpinBox, QHBoxLayout, QVBoxLayout, QWidget

from precgui.config import RunConfig, is_own_task
from precgui.gui.answer import Answer, child
from precgui.gui.kit.choice import ignore_wheel
from precgui.gui.kit.parts import label, named
from precgui.gui.kit.table import TextTable
from precgui.places.placed_task import TaskPlace
from precgui.places.tasks import TASKS
from precgui.planner.communication import (
    COLUMNS,
    NOTE,
    TIMED_COLUMNS,
    Forecast,
    Link,
    Traffic,
    batch_note,
    forecasts,
    link_rate,
)
from precgui.planner.ledger import PARTS, mib
from precgui.planner.plan import sharded_bytes
from precgui.words import L_, _, error_text, paragraph, translated

LINKS = ("100Mb/s", "1Gb/s", "10Gb/s", "25Gb/s", "100Gb/s", "400Gb/s", "450GB/s")
STAGES = range(4)
_OWN_CODE = L_("The run trains code of its own; plan it with precgui plan CONFIG.toml --link 10Gb/s.")


class RanksPlan(QWidget):
    """Asks a child process or the place `there` once what a step sends; all else is computed here."""

    def __init__(self, config: RunConfig, there: TaskPlace | None = None, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._config, self._there = config, there
        self.answer = label()
        self._count = Answer(
            self, progress=self.take, failed=self.answer.setText, ended=self._end, title=_("Count of what a step sends")
        )
        self._traffic: Traffic | None = None
        self._parts: dict[str, int] = {}
        self.link = QComboBox(self)
        self.link.addItems(LINKS)
        self.link.setEditable(True)
        self.link.setCurrentText("10Gb/s")
        self.latency_us = _number(0, 1e6, 20)
        self.step_ms = _number(0, 1e9, 0)
        self.step_ms.setSpecialValueText(_("not known"))
        self.own_batch = QCheckBox(_("Each rank has the batch for itself"), self)
        self.table = TextTable(tuple(map(translated, COLUMNS)), _("Several ranks, on paper"), self)
        self._lay_out()
        self.link.currentTextChanged.connect(self.refresh)
        for number in (self.latency_us, self.step_ms):
            number.valueChanged.connect(self.refresh)
        self.own_batch.toggled.connect(self.refresh)

    def _lay_out(self) -> None:
        line = QHBoxLayout()
        titles = ((_("&Link"), self.link), (_("L&atency, µs"), self.latency_us), (_("&Step, ms"), self.step_ms))
        for title, widget in titles:
            ignore_wheel(widget)
            line.addWidget(named(title, widget))
            line.addWidget(widget)
        line.addStretch(1)
        column = QVBoxLayout(self)
        column.addLayout(line)
        column.addWidget(self.own_batch)
        column.addWidget(self.answer)
        column.addWidget(self.table, 1)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._traffic is not None or self._count.busy:
            return
        if is_own_task(self._config.task):
            self.answer.setText(translated(_OWN_CODE))
            return
        self.answer.setText(_("Counting what a step sends ..."))
        arguments = {"config": self._config.model_dump()}
        self._count.ask(child(TASKS["traffic"], arguments, self._there))

    def stop(self) -> None:
        """End the count, if one is going on."""
        self._count.cancel()

    def _end(self, fault: str) -> None:
        if fault:
            self.answer.setText(fault)

    def take(self, event: dict[str, Any]) -> None:
        """Show the traffic."""
        self._traffic = Traffic(**event["traffic"])
        self.refresh()

    def take_plan(self, plan: dict[str, Any]) -> None:
        """The memory of one process, to be spread over the ranks."""
        self._parts = {name: int(plan["parts"][f"{name}_bytes"]) for name in PARTS}
        self.refresh()

    def refresh(self) -> None:
        """Answer again."""
        if self._traffic is None:
            return
        try:
            link = Link(link_rate(self.link.currentText()), self.latency_us.value() / 1e6)
        except ValueError as error:
            self.answer.setText(_("{error}.").format(error=error_text(error)))
            return
        batch = None if self.own_batch.isChecked() else self._config.data.batch_size
        step_s = self.step_ms.value() / 1e3 or None
        memory = [_("Peak, ZeRO {stage}").format(stage=stage) for stage in STAGES] if self._parts else []
        columns = (*COLUMNS, *(TIMED_COLUMNS if step_s else ()))
        self.table.set_columns((*map(translated, columns), *memory))
        rows = forecasts(self._traffic, link, step_s, shared_batch_size=batch)
        self.table.fill([[*row.texts(), *self._memory(row)] for row in rows])
        sentences = [translated(batch_note(batch)), translated(NOTE)]
        if not step_s:
            sentences.append(_("With the time of a step of one rank the time of a step of several is given, too."))
        self.answer.setText(paragraph(*sentences))

    def _memory(self, row: Forecast) -> list[str]:
        if not self._parts:
            return []
        shared = not self.own_batch.isChecked()
        return [mib(sharded_bytes(self._parts, stage, row.ranks, shared_batch=shared)) for stage in STAGES]


def _number(least: float, most: float, value: float) -> QDoubleSpinBox:
    number = QDoubleSpinBox()
    number.setDecimals(1)
    number.setRange(least, most)
    number.setValue(value)
    return number
