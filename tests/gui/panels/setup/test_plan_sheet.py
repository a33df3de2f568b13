"""The plan in Run before Start: the run on shapes, and a transformer by formula."""

from __future__ import annotations

from typing import Any

import pytest
from PySide6.QtWidgets import QPushButton, QTabWidget
from pytestqt.qtbot import QtBot

from precgui.config import RunConfig, load
from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.panels.setup.plan_sheet import FormulaPlan, PlanSheet
from precgui.gui.session import Session
from precgui.places.settings import add_place, command_place
from precgui.places.tasks import TASKS
from precgui.planner.ledger import PARTS
from tests.fakes import FakeChild, formats_of_layers

PLAN: dict[str, Any] = {
    "parts": {f"{part}_bytes": 0 for part in PARTS} | {"weights_bytes": 1 << 20, "activations_bytes": 3 << 20},
    "total_bytes": 4 << 20, "fits": False,
    "memory": {"device_bytes": 2 << 20, "from": "as given", "limit_bytes": 1 << 20},
    "method": "predicted from shapes", "largest_batch": 12, "batch_size": 64, "against_fp32": None,
    "changes": [{"change": "Compute activations again.", "settings": {"train.checkpointing": True},
                 "total_bytes": 1 << 20, "fits": True}],
}  # fmt: skip


def first_change(sheet: PlanSheet) -> QPushButton:
    button = sheet.run_plan.tries.itemAt(0).widget()
    assert isinstance(button, QPushButton)
    return button


@pytest.fixture
def sheet(qtbot: QtBot, children: list[FakeChild]) -> PlanSheet:
    made = PlanSheet(load("digits-quick"), formats_of_layers(Session()))
    qtbot.addWidget(made)
    return made


def test_that_the_plan_of_the_run_is_shown_with_what_to_change(
    sheet: PlanSheet, qtbot: QtBot, children: list[FakeChild]
) -> None:
    sheet.run_plan.ask()
    assert children[-1].task == "precgui.engine.profile.planning:serve"
    sheet.run_plan.take({"kind": "plan", "plan": PLAN})
    assert "It does not fit into 2 MiB (as given)" in sheet.run_plan.answer.text()
    assert sheet.run_plan.chart.accessibleDescription().endswith("Peak 4 MiB")
    with qtbot.waitSignal(sheet.config_requested) as caught:
        first_change(sheet).click()
    changed: RunConfig = caught.args[0]
    assert changed.train.checkpointing is True


def test_that_the_largest_batch_is_searched_by_real_steps_and_goes_into_the_form(
    sheet: PlanSheet, qtbot: QtBot, children: list[FakeChild]
) -> None:
    search = sheet.run_plan.search
    assert not search.search_button.isEnabled()  # the plan says how much memory a step may take
    sheet.run_plan.take({"kind": "plan", "plan": PLAN})
    search.search_button.click()
    task, arguments = children[-1].task, children[-1].arguments
    assert task == "precgui.engine.profile.search:serve"
    assert arguments["limit_bytes"] == 1 << 20
    assert search.search_button.text() == "Cancel the search"
    for batch, fits in ((64, True), (128, False)):
        event = {"kind": "attempt", "batch": batch, "fits": fits, "peak_bytes": batch << 14, "samples_per_s": 10.0}
        search.take(event | {"reason": "" if fits else "its peak is above the limit"})
    rows = [search.table.topLevelItem(row) for row in range(2)]
    assert [row.text(0) + ": " + row.text(3) for row in rows if row] == [
        "64: fits", "128: does not fit: its peak is above the limit",
    ]  # fmt: skip
    found = {"kind": "found", "stopped": False, "batch": 64, "limit_bytes": 1 << 20, "clock": "wall time"}
    search.take(found)
    assert search.state.text().startswith("The largest batch that was tried and fits into 1 MiB: 64.")
    with qtbot.waitSignal(sheet.config_requested) as caught:
        search.use_button.click()
    assert caught.args[0].data.batch_size == 64


def test_that_a_cancelled_search_keeps_what_it_has_found(sheet: PlanSheet, children: list[FakeChild]) -> None:
    search = sheet.run_plan.search
    sheet.run_plan.take({"kind": "plan", "plan": PLAN})
    search.search_button.click()
    search.take({"kind": "attempt", "batch": 32, "fits": True, "peak_bytes": 5, "samples_per_s": 1.0, "reason": ""})
    children[-1].ended.emit("")
    assert search.state.text() == "Cancelled. The largest batch that was tried and fits so far: 32."
    assert search.use_button.text() == "Use a batch of 32"
    assert search.search_button.text() == "Find the largest batch by real steps"


