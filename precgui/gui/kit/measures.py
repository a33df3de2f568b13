"""The sizes of text and of the space between parts, in one table each.

Text has four sizes: an answer, a title, everything else, and notes in pictures. Space comes in steps, so that edges of
neighbours meet (1 is that of a border); `tests/gui/kit/test_measures.py` finds a margin or a spacing of another number.
"""

from __future__ import annotations

from typing import Literal

from PySide6.QtGui import QFont, QFontDatabase, QFontInfo
from PySide6.QtWidgets import QApplication

from precgui import words

TextSize = Literal["answer", "title", "text", "small"]
TEXT_SCALE: dict[TextSize, float] = {"answer": 2.0, "title": 1.6, "text": 1.0, "small": 0.9}  # of the system's font
SPACES_PX = (0, 1, 2, 4, 8, 12, 16, 24, 32)
TAB_MARGIN_PX, CLOSE_TAB_MARGIN_PX = 12, 4  # on each side of the title of a tab; close: where room is scarce

# Fonts with Chinese characters of Windows, macOS and Linux, in the order in which they are taken.
CHINESE_FONTS = (
    "Microsoft YaHei UI", "Microsoft YaHei", "PingFang SC", "Hiragino Sans GB", "Noto Sans CJK SC", "Noto Sans SC",
    "Source Han Sans SC", "Source Han Sans CN", "WenQuanYi Micro Hei", "Droid Sans Fallback",
)  # fmt: skip


def readable(font: QFont) -> QFont:
    """The font, and behind it those that have the characters of the reader's language."""
    result = QFont(font)
    if words.language() == "zh_CN":
        result.setFamilies([*font.families(), *CHINESE_FONTS])
    return result


def points(size: TextSize) -> float:
    """A size of text in points."""
    return round(QApplication.font().pointSizeF() * TEXT_SCALE[size], 1)


def fixed_font(size: TextSize = "text") -> QFont:
    """The system's font of fixed width, by its own name: in a list of families Qt passes over "monospace"."""
    font = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont)
    font.setFamilies([QFontInfo(font).family()])
    font.setPointSizeF(points(size))
    return readable(font)
