"""The form of a study leads to the claims of guides that it tests."""

from __future__ import annotations

from pytestqt.qtbot import QtBot

from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.session import Session


def test_that_the_form_of_a_study_leads_to_the_claims(qtbot: QtBot) -> None:
    session = Session()
    panel = SetupPanel(session)
    qtbot.addWidget(panel)
    panel.show_tab("study")
    with qtbot.waitSignal(session.requests.place) as led:
        panel.study.claims_button.click()
    assert led.args == ["compare/claims"]
