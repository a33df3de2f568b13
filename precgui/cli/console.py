"""Rich's console for texts that files say."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from precgui.sanitize import sanitize


class HarmlessConsole(Console):
    """A console that shows control characters in its texts; markup in them is escaped by who prints.

    Cells that may wrap are never cut: a text without spaces, such as a Chinese one, is folded where its column ends.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Table):
            for column in renderable.columns:
                column.overflow = "fold" if column.overflow == "ellipsis" and not column.no_wrap else column.overflow
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(sanitize(segment.text), segment.style)
