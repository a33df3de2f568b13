"""The window. PySide6 and pyqtgraph are imported below this package only."""
