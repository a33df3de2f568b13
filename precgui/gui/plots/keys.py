"""The keys of the linked plots: pan, zoom, the whole run, fit, pause, and the cursor point by point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeyEvent

if TYPE_CHECKING:
    from precgui.gui.plots.linked import LinkedPlots

_ZOOM, _PAN = 1.25, 0.1


def act_on(plots: LinkedPlots, event: QKeyEvent) -> bool:
    """Do what a key means in these plots. False for a key that means nothing in them."""
    match event.key():
        case Qt.Key.Key_Left | Qt.Key.Key_Right as key:
            _go(
                plots, 1 if key == Qt.Key.Key_Right else -1, bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
            )
        case Qt.Key.Key_Plus | Qt.Key.Key_Equal:
            _zoom(plots, 1 / _ZOOM)
        case Qt.Key.Key_Minus:
            _zoom(plots, _ZOOM)
        case Qt.Key.Key_F | Qt.Key.Key_Home:
            plots.follow()
        case Qt.Key.Key_A:
            plots.autoscale()
        case Qt.Key.Key_Space:
            plots.set_paused(not plots.paused)
        case Qt.Key.Key_Escape:
            plots.crosshair.hide()
        case _:
            return False
    return True


def _go(plots: LinkedPlots, way: int, by_point: bool) -> None:
    low, high = plots.x_range
    if by_point:
        plots.crosshair.step(way, (low + high) / 2)
    else:
        plots.show_range(low + way * _PAN * (high - low), high + way * _PAN * (high - low))


def _zoom(plots: LinkedPlots, factor: float) -> None:
    low, high = plots.x_range
    place = plots.crosshair.place
    centre = place if place is not None and low <= place <= high else (low + high) / 2
    plots.show_range(centre - (centre - low) * factor, centre + (high - centre) * factor)
