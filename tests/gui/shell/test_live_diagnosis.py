"""The banner that tells of an error in the run that is training."""

from __future__ import annotations

import math

from pytestqt.qtbot import QtBot

from precgui.config import RunConfig
from precgui.events import Event, RunStarted, StepDone
from precgui.gui.notices import Notices
from precgui.gui.open_run import OpenRun
from precgui.gui.session import Session
from precgui.gui.shell.live_diagnosis import LiveDiagnosis
from tests.runs.synthetic import live_run


def steps(first: int, losses: list[float]) -> list[Event]:
    return [
        StepDone(step, 0.1 * step, loss, 1.0, False, 0.1, 1.0, 0.1, 0.0, 8, math.nan)
        for step, loss in enumerate(losses, first)
    ]


def judge(qtbot: QtBot, watch: LiveDiagnosis) -> None:
    """Judge, and wait for the answer of the thread."""
    watch.judge()
    qtbot.waitUntil(lambda: not watch.judging.busy)


def test_that_an_error_is_told_once_and_only_when_it_stays(qtbot: QtBot) -> None:
    session, notices = Session(), Notices()
    watch = LiveDiagnosis(session, notices)
    run = live_run([RunStarted(0.0, 100, 10, "cpu"), *steps(1, [2.0 * 0.9**i for i in range(30)])], RunConfig())
    session.runs.put(OpenRun("r", run, "mine", 0, 0))
    session.runs.active_key = "r"
    judge(qtbot, watch)
    judge(qtbot, watch)
    assert notices.entries() == []
    run.extend(steps(31, [math.nan] * 5))
    judge(qtbot, watch)
    assert notices.entries() == []
    for _ in range(3):
        judge(qtbot, watch)
    [entry] = notices.entries()
    assert entry.count == 1
    assert entry.notice.text.startswith("mine: ")
    assert "step 31" in entry.notice.text
    stopped: list[str | None] = []
    session.training.stop = stopped.append
    {label: act for label, act, *_ in entry.notice.remedies}["Stop the run"]()
    assert stopped == ["r"]
    places: list[str] = []
    session.requests.place.connect(places.append)
    {label: act for label, act, *_ in entry.notice.remedies}["Diagnose"]()
    assert places == ["diagnose/r"]  # with the run that the banner is about


def test_that_a_young_run_is_left_alone(qtbot: QtBot) -> None:
    session, notices = Session(), Notices()
    watch = LiveDiagnosis(session, notices)
    session.runs.put(OpenRun("r", live_run(steps(1, [math.nan] * 9), RunConfig()), "mine", 0, 0))
    session.runs.active_key = "r"
    for _ in range(3):
        judge(qtbot, watch)
    assert notices.entries() == []


def test_that_a_run_that_is_closed_while_it_is_judged_is_not_reported(qtbot: QtBot) -> None:
    session, notices = Session(), Notices()
    watch = LiveDiagnosis(session, notices)
    run = live_run([RunStarted(0.0, 100, 10, "cpu"), *steps(1, [math.nan] * 30)], RunConfig())
    session.runs.put(OpenRun("r", run, "mine", 0, 0))
    session.runs.active_key = "r"
    judge(qtbot, watch)
    watch.judge()
    session.runs.active_key = None
    session.runs.close("r")
    qtbot.waitUntil(lambda: not watch.judging.busy)
    assert notices.entries() == []
