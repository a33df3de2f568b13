"""Error > Twins: branches beside a run, and the button that makes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from precgui.gui.panels.inspect.panel import InspectPanel
from precgui.gui.panels.inspect.shadow.error_views import ErrorViews
from precgui.gui.panels.inspect.shadow.twin_view import TwinView
from precgui.gui.session import Session
from precgui.gui.theme import themes
from precgui.places.tasks import TASKS
from precgui.runs.twins import TWINS
from tests.fakes import FakeChild
from tests.gui.conftest import write_run
from tests.runs.test_twins import result


@pytest.fixture
def view(qtbot: QtBot, tmp_path: Path, session: Session, panel: InspectPanel) -> TwinView:
    key = session.runs.open_file(write_run(tmp_path / "one.h5", "one"))
    session.requests.inspect(key, "error")
    views = panel.tab("error")
    assert isinstance(views, ErrorViews)
    views.show_run(key)
    views.choice.choose("Twins")
    return views.twins


def test_that_branches_beside_the_run_are_shown_with_their_verdict(view: TwinView, tmp_path: Path) -> None:
    assert "No branches of this run are kept" in view.verdict.text() and not view.plot.isVisible()
    TWINS.write(TWINS.path(tmp_path / "one.h5", "bf16-pure"), result())
    TWINS.write(TWINS.path(tmp_path / "one.h5", "fp16-amp"), result(low=0.0, precision="fp16-amp"))
    view.refresh()
    assert view.choice.count() == 2 and "bf16-pure is biased" in view.verdict.text()
    assert themes().theme.error in view.verdict.styleSheet()
    assert len(view.plot.low.getData()[0]) == 16 and view.plot.mean.value() == pytest.approx(0.05)
    assert [view.tree.topLevelItem(0).text(column) for column in range(3)] == ["b.weight", "2", "not finite"]
    view.choice.setCurrentIndex(1)
    assert "No bias of fp16-amp" in view.verdict.text()


def test_that_broken_branches_have_no_dots_and_no_mean(view: TwinView, tmp_path: Path) -> None:
    TWINS.write(TWINS.path(tmp_path / "one.h5", "fp16-pure"), result(low=None, precision="fp16-pure"))
    view.refresh()
    assert "breaks" in view.verdict.text() and not view.plot.mean.isVisible()
    assert "16 of 16 branches are not finite" in view.numbers.text()


def test_that_the_button_asks_a_child_process_and_shows_what_it_keeps(
    view: TwinView, tmp_path: Path, children: list[FakeChild]
) -> None:
    view.bar.precision.set("bf16-pure")
    view.bar.button.click()
    path = tmp_path / "one.h5"
    arguments = {"path": str(path), "precision": "bf16-pure", "branches": 16, "steps": 12}
    assert (children[0].task, children[0].arguments) == (
        TASKS["twin"],
        arguments,
    )
    assert view.bar.button.text() == "Stop"
    TWINS.write(TWINS.path(path, "bf16-pure"), result())
    children[0].said.emit({"kind": "kept", "verdict": "bias"})
    children[0].ended.emit("")
    assert "bf16-pure is biased" in view.verdict.text() and view.bar.button.text() == "Branch this run"
    view.bar.button.click()
    children[1].said.emit({"kind": "fault", "message": "the run has 4 steps, too few"})
    children[1].ended.emit("")
    assert "too few" in view.bar.text.text()


def test_that_a_run_is_branched_by_its_button_for_real(
    view: TwinView, tmp_path: Path, session: Session, qtbot: QtBot
) -> None:
    from precgui.cli.main import main

    path = tmp_path / "real.h5"
    settings = ["model.name=mlp", "train.max_steps=40", "device=cpu", "threads=1", "precision=bf16-pure"]
    assert main(["run", "digits-quick", "-o", str(path), "--json", *(f"--set={s}" for s in settings)]) == 0
    view.show_run(session.runs.open_file(path))
    assert view.bar.precision.get() == "bf16-pure"
    view.bar.branches.setValue(10)
    view.bar.steps.setValue(3)
    view.bar.button.click()
    qtbot.waitUntil(lambda: view.result is not None)
    assert [kept.precision for kept in TWINS.all(path)] == ["bf16-pure"]
    assert len(view.plot.low.getData()[0]) == 10
    qtbot.waitUntil(lambda: view.bar.button.text() == "Branch this run")
