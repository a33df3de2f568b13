"""The window. PySide6 and pyqtgraph are imported below this package only.

No Qt library is loaded here: the entry first checks that there is a display.
"""

from precgui.gui.override_guard import guard_overrides

guard_overrides()
