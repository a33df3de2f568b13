"""precgui: see what numeric precision does to your training on your machine."""

__version__ = "0.1.0"
