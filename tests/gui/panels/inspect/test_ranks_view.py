"""Several ranks in Inspect > Time: the picture, the medians, and the plan with the time of this run."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from precgui.gui.panels.inspect.speedup.time_views import TimeViews
from precgui.gui.session import Session
from tests.fakes import FakeChild
from tests.gui.conftest import write_run
from tests.runs.test_ranks import run_of_two


@pytest.fixture
def session(qapp: QApplication) -> Session:
    return Session()


@pytest.fixture
def views(qtbot: QtBot, children: list[FakeChild], session: Session) -> TimeViews:
    made = TimeViews(session)
    qtbot.addWidget(made)
    made.resize(900, 700)
    made.show()
    return made


def show(views: TimeViews, session: Session, path: Path) -> None:
    session.runs.open_file(path)
    views.show_run(next(reversed(session.runs)))
    views.choice.choose("Several ranks")


def test_that_a_run_of_two_ranks_is_shown_with_who_waited(views: TimeViews, session: Session, tmp_path: Path) -> None:
    show(views, session, run_of_two(tmp_path / "run.h5"))
    ranks = views.ranks
    assert "rank 0 least" in ranks.verdict.text()
    assert [row[:3] for row in ranks.table.texts()] == [("0", "100 ms", "10 ms"), ("1", "100 ms", "60 ms")]
    assert ranks.of_memory.isVisible() and "of each whole process" in ranks.of_memory.text()
    area = ranks.picture.area()
    place = QPoint(area.right() - 3, area.top() + ranks.picture.row_px + 3)
    assert ranks.picture.text_of(ranks.picture.cell_at(place)) == "rank 1\nstep 8: 60 % of the step waited"


def test_that_the_plan_takes_the_time_that_this_run_computed(
    qtbot: QtBot, views: TimeViews, session: Session, tmp_path: Path, children: list[FakeChild]
) -> None:
    show(views, session, run_of_two(tmp_path / "run.h5"))
    plan = views.ranks.plan
    assert plan is not None
    assert plan.step_ms.value() == 130.0  # 100 ms less the median of 10 and 60 ms of waiting, on two ranks
    qtbot.waitUntil(lambda: len(children) == 1)  # asked when it is shown
    assert children[-1].task == "precgui.engine.parallel.forecast:serve"
    plan.take({"kind": "traffic", "traffic": {"gradient_bytes": 1e6, "pieces": 2, "coded": False}})
    assert len(plan.table.texts()) == 7  # up to the 64 samples of the batch


def test_that_a_run_on_one_process_says_so_and_has_the_plan(views: TimeViews, session: Session, tmp_path: Path) -> None:
    show(views, session, write_run(tmp_path / "run.h5"))
    assert views.ranks.verdict.text().startswith("This run trained in one process.")
    assert not views.ranks.table.isVisible()
    assert views.ranks.plan is not None
