"""Rich's console for texts that files say."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from precgui.sanitize import sanitize


class HarmlessConsole(Console):
    """A console that shows control characters in its texts; markup in them is escaped by who prints."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(sanitize(segment.text), segment.style)
