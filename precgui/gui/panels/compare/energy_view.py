"""Compare > Groups > Energy: measured beside expected energy, by power limit, above idle, and what it costs."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QLineEdit, QWidget

from precgui.gui.kit.parts import column, label, named, row
from precgui.gui.kit.table import TextTable
from precgui.runs.report.content import ReportContent
from precgui.runs.report.energy_table import energy_table
from precgui.runs.study.energy import EnergyPrice, PriceError, parse_price
from precgui.words import L_, _, together, translated, whole

_HINT = L_(
    "power.idle_s measures the idle devices before each run, and power.limit_w, varied in Run > Study, compares power "
    "limits where the driver lets one set them."
)


class EnergyView(QWidget):
    """A row for each figure, a column for each group; the price holds for the report, too."""

    repriced = Signal(object)  # the content with the new price

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._content: ReportContent | None = None
        self.price = QLineEdit(self)
        self.price.setPlaceholderText(_("none, or such as 0.30 EUR"))
        self.price.setFixedWidth(240)
        self.fault, self.note = label(kind="muted"), label(kind="muted")
        self.table = TextTable(("",), _("Energy of the groups"))
        bar = row(named(_("&Price of a kilowatt-hour"), self.price), self.price, (self.fault, 1))
        column(bar, self.note, (self.table, 1), on=self, spacing=-1)
        self.price.textChanged.connect(lambda text: self._on_price())

    def chosen_price(self) -> EnergyPrice | None:
        """The price that is written, None for none and for what is no price. Shows why it is none."""
        text = self.price.text().strip()
        self.fault.clear()
        if not text:
            return None
        try:
            return parse_price(text)
        except PriceError as error:
            self.fault.setText(translated(whole(error.args[0])))
            return None

    def with_price(self, content: ReportContent) -> ReportContent:
        """The content of a report with the chosen price."""
        price = self.chosen_price()
        if content.energy.price == price:
            return content
        return replace(content, energy=energy_table(content.study, content.runs, price))

    def show_content(self, content: ReportContent | None) -> None:
        """Show the energy of the groups; without a study the table is empty."""
        self._content = content
        energy = content.energy if content is not None else None
        fault = energy.why_not_measured if energy is not None and not energy.is_measured else ""
        self.note.setText(translated(together(fault, _HINT)))
        self.table.set_columns((_("Energy"), *(energy.columns if energy is not None else ())))
        rows = energy.short_rows if energy is not None else []
        self.table.fill([[translated(cell) for cell in row] for row in rows])

    def _on_price(self) -> None:
        if self._content is not None:
            self._content = self.with_price(self._content)
            self.show_content(self._content)
            self.repriced.emit(self._content)