def test_that_what_is_wrong_is_one_sentence(sheet: PlanSheet, children: list[FakeChild]) -> None:
    sheet.run_plan.ask()
    children[-1].said.emit({"kind": "fault", "message": "there is no such device"})
    assert sheet.run_plan.answer.text() == "there is no such device"


def test_that_code_of_the_users_own_is_not_run_for_a_plan(qtbot: QtBot, children: list[FakeChild]) -> None:
    children.clear()
    made = PlanSheet(load("digits-quick", ["task=mine.py:make"]), formats_of_layers(Session()))
    qtbot.addWidget(made)
    made.run_plan.ask()
    assert children == []
    assert "precgui plan" in made.run_plan.answer.text()


def test_that_the_formula_answers_each_change_at_once(qtbot: QtBot) -> None:
    plan = FormulaPlan()
    qtbot.addWidget(plan)
    assert "6.74 billion parameters. It does not fit into 24 GiB." in plan.answer.text()
    assert "Change first" in plan.answer.text()
    plan.counts["lora_rank"].setValue(16)
    plan.choices["base_format"].setCurrentText("nf4")
    assert "It fits into 24 GiB." in plan.answer.text()
    plan.network.setCurrentText("gpt2")
    assert plan.sizes["width"].value() == 768
    assert plan.request().network.parameters == 124_439_808


def test_that_the_plan_opens_from_run_and_a_change_goes_into_the_form(qtbot: QtBot) -> None:
    panel = SetupPanel(Session())
    qtbot.addWidget(panel)
    sheet = panel.plan()
    assert sheet is not None
    sheet.run_plan.take({"kind": "plan", "plan": PLAN})
    first_change(sheet).click()
    own = panel.form.value()
    assert own is not None and own.train.checkpointing is True
    sheet.close()


def test_that_several_ranks_follow_each_change_of_the_link(
    sheet: PlanSheet, qtbot: QtBot, children: list[FakeChild]
) -> None:
    ranks = sheet.ranks
    sheet.show()
    tabs = sheet.findChild(QTabWidget)
    assert tabs is not None
    tabs.setCurrentWidget(ranks)
    assert children[-1].task == "precgui.engine.parallel.forecast:serve"
    ranks.take({"kind": "traffic", "traffic": {"gradient_bytes": 1e6, "pieces": 2, "coded": False}})
    assert len(ranks.table.texts()) == 7  # up to the 64 samples of the batch
    assert ranks.table.texts()[1] == ("2", "977 KiB", "0.88 ms", "1.68 ms")
    ranks.step_ms.setValue(4)
    ranks.link.setCurrentText("1Gb/s")
    assert ranks.table.texts()[1][4:] == ("7.41 ms", "9.41 ms", "21%")
    sheet.run_plan.take({"kind": "plan", "plan": PLAN})
    assert len(ranks.table.titles()) == 11
    ranks.own_batch.setChecked(True)
    assert len(ranks.table.texts()) == 11
    ranks.link.setCurrentText("quick")
    assert "is not the rate of a link" in ranks.answer.text()
    children[-1].said.emit({"kind": "fault", "message": "the bytes of powersgd:4 are not foretold"})
    assert ranks.answer.text() == "the bytes of powersgd:4 are not foretold"


def test_that_all_that_is_planned_is_made_where_the_run_would_train(
    qtbot: QtBot, children: list[FakeChild], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = command_place("box", ["a-command"])
    add_place(place)
    panel = SetupPanel(Session())
    qtbot.addWidget(panel)
    panel.where.read()
    panel.where.choose("box")
    sheet = panel.plan()
    assert sheet is not None
    assert sheet.windowTitle() == "Plan before the run at box"
    sheet.run_plan.take({"kind": "plan", "plan": PLAN})
    sheet.run_plan.search.search_button.click()
    sheet.assignment.find_button.click()
    sheet.tabs.setCurrentWidget(sheet.ranks)
    tasks = {child.task: child.there for child in children}
    assert {there.place.name if there is not None else "" for there in tasks.values()} == {"box"}
    assert len(tasks) == 4 and tasks.keys() <= set(TASKS.values())
    started: list[object] = []
    monkeypatch.setattr(panel.assigned_formats, "verify", lambda seeds, places: started.append(places))
    sheet.assignment.verify()
    assert started == [["box"]]
