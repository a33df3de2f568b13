"""All figures of a bench result as rows of text, for the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, Qt

from precgui.gui.kit.plain_text import plain_tip
from precgui.hardware.figures import Figure, figures
from precgui.hardware.measured import number_text, remarks
from precgui.hardware.product_sums import sums_text, sums_title
from precgui.words import L_, _, translated

COLUMNS = (
    L_("What"),
    L_("Format"),
    L_("Size"),
    L_("Rate"),
    "± %",
    "x FP32",
    L_("Of peak"),
    L_("Change"),
    L_("Clock"),
    L_("Remarks"),
)
TITLES = {
    "product": L_("Matrix product"), "certificate": L_("Format that ran"), "accumulation": L_("Sums of products"),
    "copy": L_("Copy"),
    "conversion": L_("Conversion"),
    "convolution": L_("Convolution"), "attention": L_("Attention"), "energy": L_("Energy of a product"),
}  # fmt: skip
BOTH_WAYS = L_("forward and backward")
WIDTHS_PX = (120, 110, 60, 90, 60, 70, 70, 70, 90)
_NO_INDEX = QModelIndex()
_Index = QModelIndex | QPersistentModelIndex


class RowsModel(QAbstractTableModel):
    """Rows of text under COLUMNS: cheap to replace while a bench runs."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[str, ...]] = []

    def show_rows(self, rows: list[tuple[str, ...]]) -> None:
        self.beginResetModel()
        self.rows = rows
        self.endResetModel()

    def rowCount(self, parent: _Index = _NO_INDEX) -> int:
        return 0 if parent.isValid() else len(self.rows)

    def columnCount(self, parent: _Index = _NO_INDEX) -> int:
        return 0 if parent.isValid() else len(COLUMNS)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = 0) -> Any:
        if role == Qt.ItemDataRole.DisplayRole and orientation == Qt.Orientation.Horizontal:
            return translated(COLUMNS[section])
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
        return None

    def data(self, index: _Index, role: int = 0) -> Any:
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.ToolTipRole):
            text = self.rows[index.row()][index.column()]
            return plain_tip(text) if role == Qt.ItemDataRole.ToolTipRole else text
        return None


def rows_of(result: Mapping[str, Any], earlier: Mapping[str, Any] | None) -> list[tuple[str, ...]]:
    """One row of COLUMNS per figure."""
    before = {(row["format"], row["m"]): row["tops"] for row in earlier["gemm"]} if earlier else {}
    return [_cells(row, before) for row in figures(result)]


def _cells(row: Figure, before: Mapping[tuple[str, int], float | None]) -> tuple[str, ...]:
    kind, tops = row["kind"], row["tops"]
    was = before.get((row["format"], row["size"])) if kind == "product" else None
    return (
        _("Multiple of {multiple}").format(multiple=_multiple(row["size"]))
        if kind == "alignment"
        else translated(TITLES[kind]),
        _("{format} to {other}").format(format=row["format"], other=row["to"])
        if kind == "conversion"
        else translated(sums_title(row))
        if kind == "accumulation"
        else row["format"] or "",
        "" if row["size"] is None else str(row["size"]),
        _rate(row),
        _percent(row["uncertainty"] if kind == "energy" else row["spread"]),
        "" if row["times_fp32"] is None else f"{row['times_fp32']:.2f}",
        _percent(row["share"]),
        f"{round((tops / was - 1) * 100):+d} %" if tops and was else "",
        f"{row['clock_mhz']:.0f} MHz" if row["clock_mhz"] else "",
        "; ".join(part for part in (_remark(row), translated(remarks(row))) if part),
    )


def _multiple(size: int) -> int:
    return next(power for power in (16, 8, 4, 2, 1) if size % power == 0)


def _rate(row: Figure) -> str:
    if row["kind"] == "energy":
        return f"{row['gross_j']:.3g} J" if row["gross_j"] else ""
    if row["gb_s"]:
        return f"{row['gb_s']:.1f} GB/s"
    if row["kind"] == "product":
        return f"{number_text(row['tops'])} T/s" if row["tops"] else ""
    return f"{number_text(row['seconds'] * 1e3)} ms" if row["seconds"] else ""


def _remark(row: Figure) -> str:
    """Remarks that the other columns have no place for."""
    if row["error"] is not None:
        return _("error {error:.1e}: that of {format}").format(error=row["error"], format=row["ran_as"])
    if row["kind"] == "accumulation":
        return translated(sums_text(row))
    if row["relative"] is not None:
        return _("{share:.1%} of the rate of the multiple of 16").format(share=row["relative"])
    if row["gigaops_per_joule"]:
        return "; ".join(
            (
                _("{count} x 10⁹ operations per joule, by {method}").format(
                    count=number_text(row["gigaops_per_joule"]), method=translated(row["method"])
                ),
                *_net(row),
            )
        )
    what = {
        "copy": _("read and write counted"),
        "convolution": translated(BOTH_WAYS),
        "attention": translated(BOTH_WAYS),
    }.get(row["kind"], "")
    return what if _rate(row) else ""


def _net(row: Figure) -> list[str]:
    """Energy above idle, with its own uncertainty."""
    net, error = row["net_j"], row["net_uncertainty_j"]
    return (
        []
        if net is None or error is None
        else [_("above idle {energy} ± {error} J").format(energy=number_text(net), error=number_text(error))]
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share * 100:.1f}"
