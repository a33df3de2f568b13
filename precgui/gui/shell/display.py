"""Whether a window can be opened: a display, and the system libraries that X11 needs and pip does not bring.

Asked before any library of Qt is loaded, which would give up without a cure.
"""

from __future__ import annotations

import os
import shutil
import sys

from precgui.words import L_, _, translated

NO_DISPLAY = L_(
    "precgui: there is no display to open a window on; train with `precgui run`, connect with `ssh -X`, "
    "or start it as `xvfb-run precgui`"
)

# Library, package of Debian and Ubuntu, of Fedora, of Arch; the same table as packaging/system-libraries.sh has.
_X11 = (
    ("libX11-xcb.so.1", "libx11-xcb1", "libX11-xcb", "libx11"),
    ("libxkbcommon-x11.so.0", "libxkbcommon-x11-0", "libxkbcommon-x11", "libxkbcommon-x11"),
    ("libxcb-cursor.so.0", "libxcb-cursor0", "xcb-util-cursor", "xcb-util-cursor"),
    ("libxcb-icccm.so.4", "libxcb-icccm4", "xcb-util-wm", "xcb-util-wm"),
    ("libxcb-image.so.0", "libxcb-image0", "xcb-util-image", "xcb-util-image"),
    ("libxcb-keysyms.so.1", "libxcb-keysyms1", "xcb-util-keysyms", "xcb-util-keysyms"),
    ("libxcb-randr.so.0", "libxcb-randr0", "libxcb", "libxcb"),
    ("libxcb-render-util.so.0", "libxcb-render-util0", "xcb-util-renderutil", "xcb-util-renderutil"),
    ("libxcb-shape.so.0", "libxcb-shape0", "libxcb", "libxcb"),
    ("libxcb-xkb.so.1", "libxcb-xkb1", "libxcb", "libxcb"),
)
_INSTALLERS = (("apt-get", "apt install", 1), ("dnf", "dnf install", 2), ("pacman", "pacman -S", 3))


def why_no_window() -> str:
    """One sentence with the cure where no window can be opened; empty where one can."""
    if not has_display():
        return translated(NO_DISPLAY)
    missing = missing_libraries()
    return cure(missing) if missing else ""


def has_display() -> bool:
    """Whether Qt could find a screen. Only on Linux is that known beforehand."""
    names = ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in names)


def missing_libraries() -> list[tuple[str, ...]]:
    """The rows of the table whose library cannot be loaded; none where Qt will not open a window on X11."""
    platform = os.environ.get("QT_QPA_PLATFORM", "")
    on_x11 = platform.startswith("xcb") or (not platform and os.environ.get("DISPLAY"))
    if not sys.platform.startswith("linux") or not on_x11:
        return []
    return [row for row in _X11 if not _loads(row[0])]


def cure(missing: list[tuple[str, ...]]) -> str:
    """One sentence that names the packages to install, or the libraries where no installer is known."""
    for program, command, column in _INSTALLERS:
        if shutil.which(program):
            packages = " ".join(dict.fromkeys(row[column] for row in missing))
            return _(
                "precgui: Qt cannot open a window without system libraries; install them: {command} {packages}"
            ).format(command=command, packages=packages)
    names = ", ".join(row[0] for row in missing)
    return _("precgui: Qt cannot open a window without these system libraries, install them: {names}").format(
        names=names
    )


def _loads(library: str) -> bool:
    import ctypes  # where Qt opens no window on X11, nothing is asked

    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
