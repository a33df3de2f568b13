"""The largest batch of the run that is set up, found by real steps in a child process or at a place: progress, rates,
cancel."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QHeaderView, QPushButton, QTreeWidget, QTreeWidgetItem, QVBoxLayout, QWidget

from precgui.config import RunConfig, is_own_task
from precgui.gui.answer import Answer, child
from precgui.gui.kit.copied_rows import let_copy
from precgui.gui.kit.plain_text import PlainLabel
from precgui.places.placed_task import TaskPlace
from precgui.places.tasks import TASKS
from precgui.planner.ledger import mib
from precgui.words import L_, _, n_, translated

_COLUMNS = (L_("Batch"), L_("Peak memory"), L_("Samples per second"), L_("Result"))
_NUMBERS = 3  # columns before the words of the result
_SEARCH, _CANCEL = L_("Find the largest batch by real steps"), L_("Cancel the search")
_TRYING = L_("Trying a batch of {batch} ...")
_LARGEST = L_("The largest batch that was tried and fits into {limit}: {batch}.")
_CANCELLED = L_("Cancelled. The largest batch that was tried and fits so far: {batch}.")
_NONE = L_("Not even one sample fits into {limit}.")
_RATES = L_("Rates are medians of half a second, by {clock}.")


class BatchSearch(QWidget):
    """Doubles the batch until a step does not fit and bisects from there; emits `chosen` with the size to use."""

    chosen = Signal(int)

    def __init__(self, config: RunConfig, there: TaskPlace | None, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._config, self._there = config, there
        self._limit_bytes = 0
        self._largest = 0
        self._steps = Answer(
            self, progress=self.take, failed=lambda why: self.state.setText(why), ended=self._end,
            title=_("Search for the largest batch"),
        )  # fmt: skip
        self.search_button = QPushButton(translated(_SEARCH), self)
        self.search_button.setEnabled(False)
        self.use_button = QPushButton(self)
        self.use_button.hide()
        self.state = PlainLabel(self)
        self.state.setWordWrap(True)
        self.table = QTreeWidget(self)
        let_copy(self.table)
        self.table.setHeaderLabels([translated(name) for name in _COLUMNS])
        self.table.setRootIsDecorated(False)
        self.table.setUniformRowHeights(True)
        self.table.setAccessibleName(_("Batch sizes that were tried"))
        self.table.header().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        for number in range(_NUMBERS):
            self.table.headerItem().setTextAlignment(
                number, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
            )
        self.table.hide()
        buttons = QHBoxLayout()
        buttons.addWidget(self.search_button)
        buttons.addWidget(self.use_button)
        buttons.addStretch(1)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 8, 0, 0)
        column.addLayout(buttons)
        column.addWidget(self.state)
        column.addWidget(self.table, 1)
        self.search_button.clicked.connect(self.toggle)
        self.use_button.clicked.connect(lambda: self.chosen.emit(self._largest))

    def allow(self, limit_bytes: int) -> None:
        """Let a search begin; a step may take so many bytes."""
        self._limit_bytes = limit_bytes
        self.search_button.setEnabled(not is_own_task(self._config.task))

    def toggle(self) -> None:
        """Begin the search, or cancel it."""
        if self._steps.busy:
            self.stop()
            return
        self._largest = 0
        self.table.clear()
        self.table.show()
        self.use_button.hide()
        arguments = {"config": self._config.model_dump(), "limit_bytes": self._limit_bytes}
        self._steps.ask(child(TASKS["search"], arguments, self._there))
        self.search_button.setText(translated(_CANCEL))
        self.state.setText(translated(_TRYING).format(batch=self._config.data.batch_size))

    def stop(self) -> None:
        """End the search and the step that it tries."""
        self._steps.cancel()

    def take(self, event: dict[str, Any]) -> None:
        """Show a size that was tried, or the result."""
        if event["kind"] == "attempt":
            self._add(event)
        else:
            self._show_result(event)

    def _add(self, attempt: dict[str, Any]) -> None:
        peak, rate = attempt["peak_bytes"], attempt["samples_per_s"]
        texts = [
            str(attempt["batch"]), _("not measured") if peak is None else mib(peak),
            _("not measured") if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}",
            _("fits") if attempt["fits"] else _("does not fit: {reason}").format(reason=translated(attempt["reason"])),
        ]  # fmt: skip
        item = QTreeWidgetItem(texts)
        for number in range(_NUMBERS):
            item.setTextAlignment(number, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.table.addTopLevelItem(item)
        self.table.scrollToItem(item)
        if attempt["fits"]:
            self._largest = max(self._largest, int(attempt["batch"]))
        count = self.table.topLevelItemCount()
        self.state.setText(
            n_(
                "{count} size tried; the search goes on ...", "{count} sizes tried; the search goes on ...", count
            ).format(count=count)
        )

    def _show_result(self, results: dict[str, Any]) -> None:
        self._largest = int(results["batch"])
        sentence = _CANCELLED if results["stopped"] else _LARGEST if self._largest else _NONE
        reported = translated(sentence).format(batch=self._largest, limit=mib(results["limit_bytes"]))
        self.state.setText(f"{reported} {translated(_RATES).format(clock=results['clock'])}")
        self._offer()

    def _offer(self) -> None:
        self.use_button.setText(_("Use a batch of {largest}").format(largest=self._largest))
        self.use_button.setVisible(self._largest > 0)

    def _end(self, fault: str) -> None:
        self.search_button.setText(translated(_SEARCH))
        if fault:
            self.state.setText(fault)
        elif self.state.text().endswith("..."):  # it was cancelled before its result was sent
            self.state.setText(translated(_CANCELLED).format(batch=self._largest))
            self._offer()
