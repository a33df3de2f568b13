"""Formats of layers in Run > Plan: found, verified by a study, put into the form."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pytestqt.qtbot import QtBot

from precgui.config import RunConfig, build, load
from precgui.gui.panels.setup.assign_view import AssignView
from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.session import Session
from precgui.runs.verdict.judge import Verdict
from precgui.sweeps.folder import create_sweep
from precgui.sweeps.spec import make_spec
from tests.fakes import FakeChild, formats_of_layers

LONG_MS = 480_000  # on a machine that may be busy
SMALL = ["model.name=mlp", "train.max_steps=10", "device=cpu", "threads=1"]
PLAN = {"layers": {"1": "bf16", "3": "e2m1"}, "bits": 7.5, "rise": 0.01, "noise": 0.02, "above_noise": False}


def found(config: RunConfig) -> dict[str, Any]:
    options = {"layers": PLAN["layers"], "gradients": "fp32", "products": "layers"}
    planned = build(config.model_dump() | {"precision": "emulated:fp32", "precision_options": options})
    scores = {"1": {"bf16": 1e-6, "e2m1": 0.1}, "3": {"bf16": 1e-7, "e2m1": 1e-3}}
    assignment = PLAN | {
        "loss_rise": 0.01, "scores": scores, "weights": {"1": 4096, "3": 2048},
        "uniform": {"bf16": PLAN | {"bits": 16.0}, "e2m1": PLAN | {"bits": 4.0, "rise": 0.3, "above_noise": True}},
    }  # fmt: skip
    return {"kind": "assigned", "config": planned.model_dump(), "assignment": assignment}


@pytest.fixture
def session(qtbot: QtBot, tmp_path: Path) -> Session:
    made = Session()
    made.set_folder(tmp_path)
    return made


@pytest.fixture
def view(qtbot: QtBot, session: Session) -> AssignView:
    made = AssignView(load("digits-quick", SMALL), formats_of_layers(session))
    qtbot.addWidget(made)
    made.resize(900, 500)
    made.show()
    return made


def test_that_the_search_is_asked_with_formats_and_budget_and_its_plan_is_a_table(
    view: AssignView, children: list[FakeChild]
) -> None:
    view.formats.setText("bf16, e2m1,")
    view.kind.set("loss")
    assert view.budget.value() == 0.05
    view.budget.setValue(0.1)
    assert not view.verify_button.isEnabled()
    view.find_button.click()
    task, arguments = children[-1].task, children[-1].arguments
    assert task == "precgui.engine.assignment.serving:serve" and view.find_button.text() == "Stop"
    assert arguments["formats"] == ["bf16", "e2m1"] and (arguments["kind"], arguments["budget"]) == ("loss", 0.1)
    children[-1].said.emit(found(load("digits-quick", SMALL)))
    children[-1].ended.emit("")
    rows = [view.table.topLevelItem(row) for row in range(view.table.topLevelItemCount())]
    assert [[row.text(column) for column in range(3)] for row in rows] == [
        ["1", "4 096", "bf16"],
        ["3", "2 048", "e2m1"],
    ]
    assert "7.5 bits a weight" in view.answer.text() and "within the noise" in view.answer.text()
    assert view.verify_button.isEnabled() and not view.use_button.isEnabled()


def test_that_formats_that_keep_no_loss_are_not_offered_as_if_they_were_good(view: AssignView) -> None:
    event = found(load("digits-quick", SMALL))
    view.take(event)
    assert view.verify_button.text() == "Verify by a study"
    sentence = "No plan within 6 bits a weight keeps the held-out loss of FP32, 0.06: the best one raises it by 3."
    view.take({**event, "assignment": {**event["assignment"], "over_budget": sentence}})
    assert sentence in view.answer.text()
    assert view.verify_button.text() == "Verify anyway"


def test_that_a_fault_of_the_search_is_its_sentence(view: AssignView, children: list[FakeChild]) -> None:
    view.find_button.click()
    children[-1].said.emit({"kind": "fault", "message": "3 bits a weight are too few"})
    children[-1].ended.emit("")
    assert view.answer.text() == "3 bits a weight are too few" and not view.verify_button.isEnabled()


@pytest.mark.parametrize(("word", "usable"), [("met", True), ("undecided", False), ("missed", False)])
def test_that_only_formats_that_keep_the_metric_can_be_used(
    view: AssignView, session: Session, monkeypatch: pytest.MonkeyPatch, word: Any, usable: bool
) -> None:
    specs: list[Any] = []

    def start(spec: Any, folder: Path, targets: Any = None, places: Any = ()) -> bool:
        session.study.folder = folder
        specs.append(spec)
        return True

    monkeypatch.setattr(session.study, "start", start)
    monkeypatch.setattr(session.study, "read_groups", lambda: session.study.groups_read.emit())
    view.take(found(load("digits-quick", SMALL)))
    view.seeds.setValue(3)
    view.verify_button.click()
    assert specs[0].seeds == 3 and specs[0].precisions == ["fp32", "emulated:fp32"]
    group = SimpleNamespace(precision="emulated:fp32", verdicts={"accuracy_lost": Verdict("accuracy_lost", word, n=3)})
    session.study.groups = SimpleNamespace(study=SimpleNamespace(groups=[group]))
    session.study.changed.emit()
    assert view.use_button.isEnabled() is usable
    assert ("Verified" if usable else f"is {word}") in view.answer.text()
    used: list[RunConfig] = []
    view.config_requested.connect(used.append)
    view.use_button.click()
    assert [config.precision_options.layers for config in used] == ([PLAN["layers"]] if usable else [])


def test_that_another_study_says_nothing_about_the_formats(view: AssignView, session: Session) -> None:
    view.take(found(load("digits-quick", SMALL)))
    before = view.answer.text()
    session.study.groups_read.emit()
    assert view.answer.text() == before


def test_that_formats_are_found_and_verified_for_real(view: AssignView, session: Session, qtbot: QtBot) -> None:
    view.formats.setText("bf16, e4m3fn")
    view.budget.setValue(12)
    view.seeds.setMinimum(1)  # no verdict, but each seed more is two processes that import torch
    view.seeds.setValue(1)
    view.find_button.click()
    qtbot.waitUntil(lambda: view.verify_button.isEnabled(), timeout=LONG_MS)
    assert {view.table.topLevelItem(0).text(2), view.table.topLevelItem(1).text(2)} <= {"bf16", "e4m3fn"}
    view.verify_button.click()
    qtbot.waitUntil(lambda: "erified: " in view.answer.text(), timeout=LONG_MS)
    assert "with 1 seeds" in view.answer.text() and not view.use_button.isEnabled()


def test_that_the_formats_are_a_page_of_the_plan_and_fill_the_form(
    qtbot: QtBot, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = SetupPanel(session)
    qtbot.addWidget(panel)
    monkeypatch.setattr("precgui.gui.panels.setup.plan_sheet.RunPlan.ask", lambda self: None)
    sheet = panel.plan()
    assert sheet is not None
    assert [sheet.tabs.tabText(page) for page in range(3)][1] == "Formats of layers"
    planned = build(found(load("digits-quick", SMALL))["config"])
    sheet.assignment.config_requested.emit(planned)
    assert panel.form.value() == planned
    sheet.close()


def judged(monkeypatch: pytest.MonkeyPatch, session: Session, word: Any) -> None:
    """Let the study of the session end at once with a verdict."""

    def start(spec: Any, folder: Path, targets: Any = None, places: Any = ()) -> bool:
        session.study.folder = folder
        return True

    group = SimpleNamespace(precision="emulated:fp32", verdicts={"accuracy_lost": Verdict("accuracy_lost", word, n=5)})
    monkeypatch.setattr(session.study, "start", start)
    monkeypatch.setattr(session.study, "read_groups", lambda: session.study.groups_read.emit())
    session.study.groups = SimpleNamespace(study=SimpleNamespace(groups=[group]))


def test_that_formats_that_are_verified_after_the_sheet_was_closed_are_told_and_can_still_be_used(
    qtbot: QtBot, session: Session, monkeypatch: pytest.MonkeyPatch, children: list[FakeChild]
) -> None:
    panel = SetupPanel(session)
    qtbot.addWidget(panel)
    monkeypatch.setattr("precgui.gui.panels.setup.plan_sheet.RunPlan.ask", lambda self: None)
    judged(monkeypatch, session, "met")
    notices: list[str] = []
    session.notice.connect(lambda problem: notices.append(problem.message))
    panel.form.set_value(load("digits-quick", SMALL))
    sheet = panel.plan()
    assert sheet is not None
    sheet.assignment.formats.setText("bf16, e2m1")
    sheet.assignment.kind.set("loss")
    sheet.assignment.budget.setValue(0.125)
    sheet.assignment.toggle()
    children[-1].ended.emit("")
    sheet.assignment.take(found(load("digits-quick", SMALL)))
    sheet.assignment.verify_button.click()
    sheet.close()
    session.study.changed.emit()
    assert notices == ["The formats of layers are verified; Run > Plan > Formats of layers puts them into the form."]
    again = panel.plan()
    assert again is not None
    view = again.assignment
    assert view.answer.text().startswith("Verified: with 5 seeds") and "7.5 bits a weight" in view.answer.text()
    assert view.table.topLevelItem(0).text(2) == "bf16"
    assert (view.formats.text(), view.kind.get(), view.budget.value()) == ("bf16, e2m1", "loss", 0.125)
    view.use_button.click()
    value = panel.form.value()
    assert value is not None and value.precision_options.layers == PLAN["layers"]
    again.close()


def test_that_formats_found_for_other_settings_say_so(qtbot: QtBot, session: Session) -> None:
    formats = formats_of_layers(session)
    formats.take(load("digits-quick", SMALL), *_planned())
    view = AssignView(load("digits-quick", [*SMALL, "optimizer.lr=0.01"]), formats)
    qtbot.addWidget(view)
    assert "They were found for other settings" in view.answer.text()


def _planned() -> tuple[RunConfig, dict[str, Any]]:
    event = found(load("digits-quick", SMALL))
    return build(event["config"]), event["assignment"]


def test_that_a_study_of_formats_that_is_opened_gives_them_back(
    view: AssignView, session: Session, tmp_path: Path, qtbot: QtBot
) -> None:
    planned = _planned()[0]
    create_sweep(tmp_path / "study", make_spec(planned, ["fp32", planned.precision], 2, twins=0))
    session.study.open(tmp_path / "study")
    qtbot.waitUntil(lambda: view.table.topLevelItemCount() == 2)
    qtbot.waitUntil(lambda: "not judged" in view.answer.text() or "Not verified" in view.answer.text())
    assert [view.table.topLevelItem(row).text(2) for row in range(2)] == ["bf16", "e2m1"]
    assert view.verify_button.isEnabled() and not view.use_button.isEnabled()
