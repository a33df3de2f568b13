"""Inspect > Formats > Effect: the cost of formats on held-out data, and the trust that scores deserve."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QSplitter, QTreeWidget, QTreeWidgetItem, QWidget

from precgui.gui.kit.copied_rows import let_copy
from precgui.gui.kit.parts import column, label
from precgui.planner.ledger import mib
from precgui.runs.models.effects import ROUNDED, SCORES, TRUTHS, ModelEffects, WholeRow
from precgui.sanitize import one_line, visible_name
from precgui.words import L_, _, n_, p_, paragraph, recased, translated

_ABOUT = L_(
    "The rise of the held-out loss with the standard error of its paired differences. Equal within noise: the 95 % "
    "interval of the rise holds 0. Agreement: 1 is the same order of the layers as the measurement gives, 0 none."
)
_MOST_NOTES, _MOST_NOTE = 20, 300  # of a foreign file; characters of one
_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter


class EffectView(QWidget):
    """Three tables: the whole model in each format, single layers, and the agreement of scores."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.effects: ModelEffects | None = None
        self.summary = label("", "muted", selectable=True)
        self.whole, self.layers, self.agreement = (
            _table(name)
            for name in (_("The whole model in each format"), _("One layer alone"), _("Agreement of scores"))
        )
        parts = QSplitter(Qt.Orientation.Vertical)
        for part, stretch in ((self.whole, 3), (self.layers, 3), (self.agreement, 2)):
            parts.addWidget(part)
            parts.setStretchFactor(parts.count() - 1, stretch)
        column(self.summary, label(translated(_ABOUT), "muted"), (parts, 1), spacing=8, on=self)

    def show_effects(self, effects: ModelEffects | None) -> None:
        """Show the measurements of another model."""
        self.effects = effects
        for tree in (self.whole, self.layers, self.agreement):
            tree.clear()
        if effects is None:
            return
        self.summary.setText(_summary(effects))
        truth = translated(TRUTHS[effects.truth])
        rows = [
            (row.format, row.method, translated(recased(ROUNDED[row.rounded], "lower")), mib(row.nbytes),
             _rise(row.rise, row.error), _short(row.distance), _remark(row)) for row in effects.whole
        ]  # fmt: skip
        heads = (
            _("Format"), _("Method"), _("Rounded"), _("Bytes"), _("Rise of the loss"), truth, _("Remark"),
        )  # fmt: skip
        _fill(self.whole, heads, rows, (3, 4, 5))
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
        alone = _("One layer alone: {truth}").format(truth=translated(TRUTHS[effects.truth]))
        _fill(self.layers, (alone, *formats, _("Plan") if planned else ""), rows, right)
        by_format = effects.document.get("by_format") or {}
        columns = [*(by_format.get(fmt, {}) for fmt in formats)]
        scores = [
            (translated(words), *(_share((each.get("scores") or {}).get(name)) for each in columns),
             _share(effects.agreement.get(name)))
            for name, words in SCORES.items() if name in effects.agreement
        ]  # fmt: skip
        ceiling = (_("half of the data against half"), *(_share(each.get("ceiling")) for each in columns),
                   _share(effects.ceiling))  # fmt: skip
        heads = (_("Agreement of a score"), *formats, p_("formats", "all"))
        _fill(self.agreement, heads, [*scores, ceiling], (*right, len(formats) + 1))


def _table(name: str) -> QTreeWidget:
    tree = QTreeWidget()
    let_copy(tree)
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
    text = _("Held-out loss {loss} on {samples} samples of {task}.").format(
        loss=f"{effects.loss:.5g}", samples=effects.samples, task=effects.document["task"]
    )
    measured = effects.document.get("plan_measured")
    if not measured:
        return text
    plan = _(
        "Plan: {size}, {bits} bits a weight by {method}; the loss rises by {rise} on samples that did not choose it."
    ).format(
        size=mib(int(measured["bytes"])), bits=f"{float(measured['bits']):.3g}", method=measured["method"],
        rise=_rise(measured["rise"], measured["error"]),
    )  # fmt: skip
    times = [
        _("Its products take {ratio} times as long there as in FP32; inputs at once: {count}.").format(
            ratio=f"{ratio:.3g}", count=count
        )
        for count, ratio in (effects.speed.ratios if effects.speed is not None else ())
    ]
    notes = "; ".join(one_line(translated(note), _MOST_NOTE) for note in _notes(effects))
    return paragraph(text, plan, *times, _("Notes: {notes}.").format(notes=notes) if notes else "")


def _notes(effects: ModelEffects) -> list[str]:
    notes = effects.document.get("notes")
    return [note for note in notes if isinstance(note, str)][:_MOST_NOTES] if isinstance(notes, list) else []


def _remark(row: WholeRow) -> str:
    if row.why_not:
        return _("not measured: {why}").format(why=translated(row.why_not))
    if row.within_noise:
        return _("equal within noise")
    left_out = n_("{count} layer left out", "{count} layers left out", row.left_out)
    return left_out.format(count=row.left_out) if row.left_out else ""


def _rise(rise: float | None, error: float | None) -> str:
    if rise is None:
        return ""
    return f"{rise:+.5f}" if error is None else f"{rise:+.5f} ± {error:.5f}"


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
