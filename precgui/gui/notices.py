"""Notices of the application: a list with each cause once, and the hooks that catch unhandled exceptions.

No Qt here: `banners.py` shows what this module keeps.
"""

from __future__ import annotations

import faulthandler
import io
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

from precgui.words import _

if TYPE_CHECKING:
    from precgui.events import Severity

LIMIT = 500
Remedy: TypeAlias = "tuple[str, Callable[[], object]] | tuple[str, Callable[[], object], Callable[[], bool]]"


@dataclass(frozen=True)
class Notice:
    """One sentence for the user. `details` is copyable (a traceback); `cause` separates equal sentences
    from two origins (default: the text); `remedies` are buttons, each a label, what it does and, where that is not
    always possible, when it is. `is_over` says that what the notice speaks of is over: its banner goes then. A note
    without remedies goes after some seconds, and so does one that `passes`."""

    severity: Severity
    text: str
    details: str = ""
    cause: str = ""
    remedies: tuple[Remedy, ...] = ()
    is_over: Callable[[], bool] | None = None
    passes: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.severity, self.cause or self.text


@dataclass
class NoticeEntry:
    """A notice in the list: how often it came, when last (seconds since the epoch), whether it was read."""

    notice: Notice
    count: int = 1
    time_s: float = field(default_factory=time.time)
    read: bool = False


class Notices:
    """The list of notices. May be posted to from any thread; listeners are called in the thread that posts."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], NoticeEntry] = {}
        self._listeners: list[Callable[[NoticeEntry], None]] = []
        self._lock = threading.Lock()

    def subscribe(self, listener: Callable[[NoticeEntry], None]) -> None:
        """Call `listener` at every post, also for what was posted before it came."""
        self._listeners.append(listener)
        for entry in self.entries():
            listener(entry)

    def unsubscribe(self, listener: Callable[[NoticeEntry], None]) -> None:
        self._listeners.remove(listener)

    def post(self, notice: Notice) -> NoticeEntry:
        """Keep a notice; one of a known cause raises the count of the first."""
        with self._lock:
            known = self._entries.pop(notice.key, None)
            entry = NoticeEntry(notice, (known.count if known else 0) + 1)
            self._entries[notice.key] = entry
            while len(self._entries) > LIMIT:
                del self._entries[next(iter(self._entries))]
        for listener in list(self._listeners):
            listener(entry)
        return entry

    def entries(self) -> list[NoticeEntry]:
        """Oldest first."""
        with self._lock:
            return list(self._entries.values())

    def unread(self) -> int:
        return sum(not entry.read for entry in self.entries())

    def mark_read(self) -> None:
        for entry in self.entries():
            entry.read = True

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()


def from_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Notice:
    """An uncaught exception as a notice; its cause is the line that raised it."""
    frames = traceback.extract_tb(trace)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    said = " ".join(str(error).split())
    fault = f"{kind.__name__}: {said}" if said else kind.__name__
    text = _("Something went wrong inside precgui: {fault}").format(fault=fault)
    details = "".join(traceback.format_exception(kind, error, trace))
    return Notice("error", text[:300], details, cause=f"{kind.__name__}@{where}")


@contextmanager
def caught(notices: Notices, log: io.TextIOBase | None) -> Iterator[None]:
    """While this lasts, an uncaught exception of any thread becomes a notice and is written to `log`.

    The hooks that were there before are put back at the end. Ctrl+C keeps its usual way.
    """
    hooks = sys.excepthook, threading.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            hooks[0](kind, error, trace)
            return
        entry = notices.post(from_exception(kind, error, trace))
        sys.stderr.write(entry.notice.details)
        if log is not None and entry.count == 1:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n{entry.notice.details}\n")
            log.flush()

    def report_thread(args: threading.ExceptHookArgs) -> None:
        report(args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)

    sys.excepthook, threading.excepthook = report, report_thread
    try:
        yield
    finally:
        sys.excepthook, threading.excepthook = hooks


@contextmanager
def crash_log(folder: Path) -> Iterator[tuple[io.TextIOBase | None, Path | None]]:
    """Open the crash log of this session for exceptions and for fatal signals (faulthandler).

    Yields the log and the non-empty log of an earlier session, moved aside, if there is one. Where the folder
    cannot be written there is no log. A log that stayed empty is removed at the end.
    """
    path = folder / "crash.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        earlier = _moved_aside(path)
        log = path.open("a", encoding="utf-8")
    except OSError:
        yield None, None
        return
    faulthandler.enable(log)
    try:
        yield log, earlier
    finally:
        faulthandler.disable()
        log.close()
        if path.is_file() and path.stat().st_size == 0:
            path.unlink()


def _moved_aside(path: Path) -> Path | None:
    if not path.is_file() or path.stat().st_size == 0:
        return None
    aside = path.with_name("crash-previous.log")
    path.replace(aside)
    return aside
