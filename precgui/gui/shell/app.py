"""The entry to the window: checks that there is a display before any Qt library is loaded."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

from precgui.gui.shell.system_libraries import cure, missing_libraries
from precgui.words import L_, translated

NO_DISPLAY = L_(
    "precgui: there is no display to open a window on; train with `precgui run`, connect with `ssh -X`, "
    "or start it as `xvfb-run precgui`"
)


def run_app(files: list[Path], *, fresh: bool = False) -> int:
    """Open the window with these run files; the exit code comes when it is closed.

    `fresh` ignores the remembered settings. Without a display: one sentence on stderr, and exit code 2.
    """
    if not has_display():
        sys.stderr.write(translated(NO_DISPLAY) + "\n")
        return 2
    if missing := missing_libraries():
        sys.stderr.write(cure(missing) + "\n")
        return 2
    gc.disable()  # the window collects by a timer (`startup.GcTimer`)
    from precgui.gui.shell.startup import open_window

    return open_window(files, fresh=fresh)


def has_display() -> bool:
    """Whether Qt could find a screen. Only on Linux is that known beforehand."""
    names = ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in names)
