"""Sign, kind and payload of a NaN, to be edited."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QCheckBox, QFormLayout, QLabel, QLineEdit, QWidget

from precgui.formats.codec import decode, quiet_bit
from precgui.formats.explorer import nan_with
from precgui.formats.model import FloatFormat
from precgui.formats.report import Report


class NanEditor(QWidget):
    """Sign, kind and payload of a NaN; hidden for other values."""

    code_wanted = Signal(int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        form = QFormLayout(self)
        form.setContentsMargins(0, 0, 0, 0)
        self.quiet = QCheckBox("quiet")
        self.negative = QCheckBox("negative")
        self.payload = QLineEdit()
        self.fault = QLabel()
        self.fault.setProperty("kind", "error")
        self.fault.setWordWrap(True)
        form.addRow("NaN", self.quiet)
        form.addRow("", self.negative)
        form.addRow("Payload", self.payload)
        form.addRow(self.fault)
        self.quiet.clicked.connect(self._apply)
        self.negative.clicked.connect(self._apply)
        self.payload.editingFinished.connect(self._apply)
        self._format: FloatFormat | None = None

    def show_report(self, report: Report) -> None:
        fmt, real = report.format, report.stored.real
        editable = isinstance(fmt, FloatFormat) and real.kind == "nan" and quiet_bit(fmt) > 0
        self.setVisible(editable)
        self.fault.hide()
        if editable and isinstance(fmt, FloatFormat):
            self._format = fmt
            self.quiet.setChecked(not real.signalling)
            self.negative.setChecked(real.negative)
            self.payload.setText(f"{real.payload or 0:#x}")

    def _apply(self) -> None:
        if self._format is None or self.isHidden():
            return
        try:
            payload = int(self.payload.text(), 0)
        except ValueError:
            self._fail("write the payload as a number such as 0x2a")
            return
        try:
            quiet, negative = self.quiet.isChecked(), self.negative.isChecked()
            code = nan_with(self._format, payload, quiet=quiet, negative=negative)
        except ValueError as error:
            self._fail(str(error))
            return
        if decode(code, self._format).real.kind == "nan":
            self.code_wanted.emit(code)

    def _fail(self, words: str) -> None:
        self.fault.setText(words)
        self.fault.show()
