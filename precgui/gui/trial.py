"""The settings of a run with a change, put into Run to be tried."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from PySide6.QtWidgets import QPushButton

from precgui.config import ConfigError, change
from precgui.gui.kit.parts import button
from precgui.gui.open_run import Problem
from precgui.gui.session import Session
from precgui.words import L_, _, error_text, translated

PAIRS = 5  # the first number of seeds with verdicts
_TIP = L_("Put the settings of this run with this change into Run")
_PAIRS_TIP = L_(
    "Set up a study in Run that trains with and without this change, by the same seeds; Compare > Groups then shows "
    "what the change does"
)


def trial_button(changes: Mapping[str, Any], session: Session, key: str | None) -> QPushButton:
    """A button that does `try_settings`."""
    text = ", ".join(f"{path} = {value}" for path, value in changes.items())
    return button(
        _("Try {settings}").format(settings=text), lambda: try_settings(session, key, changes), translated(_TIP)
    )


def pairs_button(changes: Mapping[str, Any], session: Session, key: str | None) -> QPushButton:
    """A button that does `measure_in_pairs`."""
    return button(_("Measure in pairs"), lambda: measure_in_pairs(session, key, changes), translated(_PAIRS_TIP))


def measure_in_pairs(session: Session, key: str | None, changes: Mapping[str, Any]) -> None:
    """Set up a study of an open run in Run: its precision, with the values that it had and those of a change."""
    opened = session.runs.get(key or "")
    if opened is None:
        return
    config = opened.run.config
    vary = {path: (attrgetter(path)(config), value) for path, value in changes.items()}
    session.requests.set_up_study(config, opened.name, [config.precision], PAIRS, vary)


def try_settings(session: Session, key: str | None, changes: Mapping[str, Any]) -> None:
    """Put the config of an open run with other values into Run; a change that it cannot take becomes a notice."""
    opened = session.runs.get(key or "")
    if opened is None:
        return
    try:
        changed = change(opened.run.config, [f"{path}={value}" for path, value in changes.items()])
    except ConfigError as error:
        session.notice.emit(Problem(error_text(error)))
    else:
        session.requests.set_up(changed, opened.name)
