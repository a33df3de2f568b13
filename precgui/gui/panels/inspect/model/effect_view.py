"""Inspect > Formats > Effect: the cost of formats on held-out data, and the trust that scores deserve."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QSplitter, QTreeWidget, QTreeWidgetItem, QWidget

from precgui.gui.kit.parts import column, label
from precgui.planner.ledger import mib
from precgui.runs.models.effects import ROUNDED, SCORES, TRUTHS, ModelEffects, WholeRow
from precgui.sanitize import visible_name

_ABOUT = (
    "The rise of the held-out loss with the standard error of its paired differences. Equal within noise: the 95 % "
    "interval of the rise holds 0. Agreement: 1 is the same order of the layers as the measurement gives, 0 none."
)
_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter


class EffectView(QWidget):
    """Three tables: the whole model in each format, single layers, and the agreement of scores."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.effects: ModelEffects | None = None
        self.summary = label("", "muted", selectable=True)
        self.whole, self.layers, self.agreement = (
            _table(name) for name in ("The whole model in each format", "One layer alone", "Agreement of scores")
        )
        parts = QSplitter(Qt.Orientation.Vertical)
        for part, stretch in ((self.whole, 3), (self.layers, 3), (self.agreement, 2)):
            parts.addWidget(part)
            parts.setStretchFactor(parts.count() - 1, stretch)
        column(self.summary, label(_ABOUT, "muted"), (parts, 1), spacing=8, on=self)

    def show_effects(self, effects: ModelEffects | None) -> None:
        """Show the measurements of another model."""
        self.effects = effects
        for tree in (self.whole, self.layers, self.agreement):
            tree.clear()
        if effects is None:
            return
        self.summary.setText(_summary(effects))
        truth = TRUTHS[effects.truth]
        rows = [
            (row.format, row.method, ROUNDED[row.rounded], mib(row.nbytes), _rise(row.rise, row.error),
             _short(row.distance), _remark(row)) for row in effects.whole
        ]  # fmt: skip
        _fill(
            self.whole, ("Format", "Method", "Rounded", "Bytes", "Rise of the loss", truth, "Remark"), rows, (3, 4, 5)
        )
        self._show_layers(effects)
        self.layers.setVisible(bool(effects.layers))
        self.agreement.setVisible(bool(effects.layers))

    def _show_layers(self, effects: ModelEffects) -> None:
        formats = list(dict.fromkeys(row.format for row in effects.layers))
        planned = effects.document.get("plan") or {}
        found = {
            (row.layer, row.format): row.rise if effects.truth == "loss" else row.distance for row in effects.layers
        }
        rows = [
            (visible_name(name), *(_short(found.get((name, fmt))) for fmt in formats), str(planned.get(name, "")))
            for name in dict.fromkeys(row.layer for row in effects.layers)
        ]
        right = tuple(range(1, len(formats) + 1))
        _fill(
            self.layers, (f"One layer alone: {TRUTHS[effects.truth]}", *formats, "Plan" if planned else ""), rows, right
        )
        by_format = effects.document.get("by_format") or {}
        columns = [*(by_format.get(fmt, {}) for fmt in formats)]
        scores = [
            (words, *(_share((each.get("scores") or {}).get(name)) for each in columns),
             _share(effects.agreement.get(name)))
            for name, words in SCORES.items() if name in effects.agreement
        ]  # fmt: skip
        ceiling = ("half of the data against half", *(_share(each.get("ceiling")) for each in columns),
                   _share(effects.ceiling))  # fmt: skip
        _fill(self.agreement, ("Agreement of a score", *formats, "all"), [*scores, ceiling], (*right, len(formats) + 1))


def _table(name: str) -> QTreeWidget:
    tree = QTreeWidget()
    tree.setAccessibleName(name)
    tree.setProperty("kind", "facts")
    tree.setRootIsDecorated(False)
    tree.setUniformRowHeights(True)
    tree.header().setStretchLastSection(False)
    tree.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
    return tree


def _fill(tree: QTreeWidget, heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> None:
    tree.setColumnCount(len(heads))
    tree.setHeaderLabels(list(heads))
    for cells in rows:
        item = QTreeWidgetItem(tree, list(cells))
        for place in right:
            item.setTextAlignment(place, _RIGHT)
    for place in range(len(heads)):
        tree.headerItem().setTextAlignment(place, _RIGHT if place in right else Qt.AlignmentFlag.AlignLeft)
    tree.header().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)


def _summary(effects: ModelEffects) -> str:
    text = f"Held-out loss {effects.loss:.5g} on {effects.samples} samples of {effects.document['task']}."
    measured = effects.document.get("plan_measured")
    if not measured:
        return text
    return (
        f"{text} Plan: {mib(int(measured['bytes']))}, {float(measured['bits']):.3g} bits a weight by "
        f"{measured['method']}; the loss rises by {_rise(measured['rise'], measured['error'])} on samples that did not "
        "choose it."
    )


def _remark(row: WholeRow) -> str:
    if row.why_not:
        return f"not measured: {row.why_not}"
    return "equal within noise" if row.within_noise else f"{row.left_out} layers left out" if row.left_out else ""


def _rise(rise: float | None, error: float | None) -> str:
    if rise is None:
        return ""
    return f"{rise:+.5f}" if error is None else f"{rise:+.5f} ± {error:.5f}"


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
