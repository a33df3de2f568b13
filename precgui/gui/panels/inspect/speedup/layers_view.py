"""The products of this model on this device: their rate in each format, as a table and under a roofline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHeaderView, QSplitter, QTreeWidget, QTreeWidgetItem, QVBoxLayout, QWidget

from precgui.gui.kit.copied_rows import let_copy
from precgui.gui.kit.plain_text import PlainLabel, plain_tip
from precgui.gui.plots.roofline import Roofline, RooflineData
from precgui.runs.speedup.products import Product, ProductRate, Products, products_of
from precgui.words import L_, _, translated

_FIRST, _LAST = (L_("Modules"), L_("Phase")), (L_("Calls"), L_("Sizes"), L_("Operation"))
_NONE_YET = L_("This profile was made before products were measured one by one. Profile again to see them.")


class LayersView(QWidget):
    """Shows the products of one profile."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.caption = PlainLabel(self)
        self.caption.setWordWrap(True)
        self.caption.setProperty("kind", "muted")
        self.table = QTreeWidget(self)
        let_copy(self.table)
        self.table.setRootIsDecorated(False)
        self.table.setUniformRowHeights(True)
        self.table.setAccessibleName(_("Products of this model, those with most work first"))
        self.table.header().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        self.table.header().setStretchLastSection(False)
        self.roofline = Roofline()
        self._parts = QSplitter(Qt.Orientation.Horizontal, self)
        self._parts.addWidget(self.table)
        self._parts.addWidget(self.roofline)
        self._parts.setStretchFactor(0, 3)
        self._parts.setStretchFactor(1, 2)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 4, 0, 0)
        column.addWidget(self.caption)
        column.addWidget(self._parts, 1)

    def show_profile(self, profile: Mapping[str, Any]) -> None:
        """Show the products of this profile, or why there are none."""
        measured = products_of(profile)
        self._parts.setVisible(measured is not None)
        self.caption.setText(
            translated(_NONE_YET) if measured is None else _caption(measured, str(profile["device"]["name"]))
        )
        self.table.clear()
        self.roofline.show_data(None if measured is None else _roofline(measured))
        if measured is None:
            return
        self.table.setHeaderLabels(
            [*map(translated, _FIRST), *(f"{fmt}, GFLOP/s" for fmt in measured.formats), *map(translated, _LAST)]
        )
        for column in range(len(_FIRST), len(_FIRST) + len(measured.formats) + 1):
            self.table.headerItem().setTextAlignment(
                column, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
            )
        for product in measured.products:
            self.table.addTopLevelItem(_item(product, measured.formats))


def _item(product: Product, formats: tuple[str, ...]) -> QTreeWidgetItem:
    rates = [product.rates.get(fmt, ProductRate(None)) for fmt in formats]
    item = QTreeWidgetItem(
        [product.modules_text, translated(product.phase)]
        + [rate_text(rate) for rate in rates]
        + [str(product.calls), product.sizes, product.operation]
    )
    item.setToolTip(0, plain_tip(", ".join(product.modules)))
    for column, rate in enumerate(rates, len(_FIRST)):
        item.setTextAlignment(column, Qt.AlignmentFlag.AlignRight)
        item.setToolTip(column, plain_tip(_tip(rate)))
    item.setTextAlignment(len(_FIRST) + len(rates), Qt.AlignmentFlag.AlignRight)
    return item


def rate_text(rate: ProductRate) -> str:
    """GFLOP/s, with the speed-up over FP32 behind it where the format is another one."""
    if rate.flops_s is None:
        return _("not measured") if rate.note else ""
    gigaflops = f"{rate.flops_s * 1e-9:.3g}"
    return gigaflops if rate.speedup in (None, 1.0) else f"{gigaflops} ({rate.speedup:.2f}x)"


def _tip(rate: ProductRate) -> str:
    if rate.flops_s is None:
        return translated(rate.note)
    if rate.spread is None:
        return _("Of two calls only, since one takes long.")
    return _("The middle half of the rounds lies within {spread:.0%}.").format(spread=rate.spread)


def _caption(measured: Products, device: str) -> str:
    return _(
        "Each product of the step alone on {device}, in turns of all formats; together {share:.0%} of "
        "the FLOPs of a step. Casts and emulation around a product are not in it; e4m3fn and int8 have one scale for "
        "each operand, where torch has a kernel. A point on the slope waits for "
        "memory, a point under the roof for arithmetic."
    ).format(device=device, share=measured.flops_share)


def _roofline(measured: Products) -> RooflineData | None:
    if not measured.bandwidth:
        return None
    points: dict[str, list[tuple[float, float]]] = {fmt: [] for fmt in measured.formats}
    for product in measured.products:
        for fmt, rate in product.rates.items():
            if rate.flops_s and rate.flops_per_byte:
                points[fmt].append((rate.flops_per_byte, rate.flops_s * 1e-12))
    roofs = {fmt: rate * 1e-12 for fmt, rate in measured.roofs.items()}
    return RooflineData(measured.bandwidth * 1e-12, roofs, points)
