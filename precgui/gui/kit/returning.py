"""Panels to which Back can return: each tells its place and can show it again."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from PySide6.QtCore import SignalInstance


@runtime_checkable
class Returning(Protocol):
    """`place` is a tab by name and a view in it, such as a zoom. Another tab is another place, another view is not."""

    @property
    def place_changed(self) -> SignalInstance: ...

    def place(self) -> tuple[str, object]: ...

    def return_to(self, tab: str, view: object) -> None: ...


def show_place(panel: object, tab: str, view: object = None) -> None:
    """Show a place in a panel, where it is one to which Back returns."""
    if isinstance(panel, Returning):
        panel.return_to(tab, view)
