"""The outermost door of a supervised process: a channel without a process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

from precgui.process.child import Stop


class PlayedChannel:
    """A process whose messages are given; `on_stop` says what it does when it is asked to stop."""

    def __init__(self, messages: list[Any], exit_code: int = 0, on_stop: Callable[[], None] | None = None) -> None:
        self.messages, self.exit_code, self.on_stop = messages, exit_code, on_stop
        self.pid, self.sent = None, []
        self.begun, self.gone = threading.Event(), threading.Event()
        self.was_killed = self.is_closed = False
        self.start_error: OSError | None = None

    def start(self) -> None:
        if self.start_error is not None:
            raise self.start_error
        self.begun.set()

    def send(self, message: object) -> None:
        if self.gone.is_set():
            raise BrokenPipeError
        self.sent.append(message)
        if isinstance(message, Stop) and self.on_stop is not None:
            self.on_stop()

    def receive(self, timeout_s: float) -> Any:
        if self.messages:
            message = self.messages.pop(0)
            if isinstance(message, Exception):
                self.gone.set()
                raise message
            return message
        self.gone.wait(timeout_s)
        return None

    def is_alive(self) -> bool:
        return not self.gone.is_set()

    def kill(self) -> None:
        if self.begun.is_set() and not self.gone.is_set():
            self.was_killed, self.exit_code = True, -signal.SIGKILL
            self.gone.set()

    def wait(self) -> int:
        self.gone.wait()
        return self.exit_code

    def last_words(self) -> str:
        return "its last words"

    def close(self) -> None:
        self.is_closed = True
