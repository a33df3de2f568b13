"""The record of a training loop of one's own."""

from precgui.record.recorder import Recorder

__all__ = ["Recorder"]
