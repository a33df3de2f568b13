"""The error of each layer in several precisions as a table of colours: rows are layers, columns precisions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

from PySide6.QtCore import Qt
from PySide6.QtGui import QBrush, QColor
from PySide6.QtWidgets import (
    QAbstractItemView,
    QComboBox,
    QHBoxLayout,
    QHeaderView,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from precgui.gui.kit.choice import ignore_wheel
from precgui.gui.kit.copied_rows import let_copy
from precgui.gui.kit.empty_state import EmptyState
from precgui.gui.kit.parts import named
from precgui.gui.kit.plain_text import PlainLabel, plain_tip
from precgui.gui.replay_bar import LayersBar
from precgui.gui.session import Session
from precgui.gui.step_pages import StepPages
from precgui.gui.theme import themes
from precgui.runs.layer_errors import LAYERS, LayerDistance, LayersReplay
from precgui.words import L_, _, p_, translated

_EMPTY = L_(
    "No step of this run was compared layer by layer yet. Choose a step and up to five precisions above: its batch "
    "runs in FP64 and in each of them, and the result is kept beside the run."
)
_ABOUT = L_(
    "Distance from FP64 on the same weights and batch: relative l2, or the signal to noise ratio and the cosine of the "
    "angle. Errors of a layer contain those of the layers before it; gradients also those of the layers behind it."
)
Metric = Literal["relative_l2", "sqnr_db", "cosine"]
_METRICS: dict[str, Metric] = {
    L_("Relative l2"): "relative_l2", L_("Signal to noise, dB"): "sqnr_db", L_("Cosine"): "cosine",
}  # fmt: skip
_LEAST, _MOST = -8.0, 0.0  # decades of the relative distance from no colour to full colour
_STRONGEST = 0.55  # opacity of the full colour, so that text can be read on it


class LayerView(StepPages[LayersReplay]):
    """Shows the comparisons that are kept beside the run."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        empty = EmptyState("inspect", _("No layers compared"), translated(_EMPTY))
        super().__init__(session, empty, _("Compared step"), LayersBar(session), parent)
        self.metric_choice = QComboBox(self)
        self.table = QTableWidget(self)
        let_copy(self.table)
        self.notes = PlainLabel(self)
        self._lay_out()
        self.metric_choice.currentIndexChanged.connect(self.show_step)
        themes().follow(self, self.show_step)

    def _lay_out(self) -> None:
        self.metric_choice.setAccessibleName(_("Measure of the distance"))
        ignore_wheel(self.metric_choice)
        for title, key in _METRICS.items():
            self.metric_choice.addItem(translated(title), key)
        self.table.setAccessibleName(_("Distance of each layer from FP64, by precision"))
        self.table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.table.setShowGrid(False)
        self.table.verticalHeader().setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        self.table.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
        self.notes.setWordWrap(True)
        self.notes.setProperty("kind", "muted")
        head = QHBoxLayout()
        for text, choice in ((_("&Step"), self.step_choice), (_("&Measure"), self.metric_choice)):
            head.addWidget(named(text, choice))
            head.addWidget(choice)
        head.addStretch(1)
        column = QVBoxLayout(self.content)
        column.setContentsMargins(0, 8, 0, 0)
        column.setSpacing(8)
        column.addLayout(head)
        column.addWidget(self.table, 1)
        column.addWidget(self.notes)

    def read(self, path: Path) -> list[LayersReplay]:
        return LAYERS.all(path)

    def show_step(self) -> None:
        replay = self.chosen
        self.table.clear()
        if replay is None:
            return
        names = replay.precisions
        self.table.setRowCount(len(replay.layers))
        self.table.setColumnCount(2 * len(names))
        heads = [(side, name) for side in (_("Output"), _("Gradient")) for name in names]
        self.table.setHorizontalHeaderLabels([f"{side}\n{name}" for side, name in heads])
        self.table.setVerticalHeaderLabels([f"{layer.name}  ({layer.kind})" for layer in replay.layers])
        metric: Metric = self.metric_choice.currentData()
        for row, layer in enumerate(replay.layers):
            distances = [side.get(name) for side in (layer.forward, layer.gradient) for name in names]
            for place, (distance, (side, name)) in enumerate(zip(distances, heads, strict=True)):
                self.table.setItem(
                    row,
                    place,
                    _cell(
                        distance,
                        metric,
                        _("{layer}: {side} in {precision}").format(layer=layer.name, side=side, precision=name),
                    ),
                )
        self.notes.setText("\n".join([translated(_ABOUT), _losses(replay), *map(translated, replay.notes)]))


def _losses(replay: LayersReplay) -> str:
    values = {name: _("not finite") if value is None else f"{value:.6g}" for name, value in replay.losses.items()}
    losses = _(", ").join(f"{name} {value}" for name, value in values.items())
    return _("Loss of this batch: {losses}.").format(losses=losses)


def _cell(distance: LayerDistance | None, metric: Metric, name: str) -> QTableWidgetItem:
    """A cell with its number and the colour of its distance; without weights or output it stays empty."""
    cell = QTableWidgetItem(_text(distance, metric))
    cell.setTextAlignment(Qt.AlignmentFlag.AlignCenter)
    if distance is None:
        return cell
    theme = themes().theme
    colour = theme.error if distance.relative_l2 is None else theme.blend(theme.warning, strength(distance.relative_l2))
    cell.setBackground(QBrush(QColor(colour)))
    cell.setForeground(QBrush(QColor(theme.on_accent if distance.relative_l2 is None else theme.text)))
    texts = (f"{translated(label).lower()} {_text(distance, key)}" for label, key in _METRICS.items())
    cell.setToolTip(plain_tip(_("{name}: {value}").format(name=name, value=_(", ").join(texts))))
    return cell


def strength(relative: float) -> float:
    """The opacity of a cell, by the decade of its distance."""
    if relative <= 0:
        return 0.0
    return _STRONGEST * min(1.0, max(0.0, (math.log10(relative) - _LEAST) / (_MOST - _LEAST)))


def _text(distance: LayerDistance | None, metric: Metric) -> str:
    if distance is None:
        return ""
    if distance.relative_l2 is None:
        return _("not finite")
    value: float | None = getattr(distance, metric)
    if value is None or distance.relative_l2 == 0:
        return _("exact") if distance.relative_l2 == 0 else p_("a value", "none")
    return {"relative_l2": f"{value:.1e}", "sqnr_db": f"{value:.1f}", "cosine": f"{value:.6f}"}[metric]
