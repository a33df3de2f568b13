"""The Formats tab: what each device does with each format, as a coloured table; cards of the past can join."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, Qt
from PySide6.QtGui import QBrush, QColor
from PySide6.QtWidgets import (
    QAbstractItemView,
    QComboBox,
    QFrame,
    QHBoxLayout,
    QHeaderView,
    QPushButton,
    QTableView,
    QVBoxLayout,
    QWidget,
)

from precgui.gui.colours import Theme
from precgui.gui.kit.copied_rows import let_copy
from precgui.gui.kit.filled_cells import FilledCells
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.panels.hardware.cards import label, scrolled
from precgui.gui.panels.hardware.model import HardwareModel
from precgui.gui.theme import themes
from precgui.hardware.datasheet import datasheet_devices
from precgui.hardware.device import Device
from precgui.hardware.readings import Missing
from precgui.hardware.support import FORMATS, LEVEL_MEANING, Level, Support
from precgui.words import L_, _, translated

MARKS: dict[Level, str] = {"native": "●", "slow": "◐", "emulated": "○", "none": "✕", "unknown": "?"}
# One card for each generation, Pascal to Blackwell.
GENERATIONS = (
    "Tesla P100 SXM2", "Tesla V100 SXM2 16/32GB", "Tesla T4", "A100 SXM4 80GB", "GeForce RTX 4090", "H100 SXM5 80GB",
    "B200 180GB", "GeForce RTX 5090",
)  # fmt: skip
_NO_INDEX = QModelIndex()
_Index = QModelIndex | QPersistentModelIndex


LEVEL_TITLES: dict[Level, str] = {
    "native": L_("native"),
    "slow": L_("slow"),
    "emulated": L_("emulated"),
    "none": L_("none"),
    "unknown": L_("unknown"),
}


def level_text(level: Level) -> str:
    """The word for a level of support."""
    return translated(LEVEL_TITLES[level])


def level_colour(theme: Theme, level: Level) -> str:
    """The colour of a level of support; the mark and the word say the same."""
    return {
        "native": theme.ok, "slow": theme.warning, "emulated": theme.info, "none": theme.muted,
        "unknown": theme.muted,
    }[level]  # fmt: skip


def upper_first(text: str) -> str:
    """The text as the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def explain(name: str, device: Device, cell: Support) -> str:
    """All that is known about one cell, as lines."""
    head = _("{format} on {device}: {level}. {meaning}").format(
        format=name,
        device=device.name,
        level=level_text(cell.support),
        meaning=translated(LEVEL_MEANING[cell.support]),
    )
    lines = [head, translated(cell.reason)]
    if isinstance(cell.peak, Missing):
        if cell.support == "native":
            lines.append(f"{upper_first(translated(cell.peak.reason))}.")
    else:
        sheet = cell.peak.datasheet_tops
        lines.append(_("Peak, dense: {formula}").format(formula=translated(cell.peak.formula)))
        if sheet is not None and abs(sheet / cell.peak.tops - 1) > 0.005:
            lines.append(_("Datasheet: {rate:g}").format(rate=sheet))
    if cell.source:
        lines.append(_("Source: {source}").format(source=translated(cell.source)))
    lines += [
        _("Sheet of {name}: {sentence}").format(name=device.name, sentence=translated(source.sentence))
        for source in device.sources
    ]
    return "\n".join(lines)


class MatrixModel(QAbstractTableModel):
    """Rows are formats, columns devices."""

    def __init__(self) -> None:
        super().__init__()
        self.devices: list[Device] = []

    def show_devices(self, devices: list[Device]) -> None:
        self.beginResetModel()
        self.devices = devices
        self.endResetModel()

    def rowCount(self, parent: _Index = _NO_INDEX) -> int:
        return 0 if parent.isValid() else len(FORMATS)

    def columnCount(self, parent: _Index = _NO_INDEX) -> int:
        return 0 if parent.isValid() else len(self.devices)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = 0) -> Any:
        across = orientation == Qt.Orientation.Horizontal
        if role == Qt.ItemDataRole.DisplayRole:
            return self.devices[section].name.removeprefix("NVIDIA ") if across else FORMATS[section]
        if role == Qt.ItemDataRole.ToolTipRole and across:
            device = self.devices[section]
            return plain_tip(f"{device.name}\n{device.architecture} {device.capability}".strip())
        return None

    def cell(self, index: _Index) -> tuple[str, Device, Support]:
        name, device = FORMATS[index.row()], self.devices[index.column()]
        return name, device, device.formats[name]

    def data(self, index: _Index, role: int = 0) -> Any:
        name, device, cell = self.cell(index)
        theme = themes().theme
        if role == Qt.ItemDataRole.DisplayRole:
            peak = "" if isinstance(cell.peak, Missing) else f"   {_rate(cell.peak.tops)}"
            return f"{MARKS[cell.support]} {level_text(cell.support)}{peak}"
        if role == Qt.ItemDataRole.ToolTipRole:
            return plain_tip(explain(name, device, cell))
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return f"{name}: {level_text(cell.support)}"
        if role == Qt.ItemDataRole.ForegroundRole:
            return QColor(level_colour(theme, cell.support))
        if role == Qt.ItemDataRole.BackgroundRole:
            return QBrush(
                QColor(theme.blend(level_colour(theme, cell.support), 0.12 if cell.support != "none" else 0.05))
            )
        return None

    def recolour(self) -> None:
        if self.devices:
            self.dataChanged.emit(self.index(0, 0), self.index(len(FORMATS) - 1, len(self.devices) - 1))


