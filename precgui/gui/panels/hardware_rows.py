"""All figures of a bench result as rows of text, for the table and for CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, Qt

from precgui.hardware.measured import remarks

COLUMNS = ("What", "Format", "Size", "Rate", "± %", "x FP32", "Of peak", "Change", "Clock", "Remarks")
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
            return COLUMNS[section]
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
        return None

    def data(self, index: _Index, role: int = 0) -> Any:
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.ToolTipRole):
            return self.rows[index.row()][index.column()]
        return None


def rows_of(result: Mapping[str, Any], earlier: Mapping[str, Any] | None) -> list[tuple[str, ...]]:
    """One row of COLUMNS per figure."""
    parts = (_certificates, _alignment, _moves, _blocks, _energies)
    return [*_products(result, earlier), *(row for part in parts for row in part(result))]


def _products(result: Mapping[str, Any], earlier: Mapping[str, Any] | None) -> Iterator[tuple[str, ...]]:
    before = {(row["format"], row["m"]): row["tops"] for row in earlier["gemm"]} if earlier else {}
    fp32 = {row["m"]: row["tops"] for row in result["gemm"] if row["format"] == "fp32"}
    for row in result["gemm"]:
        tops, reference, was = row["tops"], fp32.get(row["m"]), before.get((row["format"], row["m"]))
        yield (
            "Matrix product", row["format"], str(row["m"]), f"{tops:.3g} T/s" if tops else "",
            _percent(row.get("spread")), f"{tops / reference:.2f}" if tops and reference else "",
            _percent(row.get("share")), f"{(tops / was - 1) * 100:+.0f} %" if tops and was else "",
            f"{row['clock_mhz']:.0f} MHz" if row.get("clock_mhz") else "", remarks(row),
        )  # fmt: skip


def _certificates(result: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for row in result["certificate"]:
        error = "" if row["error"] is None else f"error {row['error']:.1e}: that of {row['ran_as']}"
        remark = "; ".join(part for part in (error, row["note"]) if part)
        yield "Certificate", row["format"], "256", "", "", "", "", "", "", remark


def _alignment(result: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for row in result["alignment"]:
        relative = row["relative"]
        remark = f"{relative:.1%} of the rate of the multiple of 16" if relative else row["note"]
        what = f"Multiple of {row['multiple_of']}"
        yield what, row["format"], str(row["m"]), "", "", "", "", "", "", remark


def _moves(result: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    copied = result["copy"]
    if copied:
        rate, spread = f"{copied['gb_s']:.1f} GB/s", _percent(copied["spread"])
        yield "Copy", "", "", rate, spread, "", "", "", "", "read and write counted"
    for row in result["conversions"]:
        rate = f"{row['gb_s']:.1f} GB/s" if row["gb_s"] else ""
        yield ("Conversion", f"{row['from']} to {row['to']}", "", rate, _percent(row.get("spread")),
               "", "", "", "", row["note"])  # fmt: skip


def _blocks(result: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    fp32 = {row["block"]: row["seconds"] for row in result["blocks"] if row["format"] == "fp32"}
    for row in result["blocks"]:
        seconds, reference = row["seconds"], fp32.get(row["block"])
        yield (
            row["block"].capitalize(), row["format"], "", f"{seconds * 1e3:.3g} ms" if seconds else "",
            _percent(row.get("spread")), f"{reference / seconds:.2f}" if seconds and reference else "",
            "", "", "", row["note"] or "forward and backward",
        )  # fmt: skip


def _energies(result: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for row in result.get("energy", []):
        joules = row.get("gross_j")
        told = f"{row['gigaops_per_joule']:.3g} x 10⁹ operations per joule, by {row['method']}" if joules else ""
        remark = "; ".join(part for part in (told, row["note"]) if part)
        yield ("Energy of a product", row["format"], str(row["m"]), f"{joules:.3g} J" if joules else "",
               _percent(row.get("uncertainty")), "", "", "", "", remark)  # fmt: skip


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share * 100:.1f}"
