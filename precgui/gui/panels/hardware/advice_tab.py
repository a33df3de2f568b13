"""The Advice tab: which precision to use for a task on a device, with the decision tree drawn and the path marked."""

from __future__ import annotations

from html import escape

from PySide6.QtGui import QFontDatabase
from PySide6.QtWidgets import (
    QComboBox,
    QFormLayout,
    QHBoxLayout,
    QPlainTextEdit,
    QSplitter,
    QVBoxLayout,
    QWidget,
)

from precgui.gui.panels.hardware.cards import label, scrolled
from precgui.gui.panels.hardware.decision_tree import TreeView
from precgui.gui.panels.hardware.model import HardwareModel
from precgui.hardware.advice import SIZES, TASKS, Advice, Situation, advise
from precgui.hardware.datasheet import datasheet_devices
from precgui.hardware.device import Device
from precgui.hardware.tables import autocast_operations


class AdviceTab(QWidget):
    """Three questions on the left, the answer below them, the tree on the right."""

    def __init__(self, model: HardwareModel) -> None:
        super().__init__()
        self._model = model
        self.device, self.task, self.model_size = QComboBox(), QComboBox(), QComboBox()
        self.answer = label("", bold=True)
        self.reason = label("")
        self.watch = label("")
        self.path = label("", "muted", rich=True)
        self.code = QPlainTextEdit()
        self.autocast = label(_autocast_text(), "muted")
        self.tree = TreeView()
        self.advice: Advice | None = None
        self._chosen = False  # a person has chosen the device
        self._fill()
        self._lay_out()
        for box in (self.device, self.task, self.model_size):
            box.currentIndexChanged.connect(self._ask)
        self.device.activated.connect(self._keep_choice)
        model.machine_changed.connect(self._fill_devices)
        model.results_changed.connect(self._ask)
        self._fill_devices()

    def _fill(self) -> None:
        for box, words in ((self.task, TASKS), (self.model_size, SIZES)):
            for key, text in words.items():
                box.addItem(text, key)
        self.model_size.setCurrentIndex(list(SIZES).index("large"))
        self.code.setReadOnly(True)
        self.code.setAccessibleName("Training step in torch")
        self.code.setFont(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont))

    def _lay_out(self) -> None:
        form = QFormLayout()
        form.setRowWrapPolicy(QFormLayout.RowWrapPolicy.WrapAllRows)  # the longest choice needs the whole width
        for title, box in (("Device", self.device), ("Task", self.task), ("Model", self.model_size)):
            box.setAccessibleName(title)
            box.setMinimumContentsLength(18)
            box.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
            form.addRow(title, box)
        left = QWidget()
        column = QVBoxLayout(left)
        column.setContentsMargins(4, 12, 12, 4)
        column.setSpacing(8)
        column.addLayout(form)
        for widget in (self.answer, self.reason, self.path, self.watch, label("In torch", bold=True), self.code):
            column.addWidget(widget)
        column.addWidget(self.autocast)
        column.addStretch(1)
        split = QSplitter()
        split.addWidget(scrolled(left))
        split.addWidget(scrolled(self.tree))
        split.setStretchFactor(1, 1)
        split.setSizes([345, 885])
        outer = QHBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(split)

    def _fill_devices(self) -> None:
        """The machine's devices first, then every card of the table; the choice is kept."""
        chosen = self.device.currentData() if self._chosen else None
        self.device.blockSignals(True)
        self.device.clear()
        best = self._model.best()
        for device in [*self._model.devices, *datasheet_devices()]:
            self.device.addItem(device.name if not device.id.startswith("card:") else f"Card: {device.name}", device.id)
        wanted = chosen or (best.id if best else None)
        self.device.setCurrentIndex(max(0, self.device.findData(wanted)))
        self.device.blockSignals(False)
        self._ask()

    def ask_for(self, task: str, size: str) -> None:
        """Show the advice for a task and a size of model, keys of `TASKS` and `SIZES`."""
        for box, key in ((self.task, task), (self.model_size, size)):
            box.setCurrentIndex(max(0, box.findData(key)))

    def _keep_choice(self) -> None:
        self._chosen = True

    def _ask(self) -> None:
        device = self._model.find(self.device.currentData() or "")
        if device is None:
            return
        situation = Situation(
            device, self.task.currentData(), self.model_size.currentData(), self._model.gain_of(device)
        )
        self._show(device, advise(situation))

    def _show(self, device: Device, advice: Advice) -> None:
        self.advice = advice
        then = f", then try {advice.then}" if advice.then else ""
        self.answer.setText(f"Use {advice.precision}{then}")
        self.reason.setText(advice.reason)
        steps = (f"{escape(s.question)} <b>{escape(s.answer)}</b><br>{escape(s.why)}" for s in advice.path)
        self.path.setText("<br><br>".join(steps))
        self.watch.setText("Watch:\n" + "\n".join(f"•  {line}" for line in advice.watch))
        self.watch.setVisible(bool(advice.watch))
        self.code.setPlainText(advice.code)
        self.code.setFixedHeight((advice.code.count("\n") + 3) * self.code.fontMetrics().lineSpacing())
        self.autocast.setVisible(device.kind == "cuda" and advice.precision.endswith("-amp"))
        self.tree.show_path(advice)


def _autocast_text() -> str:
    """The operations that autocast leaves alone, from the table."""
    lists = autocast_operations()
    known = [name for name in ("layer_norm", "exp", "log", "norm", "nll_loss", "mse_loss") if name in lists["fp32"]]
    return (
        f"On CUDA, autocast runs {len(lists['lower_precision'])} operations in the low precision "
        f"(matrix products and convolutions), and keeps {len(lists['fp32'])} in FP32, among them {', '.join(known)}."
    )
