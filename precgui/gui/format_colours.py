"""The colour of a number format, the same in every plot of the window."""

from __future__ import annotations

from PySide6.QtGui import QColor, QIcon, QPixmap

from precgui.gui.theme import themes
from precgui.runs.line_styles import HUES, LineStyle, format_place, precision_place

_PALE_SHARE = 0.5
_SHADE_SHARES = (0.0, 0.3, 0.6)  # of the colour of text laid over a colour
_CHIP_PX = 10


def place_colour(place: int, shade: int = 0) -> str:
    """`#rrggbb` of a place below 2 * HUES; a shade lies nearer to the colour of text."""
    theme = themes().theme
    hue = theme.runs[place % HUES]
    colour = theme.blend(hue, _PALE_SHARE) if place // HUES % 2 else hue
    return theme.blend(theme.text, _SHADE_SHARES[shade], colour) if shade else colour


def style_colour(style: LineStyle) -> str:
    """`#rrggbb` of a line."""
    return place_colour(style.colour, style.shade)


def format_colour(name: str) -> str:
    """`#rrggbb`; formats beside the fourteen usual ones share these colours."""
    return place_colour(format_place(name))


def precision_colour(name: str) -> str:
    """`#rrggbb` of the format in which a precision multiplies."""
    return place_colour(precision_place(name))


def colour_chip(colour: str) -> QIcon:
    """A small square of a colour, for a cell."""
    made = QPixmap(_CHIP_PX, _CHIP_PX)
    made.fill(QColor(colour))
    return QIcon(made)
