"""A study of the bundled digits that really trains: from Run to a verdict in three clicks."""

from __future__ import annotations

from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from precgui import config
from precgui.gui.panels.compare.panel import ComparePanel
from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.session import Session
from precgui.gui.shell.window import Window
from precgui.sweeps.folder import SweepFolder

SEEDS = 1  # no verdict on accuracy, but on memory; each seed more is three processes that import torch
LONG_MS = 480_000  # on a machine that may be busy


def test_that_three_clicks_lead_to_verdicts_of_runs_that_trained(qtbot: QtBot, window: Window) -> None:
    window.attach(Session())
    session, setup = window.session, window.host.load("setup")
    assert isinstance(setup, SetupPanel)
    assert session is not None
    window.show_panel("setup")
    settings = ["model.name=mlp", "train.max_steps=6", "train.epochs=1", "device=cpu", "threads=1"]
    setup.form.set_value(config.load("digits-quick", settings))
    setup.study.seeds.setValue(SEEDS)

    qtbot.mouseClick(setup.kind.buttons["Study"], Qt.MouseButton.LeftButton)
    qtbot.mouseClick(setup.start_button, Qt.MouseButton.LeftButton)
    assert window.host.current == "live"
    qtbot.waitUntil(lambda: not session.study.is_running, timeout=LONG_MS)
    qtbot.mouseClick(window.navigation.buttons["compare"], Qt.MouseButton.LeftButton)

    compare = window.host.panels["compare"]
    assert isinstance(compare, ComparePanel)
    view = compare.groups
    qtbot.waitUntil(lambda: bool(view.figures.verdicts.texts()))
    assert session.study.folder is not None
    states = SweepFolder(session.study.folder).states()
    assert {state.status for state in states} == {"completed"}
    assert sum(state.member.kind == "run" for state in states) == 2 * SEEDS
    assert sum(state.member.kind == "twin" for state in states) == SEEDS
    content = view.report_content
    assert content is not None
    group = next(group for group in content.study.groups if group.group == "bf16-amp")
    assert group.n == SEEDS
    assert group.verdicts["accuracy_lost"].why == "one seed: not a measurement of accuracy"
    assert group.verdicts["memory_saved"].verdict in ("met", "missed")
    assert group.verdicts["memory_saved"].value is not None
    assert view.answer.text() == content.answer
    assert content.answer == "Not decided: one seed of each is no measurement; more seeds decide."
