"""Work in a thread: each is answered, or the latest only, and nothing is called when nobody waits any more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from PySide6.QtCore import QCoreApplication, QEvent, QObject
from pytestqt.qtbot import QtBot

from precgui.gui.answer import Answer, ProgressCallback, child, computation, thread
from precgui.places.tasks import TASKS
from precgui.runs.errors import RunFileError
from tests.fakes import FakeChild
from tests.gui.conftest import PATIENCE_MS


class Gate:
    """A work that says that it has begun and returns when it is let through."""

    def __init__(self, result: Any) -> None:
        self.result, self.begun, self.open = result, threading.Event(), threading.Event()

    def __call__(self, progress: ProgressCallback) -> Any:
        self.begun.set()
        assert self.open.wait(PATIENCE_MS / 1000)
        progress(0.5)
        return self.result


def test_that_works_asked_for_beside_one_another_are_all_answered(qtbot: QtBot) -> None:
    owner, answers, states = QObject(), list[int](), list[bool]()
    answer = Answer(owner, answered=answers.append)
    answer.changed.connect(lambda: states.append(answer.busy))
    first, second = Gate(1), Gate(2)
    answer.ask(computation(first))
    answer.ask(computation(second))
    assert first.begun.wait(PATIENCE_MS / 1000) and second.begun.wait(PATIENCE_MS / 1000)
    second.open.set()
    qtbot.waitUntil(lambda: answers == [2])
    assert answer.busy
    first.open.set()
    qtbot.waitUntil(lambda: answers == [2, 1])
    assert not answer.busy and states[-1] is False


def test_that_any_error_for_the_user_is_told_by_its_sentence(qtbot: QtBot) -> None:
    """A work that read a run file had to word its error again as a ValueError."""
    owner, faults = QObject(), list[str]()

    def read() -> None:
        raise RunFileError("run.h5 is damaged")

    Answer(owner, failed=faults.append).ask(thread(read))
    qtbot.waitUntil(lambda: faults == ["run.h5 is damaged"])


def test_that_only_the_latest_of_works_that_replace_one_another_is_answered(qtbot: QtBot) -> None:
    owner, answers = QObject(), list[int]()
    answer = Answer(owner, answered=answers.append)
    gates = [Gate(1), Gate(2), Gate(3)]
    for gate in gates:
        answer.ask(computation(gate), latest_only=True)
        gate.open.set()
    qtbot.waitUntil(lambda: answers == [3])
    assert not gates[1].begun.is_set() and not answer.busy


def test_that_a_cancelled_work_has_no_answer_and_the_next_one_has(qtbot: QtBot) -> None:
    owner, answers = QObject(), list[int]()
    answer = Answer(owner, answered=answers.append)
    gate = Gate(1)
    answer.ask(computation(gate))
    answer.cancel()
    gate.open.set()
    qtbot.waitUntil(lambda: not answer.busy)
    answer.ask(thread(lambda x: x + 1, 1))
    qtbot.waitUntil(lambda: answers == [2])


def test_that_the_next_work_can_be_asked_for_by_what_takes_the_answer(qtbot: QtBot) -> None:
    owner, answers = QObject(), list[int]()

    def take(result: int) -> None:
        assert not answer.busy
        answers.append(result)
        if result < 3:
            answer.ask(thread(int, result + 1))

    answer = Answer(owner, answered=take)
    answer.ask(thread(int, 1))
    qtbot.waitUntil(lambda: answers == [1, 2, 3])


@pytest.mark.parametrize("error", [ValueError("the number is too large"), MemoryError()])
def test_that_a_fault_becomes_a_sentence(qtbot: QtBot, error: Exception) -> None:
    owner, faults = QObject(), list[str]()

    def fail() -> None:
        raise error

    Answer(owner, failed=faults.append).ask(thread(fail))
    qtbot.waitUntil(lambda: len(faults) == 1)
    assert faults[0] in ("the number is too large", "There is not enough memory for this; choose a smaller tensor.")


def test_that_nothing_is_called_when_the_part_of_the_window_is_gone(qtbot: QtBot) -> None:
    owner, answers, gate = QObject(), list[int](), Gate(1)
    answer = Answer(owner, answered=answers.append)
    work = computation(gate)
    answer.ask(work)
    owner.deleteLater()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
    with qtbot.waitSignal(work.ended):
        gate.open.set()
    assert answers == []


def test_that_events_faults_and_the_end_of_a_child_process_are_told_apart(children: list[FakeChild]) -> None:
    owner, told = QObject(), list[tuple[str, object]]()

    def note(kind: str) -> Callable[[object], None]:
        return lambda said: told.append((kind, said))

    answer = Answer(owner, progress=note("progress"), failed=note("failed"), ended=note("ended"))
    answer.ask(child(TASKS["replay"], {"step": 1}))
    assert answer.busy and children[0].arguments == {"step": 1}
    children[0].said.emit({"kind": "progress", "text": "half"})
    children[0].said.emit({"kind": "fault", "message": "there is no such step"})
    children[0].ended.emit("the engine process was killed")
    assert told == [
        ("progress", {"kind": "progress", "text": "half"}),
        ("failed", "there is no such step"),
        ("ended", "the engine process was killed"),
    ]
    assert not answer.busy


def test_that_a_child_process_goes_with_its_part_of_the_window_unless_it_is_left_alone(
    children: list[FakeChild],
) -> None:
    ends = list[str]()
    for leave in (False, True):
        owner = QObject()
        answer = Answer(owner, ended=ends.append)
        answer.ask(child("precgui.sweeps.runner:serve"))
        if leave:
            answer.forget()
            assert not answer.busy
        owner.deleteLater()
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
    assert [each.is_stopped for each in children] == [True, False]
    assert ends == []
