"""Recording of a training loop that precgui does not run itself."""

from precgui.record.recorder import Recorder

__all__ = ["Recorder"]
