"""The Calculator tab: products or a training step on cards that are not at hand, as bounds from their data sheets."""

from __future__ import annotations

from PySide6.QtWidgets import QComboBox, QLineEdit, QSpinBox, QWidget

from precgui.gui.kit.choice import ignore_wheel
from precgui.gui.kit.parts import column, label, named, row
from precgui.gui.kit.plain_text import plain_tip
from precgui.gui.kit.table import TextTable
from precgui.gui.panels.hardware.model import HardwareModel
from precgui.hardware.datasheet import datasheet_devices
from precgui.planner.ledger import mib
from precgui.planner.network import NETWORKS
from precgui.runs.card_bounds import FORMATS, NOTE, USUAL_CARDS, bound, cards_of, memory_bytes, time_text, work_of
from precgui.words import L_, _, error_text, translated

_USUAL, _EVERY = L_("usual cards"), L_("every card")
_HELP = L_(
    "4096 is a product of two square matrices, 64x4096x11008 one of rows x inner x columns, several with commas; the "
    "name of a network is a training step of it."
)


class CalculatorTab(QWidget):
    """A work on top, below it a row for each card and a column for each format."""

    def __init__(self, model: HardwareModel) -> None:
        super().__init__()
        self.work, self.batch, self.cards = QComboBox(), QSpinBox(), QComboBox()
        self.work.setEditable(True)
        self.work.addItems(["4096", "1024", "64x4096x11008", *NETWORKS])
        self.batch.setRange(1, 1 << 20)
        self.cards.setEditable(True)
        self.cards.addItems([translated(_USUAL), translated(_EVERY), "V100", "A100", "H100", "B200", "RTX"])
        for part, name in ((self.work, _("Work")), (self.batch, _("Sequences of a step")), (self.cards, _("Cards"))):
            part.setAccessibleName(name)
            ignore_wheel(part)
        self.work.setToolTip(plain_tip(translated(_HELP)))
        self.cards.setToolTip(_("a part of the names, several with commas"))
        self.answer = label(kind="muted", selectable=True)
        self.table = TextTable((_("Card"), _("Memory"), *FORMATS), _("Least time on each card in each format"))
        head = row(
            named(_("&Work"), self.work), (self.work, 1), named(_("Se&quences"), self.batch), self.batch,
            named(_("&Cards"), self.cards), (self.cards, 1),
        )  # fmt: skip
        column(head, self.answer, (self.table, 1), label(translated(NOTE), "muted"), margins=(4, 12, 4, 4), on=self)
        for box in (self.work, self.cards):
            box.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
            line = box.lineEdit()
            assert isinstance(line, QLineEdit)
            line.textChanged.connect(lambda _: self._show())
        self.batch.valueChanged.connect(lambda _: self._show())
        self._show()

    def _show(self) -> None:
        """Fill the table, or say what is not understood."""
        self.batch.setEnabled(self.work.currentText().strip() in NETWORKS)
        try:
            work = work_of(self.work.currentText().strip(), self.batch.value())
            devices = cards_of(self._words())
        except ValueError as error:
            self.answer.setText(f"{error_text(error)}.")
            self.table.fill([])
            return
        sizes = {name: memory_bytes(work, name) for name in FORMATS}
        known = ", ".join(f"{name} {mib(size)}" for name, size in sizes.items() if size is not None)
        text = _("{title}: {flops:.3g} operations. Memory of operands and results: {known}.")
        if work.network is not None:
            text = _("{title}: {flops:.3g} operations. Memory of the peak of the step: {known}.")
        self.answer.setText(text.format(title=translated(work.title), flops=work.flops, known=known))
        memory = {device.name: device.memory_bytes for device in devices}
        self.table.fill(
            [
                (
                    device.name, f"{size / 1e9:.0f} GB" if isinstance(size := memory[device.name], int) else "–",
                    *(translated(time_text(bound(work, device, name))) for name in FORMATS),
                )
                for device in devices
            ]
        )  # fmt: skip

    def _words(self) -> list[str]:
        text = self.cards.currentText().strip()
        if text == translated(_EVERY):
            return [device.name for device in datasheet_devices()]
        return (
            [*USUAL_CARDS]
            if text in ("", translated(_USUAL))
            else [each.strip() for each in text.split(",") if each.strip()]
        )
