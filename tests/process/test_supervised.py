"""A supervised process behind a channel that the test plays: messages, Stop and its deadline, every kind of end."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from precgui.events import RunEnded
from precgui.process.child import Ready, Stop
from precgui.process.supervised import DeathWords, ProcessEnd, Supervised
from tests.process.played_channel import PlayedChannel

WORDS = DeathWords("the process of the run", "the process", "somebody ended it")


def test_that_messages_come_in_their_order_and_the_end_with_its_exit_code() -> None:
    channel, taken = PlayedChannel([Ready(), [1], [], [2], EOFError()], exit_code=3), []
    process = Supervised(channel, grace_s=60)
    end = process.run(taken.append)
    assert taken == [[1], [], [2]]
    assert process.ready
    assert end == ProcessEnd(3, was_stopped=False, last_words="its last words")
    assert channel.is_closed
    assert not channel.was_killed


def test_that_a_process_that_dies_while_it_is_waited_for_loses_no_message() -> None:
    """Its last message may come between the last wait and the question whether it is alive."""

    class Late(PlayedChannel):
        def receive(self, timeout_s: float) -> Any:
            if not self.gone.is_set():
                self.gone.set()
                self.messages.append(["last"])
                return None
            return super().receive(timeout_s)

    taken: list[Any] = []
    Supervised(Late([]), grace_s=60).run(taken.append)
    assert taken == [["last"]]


def test_that_a_process_that_obeys_a_stop_is_not_killed() -> None:
    channel = PlayedChannel([])
    channel.on_stop = channel.gone.set
    end = Supervised(channel, grace_s=60).run(lambda _: None, stopped=lambda: True)
    assert [type(message) for message in channel.sent] == [Stop]
    assert (end.exit_code, end.was_stopped, channel.was_killed) == (0, True, False)


def test_that_a_process_that_does_not_obey_is_killed_after_its_grace() -> None:
    channel = PlayedChannel([])
    end = Supervised(channel, grace_s=0.01).run(lambda _: None, stopped=lambda: True)
    assert channel.was_killed
    assert end.run_ended(WORDS) == RunEnded(0.0, "stopped", "stopped; the process did not answer and was ended")


def test_that_a_stop_after_the_end_leaves_nothing_behind() -> None:
    """A timer that nobody cancels would keep the interpreter until the grace is over."""
    channel = PlayedChannel([EOFError()])
    process = Supervised(channel, grace_s=60)
    process.run(lambda _: None)
    before = set(threading.enumerate())
    process.stop()
    assert process.stopping and channel.sent == []
    assert set(threading.enumerate()) <= before


def test_that_a_process_killed_before_it_starts_does_not_run() -> None:
    channel = PlayedChannel([])
    process = Supervised(channel, grace_s=60)
    process.kill()
    assert not channel.was_killed
    assert process.run(lambda _: None).was_stopped
    assert channel.was_killed


def test_that_no_process_outlives_an_error_of_the_one_that_listens() -> None:
    channel = PlayedChannel([["event"]])

    def fail(_: object) -> None:
        raise KeyError("event")

    with pytest.raises(KeyError):
        Supervised(channel, grace_s=60).run(fail)
    assert channel.was_killed
    assert channel.is_closed


def test_that_a_process_that_cannot_be_started_is_one_sentence() -> None:
    channel = PlayedChannel([])
    channel.start_error = OSError("no more processes")
    end = Supervised(channel, grace_s=60).run(lambda _: None)
    assert not end.is_clean
    assert end.run_ended(WORDS).message == "the process of the run could not be started: no more processes"
    assert channel.is_closed


def test_that_a_message_to_a_process_that_is_gone_is_no_error() -> None:
    channel = PlayedChannel([])
    channel.gone.set()
    Supervised(channel, grace_s=60).send("order")
    assert channel.sent == []


def test_that_a_discarded_process_is_gone_and_its_channel_closed() -> None:
    channel = PlayedChannel([["answer"]])
    process = Supervised(channel, grace_s=0)
    process.start()
    assert process.receive() == ["answer"]
    process.discard()
    assert channel.was_killed
    assert channel.is_closed


@pytest.mark.parametrize(
    ("exit_code", "sentence"),
    [
        (0, "the process of the run ended by itself with exit code 0"),
        (1, "the process of the run ended by itself with exit code 1"),
        (-signal.SIGTERM, "the process of the run was killed by SIGTERM"),
        (-9, "the process of the run was killed by SIGKILL: somebody ended it"),
        (-250, "the process of the run was killed by signal 250"),
    ],
)
def test_that_every_end_has_its_words(exit_code: int, sentence: str) -> None:
    end = ProcessEnd(exit_code, was_stopped=False, last_words="Segmentation fault")
    assert end.run_ended(WORDS) == RunEnded(0.0, "failed", sentence, "Segmentation fault")
