"""Settings that the window keeps between two starts: a small INI file, repaired field by field when it is broken."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PySide6.QtCore import QByteArray, QSettings

from precgui.paths import state_dir
from precgui.words import CHOICES, L_

RECENT_LIMIT = 10


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value


def _flag(value: object) -> bool:
    if str(value).lower() not in ("true", "false"):
        raise ValueError("neither true nor false")
    return str(value).lower() == "true"


def _mode(value: object) -> str:
    if value not in ("system", "light", "dark"):
        raise ValueError("not system, light or dark")
    return str(value)


def _language(value: object) -> str:
    if value not in CHOICES:
        raise ValueError("not a language that there is")
    return str(value)


def _texts(value: object) -> list[str]:
    entries = [value] if isinstance(value, str) else value or []  # Qt keeps an empty list as nothing
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise ValueError("not a list of texts")
    return [entry for entry in entries if entry]


def _styles(value: object) -> list[str]:
    """Colour, dash and id of a run each."""
    entries = _texts(value)
    if not all(len(parts := entry.split(" ", 2)) == 3 and "".join(parts[:2]).isdecimal() for entry in entries):
        raise ValueError("not colours of runs")
    return entries


def _bytes(value: object) -> bytes:
    if not isinstance(value, QByteArray):
        raise ValueError("not a byte array")
    return bytes(value.data())


FIELDS: dict[str, tuple[Callable[[object], Any], Any]] = {
    "window/geometry": (_bytes, b""),
    "window/panel": (_text, "setup"),
    "window/tab": (_text, ""),
    "window/narrow_navigation": (_flag, False),
    "window/theme": (_mode, "system"),
    "window/language": (_language, "system"),
    "files/recent": (_texts, []),
    "files/runs_folder": (_text, ""),
    "files/last_folder": (_text, ""),
    "session/files": (_texts, []),
    "session/current": (_text, ""),
    "session/baseline": (_text, ""),
    "session/study": (_text, ""),
    "session/styles": (_styles, []),
    "setup/config": (_text, ""),
    "first_run/seen": (_flag, False),
}


class Settings:
    """Typed access to the fields above. `repaired` names the fields that were unreadable and are back at their default.

    `fresh` starts from the defaults and leaves the file alone until something is set.
    """

    def __init__(self, path: Path | None = None, *, fresh: bool = False) -> None:
        self.path = path or state_dir() / "settings.ini"
        self._store = QSettings(str(self.path), QSettings.Format.IniFormat)
        self._values: dict[str, Any] = {}
        self.repaired: list[str] = []
        damaged = self._store.status() == QSettings.Status.FormatError
        for name, (read, default) in FIELDS.items():
            self._values[name] = default
            if fresh or not self._store.contains(name):
                continue
            try:
                self._values[name] = read(self._store.value(name))
            except ValueError:
                self.repaired.append(name)
        if damaged:
            self.repaired.append(L_("the file itself"))
        if self.repaired:
            self._repair()

    def _repair(self) -> None:
        """Keep the broken file beside the repaired one."""
        if self.path.is_file():
            shutil.copyfile(self.path, self.path.with_suffix(".broken.ini"))
        for name in self.repaired:
            self._store.remove(name)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a known field; raises ValueError when the value is not of its kind."""
        read, _ = FIELDS[name]
        stored = QByteArray(value) if isinstance(value, bytes) else value
        self._values[name] = read(stored)
        self._store.setValue(name, stored)

    def remember_file(self, path: Path) -> None:
        """Put a run file on top of the recent files."""
        entry = str(path.resolve())
        others = [known for known in self["files/recent"] if known != entry]
        self["files/recent"] = [entry, *others][:RECENT_LIMIT]
        self["files/last_folder"] = str(path.resolve().parent)

    def save(self) -> bool:
        """Write to disk now; False when the folder does not allow it."""
        self._store.sync()
        return self._store.status() != QSettings.Status.AccessError
