"""Light and dark, for Qt and for plots: every colour of the window is named here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from PySide6.QtGui import QColor


@dataclass(frozen=True)
class Theme:
    """Colours as `#rrggbb`. `runs` has seven colours, in the order in which runs take them.

    The run colours stay at least 23 apart in CIELAB for normal sight and for the three dichromacies
    (Machado, Oliveira, Fernandes 2009) and have a contrast of at least 3:1 against `base`
    (WCAG 2.2, 1.4.11); index by index they are the same hue in both themes, so a run keeps its colour.
    """

    name: Literal["light", "dark"]
    window: str
    base: str
    text: str
    muted: str
    line: str
    accent: str
    info: str
    warning: str
    error: str
    ok: str
    runs: tuple[str, ...]

    @property
    def chosen(self) -> str:
        """The ground of what is chosen."""
        return self.blend(self.accent, 0.15)

    def blend(self, top: str, share: float, below: str = "") -> str:
        """`top` laid over `below` (default: base) with an opacity of `share` (0 to 1)."""
        over, under = QColor(top), QColor(below or self.base)
        pairs = ((over.red(), under.red()), (over.green(), under.green()), (over.blue(), under.blue()))
        return QColor(*(round(share * a + (1 - share) * b) for a, b in pairs)).name()

    @property
    def on_accent(self) -> str:
        """Text on a surface of the accent colour."""
        return self.base

    @property
    def shadow(self) -> str:
        return self.blend("#000000", 0.6)


LIGHT = Theme(
    name="light",
    window="#f4f5f7",
    base="#ffffff",
    text="#1c2430",
    muted="#596473",
    line="#d8dde4",
    accent="#0b6b7d",
    info="#2563b0",
    warning="#915c00",
    error="#b3261e",
    ok="#1a7040",
    runs=("#4742e4", "#983600", "#2b2c35", "#76157a", "#b28813", "#007249", "#0090fe"),
)
DARK = Theme(
    name="dark",
    window="#14181e",
    base="#1b2028",
    text="#e3e7ed",
    muted="#9aa5b4",
    line="#323a46",
    accent="#4fbccf",
    info="#7db2f5",
    warning="#e5b454",
    error="#f5877c",
    ok="#6cc58c",
    runs=("#8272f4", "#dc5a1e", "#d8f7c4", "#c862b0", "#ffd44c", "#1f9f70", "#78f7fa"),
)
# Dash patterns in units of the pen width, for `QPen.setDashPattern`; the empty one is a solid line.
DASHES: tuple[tuple[float, ...], ...] = ((), (6.0, 3.0), (2.0, 2.0), (8.0, 3.0, 2.0, 3.0))
