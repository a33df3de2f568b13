"""Bundled examples in the window: the way to open one, and their menu for places that are empty."""

from __future__ import annotations

from functools import partial

from precgui.examples import EXAMPLES, Example
from precgui.gui.kit.empty_state import EmptyState
from precgui.gui.session import Session
from precgui.words import _, translated


def open_example(session: Session, each: Example, panel: str = "") -> None:
    """Show an example: a run in this panel or else in Diagnose, a study in Compare."""
    if each.is_study:
        session.open_study(each.path)
    elif (key := session.runs.open_file(each.path)) is not None:
        session.runs.choose(key)
        session.requests.go(panel or f"diagnose/{key}")


def offer_examples(empty: EmptyState, session: Session, panel: str = "") -> None:
    """Let an empty place open the examples; runs are shown in this panel."""
    empty.offer(
        _("Open an example"),
        [
            (translated(each.short_title), translated(each.about), partial(open_example, session, each, panel))
            for each in EXAMPLES
        ],
    )
