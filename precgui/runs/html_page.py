"""The part that all pages of HTML have in common."""

from __future__ import annotations

from html import escape

from precgui.sentences import Wording


class HtmlPage:
    """A page in one language."""

    def __init__(self, wording: Wording) -> None:
        self._wording = wording

    def _text(self, text: str) -> str:
        """A text in the language of the page, escaped."""
        return escape(self._wording.shown(text))

    def _head(self, title: str) -> str:
        return f"<h2>{self._text(title)}</h2>"
