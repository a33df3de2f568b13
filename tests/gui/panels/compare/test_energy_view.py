"""Compare > Groups > Energy: joules of a study beside what was expected, and their cost at a price that one writes."""

from __future__ import annotations

from pathlib import Path

from pytestqt.qtbot import QtBot

from precgui.gui.panels.compare.groups import ENERGY, GroupsView
from precgui.gui.panels.setup.panel import SetupPanel
from precgui.gui.panels.setup.study_form import IDLE_S
from precgui.gui.session import Session
from precgui.runs.report.content import report_content
from precgui.runs.study.groups import make_study
from tests.runs.study.sample_runs import arm
from tests.sweeps.sample_sweep import small_sweep, write_member


def test_that_a_study_without_a_sensor_says_why(qtbot: QtBot, tmp_path: Path) -> None:
    folder = small_sweep(tmp_path, seeds=1, twins=0)
    for member in folder.plan.members:
        write_member(folder, member)
    session = Session()
    view = GroupsView(session)
    qtbot.addWidget(view)
    view.show()
    view.view.choose(ENERGY)
    session.study.open(folder.path)
    qtbot.waitUntil(lambda: view.report_content is not None)
    assert view.energy.note.text().startswith("The energy was not measured, because no sensor was read in this run.")
    assert (
        "energy of a run",
        *["not measured"] * 2,  # the reason stands above, once
    ) in view.energy.table.texts()


def test_that_a_price_adds_costs_to_the_table_and_to_the_report(qtbot: QtBot) -> None:
    runs = [
        *arm("fp32", [0.9] * 5, energy_j=3.6e6, joules_per_sample=1.0, power_w=200.0, idle_w=50.0),
        *arm("bf16-amp", [0.9] * 5, energy_j=1.8e6, joules_per_sample=0.5, power_w=200.0, idle_w=50.0),
    ]
    view = GroupsView(Session())
    qtbot.addWidget(view)
    view.energy.show_content(report_content(make_study(runs), runs, title="", command=""))
    view.energy.price.setText("0.40 EUR")
    assert ("cost of a run at 0.4 EUR per kWh", "0.4 EUR", "0.2 EUR") in view.energy.table.texts()
    assert view.report.content is not None
    assert dict(view.report.content.energy.rows)["cost of a run at 0.4 EUR per kWh"] == ("0.4 EUR", "0.2 EUR")
    view.energy.price.setText("cheap")
    assert view.energy.fault.text().startswith("'cheap' is no price of a kilowatt-hour")
    assert not [row for row in view.energy.table.texts() if row[0].startswith("cost")]


def test_that_run_sets_up_an_energy_study(qtbot: QtBot) -> None:
    setup = SetupPanel(Session())
    qtbot.addWidget(setup)
    setup.show_tab("study")
    setup.study.energy_button.click()
    assert set(setup.study.chosen()) == {"fp32", "bf16-amp", "fp16-amp"}
    assert setup.form.value().power.idle_s == IDLE_S
