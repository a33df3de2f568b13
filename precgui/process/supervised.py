"""A process that is supervised: started, its messages relayed, stopped within a deadline, its end in words."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from precgui.events import RunEnded
from precgui.process.channel import Channel, SpawnedChannel
from precgui.process.child import Ready, Stop
from precgui.process.child import main as serve_task
from precgui.sentences import Sentence, message_of

POLL_S = 0.1


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class DeathWords:
    """How sentences about the end of a process name it, after a Stop too, and the likely reason of a SIGKILL."""

    process: str
    stopped_process: str
    sigkill: str


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The end of a process. `exit_code` is negative for a signal; `last_words` is the end of its output.

    `not_started` says why it could not be started; it is empty where it was.
    """

    exit_code: int
    was_stopped: bool
    last_words: str = ""
    not_started: str = ""

    @property
    def is_clean(self) -> bool:
        """Whether it ended by itself and well."""
        return self.exit_code == 0

    def in_words(self, words: DeathWords) -> str:
        """How it ended: with which exit code, by which signal, or that it never began."""
        if self.not_started:
            return Sentence(
                "{process} could not be started: {reason}",
                process=words.process,
                reason=self.not_started,
            )
        if self.exit_code >= 0:
            return Sentence(
                "{process} ended by itself with exit code {code}",
                process=words.process,
                code=self.exit_code,
            )
        try:
            name = signal.Signals(-self.exit_code).name
        except ValueError:
            name = f"signal {-self.exit_code}"
        values = {"process": words.process, "signal": name}
        if name == "SIGKILL":
            return Sentence("{process} was killed by {signal}: {reason}", reason=words.sigkill, **values)
        return Sentence("{process} was killed by {signal}", **values)

    def run_ended(self, words: DeathWords) -> RunEnded:
        """The last event of a run whose process did not send one."""
        if self.was_stopped:
            return RunEnded(
                0.0,
                "stopped",
                Sentence(
                    "stopped; {process} did not answer and was ended",
                    process=words.stopped_process,
                ),
            )
        return RunEnded(0.0, "failed", self.in_words(words), self.last_words)


class Supervised:
    """The process behind a channel. `send`, `stop` and `kill` may be called from any thread at any time.

    After a stop the process has `grace_s` seconds to end by itself; then it is killed. `ready` is set by `Ready`.
    """

    def __init__(self, channel: Channel, grace_s: float) -> None:
        self._channel, self._grace_s = channel, grace_s
        self.ready = False
        self.stopping = False
        self._send_lock = threading.RLock()  # a signal handler may stop while its thread sends
        self._stop_lock = threading.RLock()  # held while `stopping` and the timer change together
        self._killer: threading.Timer | None = None
        self._is_over = False

    @property
    def pid(self) -> int | None:
        """The id of the process; None before its start."""
        return self._channel.pid

    def run(self, take: Callable[[Any], object], stopped: Callable[[], bool] = _never) -> ProcessEnd:
        """Start the process and hand each message to `take` until the process is gone; stop it when `stopped()`.

        When `take` raises, the process is killed.
        """
        try:
            try:
                self.start()
            except OSError as error:  # no memory or no more processes
                return ProcessEnd(1, self.stopping, not_started=message_of(error))
            with contextlib.ExitStack() as unless_relayed:
                unless_relayed.callback(self._channel.kill)
                while (message := self.receive(stopped)) is not None:
                    take(message)
                unless_relayed.pop_all()
            return self._ended(stopped)
        finally:
            self._channel.close()
            self._let_killer_go()

    def start(self) -> None:
        """Start the process. Raises OSError."""
        self._channel.start()
        with self._stop_lock:
            was_killed = self.stopping and self._killer is None
        if was_killed:
            self._channel.kill()

    def receive(self, stopped: Callable[[], bool] = _never) -> Any:
        """The next message; None once the process is gone. Processes of its own may hold its pipe open longer."""
        while True:
            if not self.stopping and stopped():
                self.stop()
            was_alive = self._channel.is_alive()
            try:
                message = self._channel.receive(POLL_S)
            except (EOFError, OSError):
                return None
            if isinstance(message, Ready):
                self.ready = True
            elif message is not None or not was_alive:
                return message

    def send(self, message: object) -> None:
        """A process that is gone is no error here: its end says so."""
        with self._send_lock, contextlib.suppress(OSError):
            self._channel.send(message)

    def stop(self) -> None:
        """Ask the process to end; it is gone within `grace_s`, whatever it does."""
        with self._stop_lock:
            if self.stopping:
                return
            self.stopping = True
            if self._is_over:
                return
            self._killer = threading.Timer(self._grace_s, self._channel.kill)
            self._killer.start()
        self.send(Stop())

    def kill(self) -> None:
        """End the process without asking, also one that has not started yet."""
        self.stopping = True
        self._channel.kill()

    def discard(self) -> None:
        """Kill the process, wait for its end and close the channel."""
        self.kill()
        self._ended(_never)
        self._channel.close()

    def _ended(self, stopped: Callable[[], bool]) -> ProcessEnd:
        exit_code = self._channel.wait()
        self._let_killer_go()
        return ProcessEnd(exit_code, self.stopping or stopped(), last_words=self._channel.last_words())

    def _let_killer_go(self) -> None:
        with self._stop_lock:
            self._is_over, killer = True, self._killer
        if killer is not None:
            killer.cancel()
            killer.join()


def task_process(grace_s: float) -> Supervised:
    """A process for one task; start it early: it imports torch and then waits for its `ChildTask`."""
    return Supervised(SpawnedChannel(serve_task, daemon=False, keep_output=True), grace_s)
