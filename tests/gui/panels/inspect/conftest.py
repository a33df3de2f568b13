"""The panel Inspect in a window of its usual size."""

from __future__ import annotations

import pytest
from pytestqt.qtbot import QtBot

from precgui.gui.panels.inspect.panel import InspectPanel
from precgui.gui.session import Session


def lead_to_tabs(panel: InspectPanel, session: Session) -> None:
    """Let the tabs that are asked for be shown, as the window does."""
    session.requests.place.connect(
        lambda place: panel.show_tab(place.removeprefix("inspect/")) if "/" in place else None
    )


@pytest.fixture
def session(qtbot: QtBot) -> Session:
    return Session()


@pytest.fixture
def panel(qtbot: QtBot, session: Session) -> InspectPanel:
    made = InspectPanel(session)
    qtbot.addWidget(made)
    lead_to_tabs(made, session)
    made.resize(1100, 700)
    made.show()
    qtbot.waitExposed(made)
    return made
