"""Steps made again from Inspect: which are offered, what the child process is asked for, and both for real."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from precgui.config import RunConfig, load
from precgui.events import RunStarted, StepDone
from precgui.gui.panels.inspect.panel import InspectPanel
from precgui.gui.panels.inspect.shadow.error_views import ErrorViews
from precgui.gui.panels.inspect.step.step_tab import StepTab
from precgui.gui.replay_bar import COMPARE, REPLAY
from precgui.gui.run_task import STOP
from precgui.gui.session import Session
from precgui.job import Job
from precgui.places.tasks import TASKS
from precgui.runs.file.reader import open_run
from precgui.runs.layer_errors import LAYERS
from precgui.runs.replays import REPLAYS, first_bad_step, last_step, repeating_s, snapshot_path
from tests.fakes import FakeChild
from tests.gui.conftest import write_run
from tests.gui.panels.inspect.test_error_tab import replay
from tests.runs.synthetic import live_run, open_writer, synthetic_events

SETTINGS = ["model.name=mlp", "train.max_steps=6", "device=cpu", "threads=1", "precision=bf16-amp"]
LONG_MS = 480_000  # on a machine that may be busy


def views_of(panel: InspectPanel, session: Session, key: str | None) -> ErrorViews:
    assert key is not None
    session.requests.inspect(key, "error")
    views = panel.tab("error")
    assert isinstance(views, ErrorViews)
    views.show_run(key)
    return views


@pytest.fixture
def views(tmp_path: Path, session: Session, panel: InspectPanel) -> ErrorViews:
    return views_of(panel, session, session.runs.open_file(write_run(tmp_path / "one.h5", "one")))


def test_that_the_last_step_is_offered_at_first_and_every_other_can_be_chosen(views: ErrorViews) -> None:
    bar = views.lines.bar
    assert (bar.step.minimum(), bar.step.maximum(), bar.step.value()) == (1, 4, 4)
    assert bar.bad_button.isHidden() and bar.button.isEnabled()
    assert bar.text.text().startswith("The run is trained again up to step 4, in about ")
    bar.step.setValue(1)
    bar.last_button.click()
    assert bar.step.value() == 4


def test_that_a_snapshot_needs_no_training(views: ErrorViews, tmp_path: Path) -> None:
    with open_run(tmp_path / "one.h5") as run:
        assert last_step(run) == 4
        before = repeating_s(run, 4, 1.0)
        snapshot_path(tmp_path / "one.h5", 4).write_bytes(b"")
        assert before - repeating_s(run, 4, 1.0) == pytest.approx(3 * 0.09)
    views.lines.refresh()
    assert views.lines.bar.text.text().startswith("Step 4 is made from its snapshot, in about ")


def test_that_the_first_bad_step_is_found_in_losses_and_norms() -> None:
    def first_bad(loss: float, grad_norm: float) -> int | None:
        rest, costs = (1.0, False, 0.1), (0.01, 0.001, 64, math.nan)
        fine, bad = StepDone(1, 0.1, 1.0, *rest, 1.0, *costs), StepDone(2, 0.2, loss, *rest, grad_norm, *costs)
        return first_bad_step(live_run([RunStarted(0.05, 2, 2, "cpu", {}), fine, bad]))

    assert first_bad(1.0, 1.0) is None
    assert first_bad(math.nan, 1.0) == first_bad(1.0, math.inf) == 2


def test_that_the_button_asks_for_the_step_says_how_far_it_is_and_shows_it(
    views: ErrorViews, tmp_path: Path, children: list[FakeChild]
) -> None:
    path, bar = tmp_path / "one.h5", views.lines.bar
    REPLAYS.keep(path, replay(1))
    views.lines.refresh()
    bar.step.setValue(3)
    bar.button.click()
    assert (children[0].task, children[0].arguments) == (
        TASKS["replay"],
        {"path": str(path), "step": 3},
    )
    assert bar.button.text() == STOP
    children[0].said.emit({"kind": "progress", "text": "training again: step 2 of 3"})
    assert bar.text.text() == "Training again: step 2 of 3 ..."
    REPLAYS.keep(path, replay(3))
    children[0].said.emit({"kind": "kept", "verdict": "problems"})
    children[0].ended.emit("")
    assert views.lines.chosen is not None and views.lines.chosen.step == 3 and bar.button.text() == REPLAY
    bar.button.click()
    bar.button.click()
    assert children[1].is_stopped and bar.button.text() == REPLAY


def test_that_layers_are_asked_for_in_the_precisions_of_the_field(
    views: ErrorViews, tmp_path: Path, children: list[FakeChild]
) -> None:
    views.choice.choose("By layer")
    bar = views.layers.bar
    bar.precisions.setText("fp64")  # type: ignore[attr-defined]
    assert "leave it out" in bar.text.text() and not bar.button.isEnabled()
    bar.precisions.setText("fp17")  # type: ignore[attr-defined]
    assert "fp17" in bar.text.text() and not bar.button.isEnabled()
    bar.precisions.setText("bf16-amp, fp16-amp")  # type: ignore[attr-defined]
    bar.step.setValue(2)
    assert bar.button.text() == COMPARE
    bar.button.click()
    assert children[0].task == TASKS["layers"]
    assert children[0].arguments == {
        "path": str(tmp_path / "one.h5"), "step": 2, "precisions": ["bf16-amp", "fp16-amp"],
    }  # fmt: skip


def test_that_code_of_the_user_runs_only_after_consent(
    tmp_path: Path, session: Session, panel: InspectPanel, children: list[FakeChild]
) -> None:
    path = tmp_path / "own.h5"
    with open_writer(path, RunConfig(task="mine.py:task")) as writer:
        for event in synthetic_events(20):
            writer(event)
    bar = views_of(panel, session, session.runs.open_file(path)).lines.bar
    bar.button.click()
    assert not children and bar.consent.question is not None
    next(b for b in bar.consent.question.buttons() if b.text() == "Run this code").click()
    assert [child.task for child in children] == [TASKS["replay"]]


def test_that_a_step_is_replayed_and_its_layers_compared_from_inspect(
    qtbot: QtBot, tmp_path: Path, session: Session, panel: InspectPanel
) -> None:
    path = tmp_path / "real.h5"
    assert Job(load("digits-quick", SETTINGS), path).run().status == "completed"
    key = session.runs.open_file(path)
    assert key is not None
    session.requests.inspect(key, "step")
    tab = panel.tab("step")
    assert isinstance(tab, StepTab)
    tab.show_run(key)
    tab.bar.step.setValue(4)
    tab.bar.button.click()
    qtbot.waitUntil(lambda: not tab.is_empty, timeout=LONG_MS)
    assert tab.chosen is not None and tab.chosen.step == 4
    views = views_of(panel, session, key)
    assert views.lines.chosen is not None and views.lines.chosen.step == 4
    assert any("to the last bit" in note for note in views.lines.chosen.notes)
    views.choice.choose("By layer")
    views.layers.bar.button.click()
    qtbot.waitUntil(lambda: not views.layers.is_empty, timeout=LONG_MS)
    assert [(one.step, one.precisions) for one in LAYERS.all(path)] == [(6, ["bf16-amp", "fp16-amp"])]
