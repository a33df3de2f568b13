"""The panel Inspect in a window of its usual size."""

from __future__ import annotations

import pytest
from pytestqt.qtbot import QtBot

from precgui.gui.panels.inspect.panel import InspectPanel
from precgui.gui.session import Session


@pytest.fixture
def session(qtbot: QtBot) -> Session:
    return Session()


@pytest.fixture
def panel(qtbot: QtBot, session: Session) -> InspectPanel:
    made = InspectPanel(session)
    qtbot.addWidget(made)
    made.resize(1100, 700)
    made.show()
    qtbot.waitExposed(made)
    return made