def _rate(tops: float) -> str:
    """10^12 operations a second, three digits."""
    return f"{tops / 1000:.3g}P" if tops >= 1000 else f"{tops:.3g}T"


class MatrixTab(QWidget):
    """The table, the cards to compare with, and the explanation of the chosen cell."""

    def __init__(self, model: HardwareModel) -> None:
        super().__init__()
        self._model = model
        self._added: list[Device] = []
        self.matrix = MatrixModel()
        self.table = QTableView()
        let_copy(self.table)
        self.choose = QComboBox()
        self.details = label("", "muted")
        self._set_up_table()
        self._lay_out()
        self.table.selectionModel().currentChanged.connect(self._explain)
        model.machine_changed.connect(self._refresh)
        themes().follow(self, self.matrix.recolour)
        self._refresh()

    def _set_up_table(self) -> None:
        self.table.setModel(self.matrix)
        self.table.setItemDelegate(FilledCells(self.table))
        self.table.setAccessibleName(_("Support of number formats by device"))
        self.table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.table.setShowGrid(False)
        self.table.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        self.table.horizontalHeader().setDefaultSectionSize(172)
        self.table.horizontalHeader().setTextElideMode(Qt.TextElideMode.ElideMiddle)
        self.table.verticalHeader().setDefaultSectionSize(26)
        self.table.verticalHeader().setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)

    def _lay_out(self) -> None:
        self.choose.setAccessibleName(_("Add a card that is not in this machine"))
        self.choose.addItem(_("Add a card…"))
        for device in datasheet_devices():
            self.choose.addItem(f"{device.name}  ({device.architecture or 'Intel'})", device)
        self.choose.activated.connect(self._add_chosen)
        generations, clear = QPushButton(_("Pascal to Blackwell")), QPushButton(_("This machine only"))
        generations.setToolTip(_("Add one card of each generation"))
        generations.clicked.connect(self.add_generations)
        clear.clicked.connect(self.clear)
        self.choose.setFixedWidth(220)
        self.choose.setMaxVisibleItems(14)
        self.choose.setStyleSheet("QComboBox { combobox-popup: 0; }")  # a list that scrolls, not a menu of the screen
        top = QHBoxLayout()
        for widget in (self.choose, generations, clear):
            top.addWidget(widget)
        top.addStretch(1)
        self.details.setAlignment(Qt.AlignmentFlag.AlignTop)
        explanation = scrolled(self.details)
        explanation.setFrameShape(QFrame.Shape.NoFrame)
        explanation.setFixedHeight(8 * self.fontMetrics().lineSpacing())
        column = QVBoxLayout(self)
        column.setContentsMargins(4, 12, 4, 4)
        column.addLayout(top)
        column.addWidget(label(_("Figures: theoretical dense peak, T = 10¹² operations a second"), "muted"))
        column.addWidget(self.table, 1)
        column.addWidget(explanation)

    def add(self, device: Device) -> None:
        """Show one more card, once."""
        if all(known.id != device.id for known in self._added):
            self._added.append(device)
            self._refresh()

    def add_generations(self) -> None:
        self._added = [device for device in datasheet_devices() if device.name in GENERATIONS]
        self._refresh()

    def clear(self) -> None:
        self._added = []
        self._refresh()

    def _add_chosen(self, index: int) -> None:
        device = self.choose.itemData(index)
        if device is not None:
            self.add(device)
        self.choose.setCurrentIndex(0)

    def _refresh(self) -> None:
        self.matrix.show_devices([*self._model.devices, *self._added])
        if self.matrix.devices:
            self.table.setCurrentIndex(self.matrix.index(FORMATS.index("bf16"), 0))
        else:
            self.details.setText(translated(self._model.waiting_text))

    def _explain(self, index: QModelIndex) -> None:
        if index.isValid():
            self.details.setText(explain(*self.matrix.cell(index)))
