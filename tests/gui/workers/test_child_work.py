"""Engine work beside the runs, in real child processes."""

from __future__ import annotations

import gc
import tempfile

import pytest

from precgui.gui.panels.hardware import model
from precgui.gui.panels.hardware.panel import HardwarePanel
from precgui.gui.workers.child_process import ChildThread
from precgui.gui.workers.child_work import ChildWork
from precgui.gui.workers.kept_thread import running


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch, tmp_path):
    """No test leaves anything in the temporary folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.iterdir()) == []


def run(qtbot, task, arguments=None, stop=False):
    said = []
    work = ChildWork(task, arguments)
    work.said.connect(said.append)
    with qtbot.waitSignal(work.ended) as ended:
        work.start()
        if stop:
            work.stop()
    return said, ended.args[0]


def test_that_torch_tells_its_facts_from_a_process_of_its_own(qtbot):
    (facts,), problem = run(qtbot, "precgui.engine.torch_facts:serve")
    assert problem == ""
    assert facts["version"].startswith("2.")
    assert facts["switches"]


def test_that_a_task_that_dies_tells_its_last_words(qtbot):
    said, problem = run(qtbot, "precgui.engine.no_such_module:serve")
    assert said == []
    assert "ended by itself with exit code" in problem
    assert "no_such_module" in problem


def test_that_a_task_that_was_never_started_leaves_nothing():
    ChildWork("precgui.engine.torch_facts:serve")


def test_that_a_stopped_task_ends_without_a_complaint(qtbot):
    said, problem = run(qtbot, "precgui.engine.bench.run:serve", {"device": "cpu"}, stop=True)
    assert problem == ""
    assert not any(event["kind"] == "done" and event["result"]["complete"] for event in said)


def test_that_a_panel_that_goes_takes_its_task_along(qtbot, monkeypatch):
    monkeypatch.setattr(model, "ASK_TORCH_AFTER_MS", 0)
    before = running()
    panel = HardwarePanel(None)
    panel.show()
    qtbot.waitUntil(lambda: bool(processes(before)))
    panel.close()
    panel.deleteLater()
    qtbot.waitUntil(lambda: not processes(before))


def processes(before):
    return [thread for thread in running() if isinstance(thread, ChildThread) and thread not in before]


def test_that_a_task_nobody_holds_says_its_end(qtbot):
    ends, before = [], running()
    ChildWork("precgui.engine.no_such_module:serve").start()
    (thread,) = processes(before)
    thread.parent().ended.connect(ends.append)
    del thread
    gc.collect()
    qtbot.waitUntil(lambda: len(ends) == 1)
    qtbot.waitUntil(lambda: not processes(before))
