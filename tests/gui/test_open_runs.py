"""Names and colours of the open runs, and the queue."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from precgui.config import RunConfig
from precgui.events import RunStarted, StepDone
from precgui.formats.registry import MAIN
from precgui.gui.format_colours import format_colour
from precgui.gui.notices import Notices
from precgui.gui.open_run import distinct_name, short_names
from precgui.gui.run_progress import progress_of
from precgui.gui.session import Session
from precgui.gui.settings import Settings
from precgui.gui.shell.window import Window
from precgui.runs.line_styles import precision_place
from precgui.runs.live import LiveRun
from tests.gui.conftest import close_window, write_run
from tests.gui.plotted import training_run


def test_that_names_keep_the_part_that_tells_them_apart() -> None:
    assert short_names(["digits cnn int8-qat", "digits cnn fp16-amp", "digits cnn bf16-amp"]) == [
        "int8-qat", "fp16-amp", "bf16-amp",
    ]  # fmt: skip
    assert short_names(["digits cnn fp32", "text gpt fp32"]) == ["digits cnn fp32", "text gpt fp32"]
    assert short_names(["digits", "digits cnn"]) == ["digits", "digits cnn"]
    assert short_names(["alone with words"]) == ["alone with words"]
    assert short_names([]) == []


def test_that_a_title_in_use_gets_the_time_and_then_a_number() -> None:
    assert distinct_name("a", "2026-01-01T10:00:00", ["b"]) == "a"
    assert distinct_name("a", "2026-01-01T10:00:00", ["a"]) == "a 10:00:00"
    assert distinct_name("a", "2026-01-01T10:00:00", ["a", "a 10:00:00"]) == "a 10:00:00 (2)"
    assert distinct_name("a", "no date", ["a"]) == "a (2)"


def test_that_a_run_has_the_colour_of_its_precision_whatever_was_opened_before(qtbot: QtBot, tmp_path: Path) -> None:
    names = ("fp32", "bf16-amp", "fp16-amp", "fp64", "tf32")
    paths = [write_run(tmp_path / f"{name}.h5", "the same", name) for name in names]
    colours = []
    for order in (paths, paths[::-1]):
        session = Session()
        found = {}
        for path in order:
            key = session.runs.open_file(path)
            assert key is not None
            found[key] = (session.runs[key].colour_index, session.runs[key].dash_index)
            assert len(session.runs) == 1 or session.runs.close(key) is None
        colours.append(found)
    assert colours[0] == colours[1] == {name: (precision_place(name), 0) for name in names}


def test_that_seven_runs_have_seven_colours_and_names_of_their_own(qtbot: QtBot, tmp_path: Path) -> None:
    session = Session()
    for name in "abcdefg":
        session.runs.open_file(write_run(tmp_path / f"{name}.h5", "the same"))
    assert len({opened.colour_index for opened in session.runs.values()}) == 7
    assert len({opened.name for opened in session.runs.values()}) == 7


def test_that_the_queue_is_reordered_and_emptied(qtbot: QtBot) -> None:
    session = Session()
    session.training.waiting = [RunConfig(title=title) for title in "abc"]
    session.training.move(2, 0)
    session.training.move(0, -1)
    session.training.move(5, 0)
    assert [config.title for config in session.training.waiting] == ["c", "a", "b"]
    session.training.stop_all()
    assert session.training.waiting == []


def test_that_a_run_keeps_its_colour_beside_others_and_after_a_restart(qtbot: QtBot, tmp_path: Path) -> None:
    paths = [write_run(tmp_path / f"{name}.h5", "the same") for name in "abcdef"]
    window = Window(Settings(), Notices())
    window.show()
    window.attach(Session(window))
    first = _styles(window, paths)
    free = next(index for index in range(7) if index not in {colour for colour, _ in first.values()})
    window.session.runs.set_colour(next(iter(first)), free)
    first = {key: (each.colour_index, each.dash_index) for key, each in window.session.runs.items()}
    close_window(qtbot, window)
    again = Window(Settings(), Notices())
    again.show()
    again.attach(Session(again))
    assert _styles(again, paths[::-1]) == first
    close_window(qtbot, again)


def _styles(window: Window, paths: list[Path]) -> dict[str, tuple[int, int]]:
    session = window.session
    assert session is not None
    for path in paths:
        session.runs.open_file(path)
    return {key: (opened.colour_index, opened.dash_index) for key, opened in session.runs.items()}


def test_that_the_usual_formats_have_colours_of_their_own(qtbot: QtBot) -> None:
    usual = (*MAIN, "e3m2", "e2m3", "e2m1", "int8", "int4", "nf4")
    assert len({format_colour(name) for name in usual}) == len(usual)
    assert format_colour("e4m2") == format_colour("e4m2")


def test_that_a_run_that_is_over_is_not_called_training() -> None:
    run = training_run("a", 10, status="running")
    assert progress_of(run, stopping=False).text == "finishing"
    run.total_steps = 20
    assert progress_of(run, stopping=False).text == "training"
    run.status = "completed"
    assert progress_of(run, stopping=False).text == "completed"


def test_that_a_training_that_stands_still_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("precgui.runs.live.time.monotonic", lambda: clock[0])
    run = LiveRun(RunConfig(), run_id="a", created="", machine={}, environment={}, path=None)
    run.extend([RunStarted(0.0, 1000, 100, "cpu")])
    run.extend([StepDone(n, 0.5 * n, 1.0, 1.0, False, 0.1, 1.0, 0.5, 0.0, 64, math.nan) for n in range(1, 11)])
    clock[0] += 9
    assert progress_of(run, stopping=False).text == "training"
    clock[0] += 26
    silent = progress_of(run, stopping=False)
    assert silent.text == "no step for 35 s, where one took 500 ms"
    assert silent.seconds_left is None
    run.extend([StepDone(11, 40.0, 1.0, 1.0, False, 0.1, 1.0, 0.5, 0.0, 64, math.nan)])
    assert progress_of(run, stopping=False).text == "training"
