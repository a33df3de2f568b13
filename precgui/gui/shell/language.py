"""The language of the window: chosen before its first text, changed by a new start that keeps session and runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from PySide6.QtCore import QLibraryInfo, QLocale, QTranslator
from PySide6.QtWidgets import QApplication, QMessageBox, QWidget

from precgui import words
from precgui.gui.kit.measures import readable
from precgui.gui.kit.plain_text import PlainMessageBox
from precgui.words import _


def asked_language(setting: str) -> str:
    """The language for a setting of CHOICES; PRECGUI_LANGUAGE goes first. Raises SentenceError where it names none."""
    asked = os.environ.get(words.VARIABLE, "")
    if asked and asked != "system":
        return words.checked_language(asked)
    return words.language_of(QLocale.system().uiLanguages()) if setting == "system" else setting


def use_language(app: QApplication, setting: str) -> None:
    """Choose the language of every text that follows, of Qt's own dialogs too, and fonts that have its characters."""
    words.use(asked_language(setting))
    if words.language() != "zh_CN":
        return
    translator = QTranslator(app)
    if translator.load("qtbase_zh_CN", QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath)):
        app.installTranslator(translator)
    app.setFont(readable(app.font()))


def ask_to_restart(window: QWidget, setting: str) -> QMessageBox | None:
    """The question whether to start again in another language, open; None where PRECGUI_LANGUAGE has decided."""
    if os.environ.get(words.VARIABLE, "system") != "system":
        text = _("PRECGUI_LANGUAGE decides the language of this window.")
        more = _("Your choice is kept for windows that start without this variable.")
        box = PlainMessageBox(window, _("Language"), text, more)
        box.setStandardButtons(QMessageBox.StandardButton.Close)
        box.open()
        return None
    text = _("precgui starts again to change its language.")
    more = _("Open runs, the study and this place come back; recorded runs stay as they are.")
    box = PlainMessageBox(window, _("Language"), text, more)
    box.addButton(_("Start again now"), QMessageBox.ButtonRole.AcceptRole)
    box.addButton(_("At the next start"), QMessageBox.ButtonRole.RejectRole)
    box.open()
    return box


def restart_command(original: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """The command line of this process without the files and options behind its name: the session brings the files.

    Args: `sys.orig_argv` and `sys.argv`.
    """
    return [sys.executable, *original[1 : len(original) - len(arguments) + 1]]


def start_again() -> None:
    """Put a new window in the place of this process, which has closed its own."""
    command = restart_command(sys.orig_argv, sys.argv)
    sys.stdout.flush()
    if sys.platform == "win32":
        import subprocess  # not before the first paint

        subprocess.Popen(command)
    else:
        os.execv(command[0], command)
