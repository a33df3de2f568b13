"""The formats panel: what the bits of a number mean, one tab for each way of looking at it."""

from precgui.gui.panels.formats.panel import FormatsPanel

__all__ = ["FormatsPanel"]
