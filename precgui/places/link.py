"""One connection to the agent of a place: its command, started, and messages over its input and output."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import IO

from precgui.places.contact import ContactError, explained, no_program, other_protocol
from precgui.places.messages import ORDERS, REPLIES, Ping, PlaceHello
from precgui.places.settings import NamedPlace
from precgui.process.channel import LAST_WORDS_BYTES
from precgui.process.frames import FrameError, FrameReader, ProtocolError
from precgui.sentences import Sentence, message_of

HELLO_S = 30.0
PING_S = 5.0
SILENT_S = 15.0  # after which a link that answers no Ping is lost
_END_S = 0.4  # in which a command may end by itself
_WORDS_S = 1.0  # in which a command that has closed its output may say why
_JOIN_S = 0.3
_WAKE = object()


class PlaceLink:
    """An agent that has said hello. Every method but `close` belongs to one thread."""

    def __init__(self, place: NamedPlace) -> None:
        """Raises ContactError."""
        self.place = place
        self._messages: queue.Queue[object] = queue.Queue()
        self._words = bytearray()
        self._heard_s = self._pinged_s = time.monotonic()
        self._reader = FrameReader(REPLIES, noise=True)
        self._process = start_command(place)
        self._orders: queue.Queue[bytes | None] = queue.Queue()
        self._writing_since_s = 0.0  # 0 while no write waits for the agent
        self._cannot_write = False
        self._threads = [
            threading.Thread(target=self._read, name=f"read {place.name}", daemon=True),
            threading.Thread(target=self._listen, name=f"words {place.name}", daemon=True),
            threading.Thread(target=self._write, name=f"write {place.name}", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self.hello = self._hello()

    def _hello(self) -> PlaceHello:
        until_s = time.monotonic() + HELLO_S
        try:
            while (message := self.receive(0.1)) is None:
                if time.monotonic() > until_s:
                    raise ContactError(
                        Sentence(
                            "{name} said nothing for {seconds:.0f} s; try it later",
                            name=self.place.name,
                            seconds=HELLO_S,
                        ),
                        is_final=False,
                    )
            if not isinstance(message, PlaceHello):
                raise ContactError(
                    Sentence(
                        "the command of {name} is not an agent of precgui; correct it",
                        name=self.place.name,
                    )
                )
        except BaseException:
            self.close()
            raise
        return message

    @property
    def silent_s(self) -> float:
        """Seconds since the agent was heard last."""
        return time.monotonic() - self._heard_s

    def send(self, order: object) -> None:
        """Never waits for the agent. Raises ContactError where the link is gone, or takes no orders."""
        self._check_writes()
        self._orders.put(ORDERS.encode(order))

    def _check_writes(self) -> None:
        since_s = self._writing_since_s
        if self._cannot_write:
            raise self._gone()
        if since_s and time.monotonic() - since_s > SILENT_S:
            raise ContactError(
                Sentence(
                    "{name} has read no order for {seconds:.0f} s",
                    name=self.place.name,
                    seconds=SILENT_S,
                ),
                is_final=False,
            )

    def receive(self, timeout_s: float) -> object | None:
        """The next message, None where none comes in that time. Raises ContactError when the link is gone."""
        if self._messages.empty():
            self._check_writes()
        try:
            message = self._messages.get(timeout=timeout_s)
        except queue.Empty:
            self._look()
            return None
        if message is _WAKE:
            return None
        if message is None:
            raise self._gone()
        if isinstance(message, ProtocolError):
            raise other_protocol(self.place, message.number) from None
        if isinstance(message, FrameError):
            raise ContactError(message_of(message), is_final=False) from None
        self._heard_s = time.monotonic()
        return message

    def _look(self) -> None:
        """Ask an agent that is silent whether it is there. Raises ContactError where it does not answer."""
        if self.silent_s > SILENT_S and hasattr(self, "hello"):
            raise ContactError(
                Sentence(
                    "no answer from {name} for {seconds:.0f} s",
                    name=self.place.name,
                    seconds=self.silent_s,
                ),
                is_final=False,
            )
        if hasattr(self, "hello") and min(self.silent_s, time.monotonic() - self._pinged_s) > PING_S:
            self._pinged_s = time.monotonic()
            self.send(Ping())

    def wake(self) -> None:
        """Let a `receive` that waits return, from any thread: there is something to send."""
        self._messages.put(_WAKE)

    def close(self) -> None:
        """End the command, within some `_END_S`; jobs go on."""
        self._orders.put(None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        if self._process.poll() is None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_JOIN_S)
        for thread in self._threads:
            thread.join(_JOIN_S)
        for stream, thread in zip((self._process.stdout, self._process.stderr), self._threads, strict=False):
            if stream is not None and not thread.is_alive():
                stream.close()

    def _gone(self) -> ContactError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_WORDS_S)
        self._threads[1].join(_WORDS_S)
        printed = self._words.decode("utf-8", "replace") + self._reader.skipped
        return explained(self.place, printed, self._process.poll())

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for data in _parts(self._process.stdout):
                for message in self._reader.feed(data):
                    self._messages.put(message)
        except FrameError as error:
            self._messages.put(error)
        self._messages.put(None)

    def _write(self) -> None:
        """Write orders until None comes, then close the input of the command."""
        stream = self._process.stdin
        assert stream is not None
        while (frame := self._orders.get()) is not None:
            self._writing_since_s = time.monotonic()
            try:
                stream.write(frame)
                stream.flush()
            except (OSError, ValueError):
                self._cannot_write = True
                break
            self._writing_since_s = 0.0
        with contextlib.suppress(OSError, ValueError):
            stream.close()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for data in _parts(self._process.stderr):
            self._words += data
            del self._words[:-LAST_WORDS_BYTES]


def start_command(place: NamedPlace) -> subprocess.Popen[bytes]:
    """The command of a place, its three streams as pipes. Raises ContactError."""
    try:
        return subprocess.Popen(
            place.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl+C in the terminal is for this program
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except FileNotFoundError:
        raise no_program(place) from None
    except OSError as error:
        raise ContactError(
            Sentence(
                "{command} cannot be started: {reason}",
                command=place.command[0],
                reason=error.strerror,
            )
        ) from None


def _parts(stream: IO[bytes]) -> Iterator[bytes]:
    descriptor = stream.fileno()
    with contextlib.suppress(OSError, ValueError):
        while data := os.read(descriptor, 1 << 16):
            yield data
