"""The colour of a number format, the same in every plot of the window."""

from __future__ import annotations

from zlib import crc32

from PySide6.QtGui import QColor, QIcon, QPixmap

from precgui.config.precision_traits import traits
from precgui.gui.theme import themes

_FULL = ("fp32", "bf16", "fp16", "e4m3fn", "e5m2", "e2m1", "int8")  # the colours of runs, in their order
_PALE = ("fp64", "tf32", "int2", "e3m2", "e2m3", "nf4", "int4")  # the same, half laid over the ground
_SHARE = 0.5
_CHIP_PX = 10


def format_colour(name: str) -> str:
    """`#rrggbb`; formats beside the fourteen usual ones share these colours."""
    theme = themes().theme
    if name in _FULL:
        return theme.runs[_FULL.index(name)]
    if name in _PALE:
        return theme.blend(theme.runs[_PALE.index(name)], _SHARE)
    place = crc32(name.encode()) % (2 * len(theme.runs))
    colour = theme.runs[place % len(theme.runs)]
    return colour if place < len(theme.runs) else theme.blend(colour, _SHARE)


def precision_colour(name: str) -> str:
    """`#rrggbb` of the format in which a precision multiplies; muted for a name that is no precision of precgui."""
    try:
        return format_colour(traits(name).operand)
    except KeyError:
        return themes().theme.muted


def colour_chip(colour: str) -> QIcon:
    """A small square of a colour, for a cell."""
    made = QPixmap(_CHIP_PX, _CHIP_PX)
    made.fill(QColor(colour))
    return QIcon(made)
