"""The line icons of the window: SVG drawings, coloured by the theme when they are rendered."""

from __future__ import annotations

from functools import cache

from PySide6.QtCore import QByteArray, QRectF, QSize, Qt
from PySide6.QtGui import QIcon, QPainter, QPixmap, QPixmapCache
from PySide6.QtSvg import QSvgRenderer

from precgui.gui.theme import themes
from precgui.paths import resources


@cache
def _drawing(name: str) -> str:
    return (resources() / "icons" / f"{name}.svg").read_text(encoding="utf-8")


def pixmap(name: str, colour: str, size: int = 20, ratio: float = 1.0) -> QPixmap:
    """The drawing `name` in one colour, `size` logical pixels wide, for a screen of that pixel ratio."""
    side = round(size * ratio)
    key = f"precgui {name} {colour} {side} {ratio}"
    if QPixmapCache.find(key, result := QPixmap()):
        return result
    image = QPixmap(QSize(side, side))
    image.fill(Qt.GlobalColor.transparent)
    painter = QPainter(image)
    QSvgRenderer(QByteArray(_drawing(name).replace("currentColor", colour).encode())).render(
        painter, QRectF(0, 0, side, side)
    )
    painter.end()
    image.setDevicePixelRatio(ratio)
    QPixmapCache.insert(key, image)
    return image


def icon(name: str, colour: str = "", size: int = 20) -> QIcon:
    """The drawing as an icon in the text colour of the present theme, or in `colour`.

    An icon keeps its colours: whoever shows one asks again when `themes().changed` comes.
    """
    theme = themes().theme
    created = QIcon()
    for ratio in (1.0, 2.0):
        created.addPixmap(pixmap(name, colour or theme.text, size, ratio), QIcon.Mode.Normal)
        created.addPixmap(pixmap(name, theme.blend(theme.muted, 0.5), size, ratio), QIcon.Mode.Disabled)
    return created


def app_icon() -> QIcon:
    """The icon of the application, in its own colours."""
    icon = QIcon()
    for side in (16, 32, 64, 128):
        icon.addPixmap(pixmap("app", "", side))
    return icon
