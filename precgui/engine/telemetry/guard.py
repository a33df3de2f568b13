"""The border between a recording and the training that is recorded: a fault of the recording does not cross it."""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from precgui.sentences import Sentence

_PACKAGE = Path(__file__).parents[2]


class Guard:
    """Decides the fate of an exception inside the recording; this one lets it through, as precgui's own runs do.

    Objects with methods that are `guarded` have one as `guard`. Once it `is_shut`, these methods do nothing.
    """

    is_shut = False

    def shut(self, error: Exception) -> None:
        """Called with an exception that a guarded method raised."""
        raise error


LET_THROUGH = Guard()


class LoopGuard(Guard):
    """Ends the recording of a user's loop at its first fault: one warning, one sentence for the record."""

    def __init__(self) -> None:
        self.is_shut = False
        self.on_fault: Callable[[str], None] = lambda reason: None  # gets a clause; what it raises is dropped
        self._lock = threading.Lock()

    def shut(self, error: Exception) -> None:
        """Shut the guard and report the fault, once. Raises nothing, also where warnings are errors."""
        with self._lock:
            if self.is_shut:
                return
            self.is_shut = True
        reason = Sentence("a fault inside precgui ({error})", error=_described(error))
        with contextlib.suppress(Exception):  # a second fault has nobody to go to, and the training must go on
            self.on_fault(reason)
        _warn(
            Sentence(
                "precgui has stopped recording because of {reason}; the training goes on as without it.", reason=reason
            )
        )


def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that calls `guard.shut` of its object with an exception instead of raising it, and then returns None."""

    @wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        guard = self.guard
        if guard.is_shut:
            return None
        try:
            return method(self, *args, **options)
        except Exception as error:  # noqa: BLE001 - any fault of the recording: the training must go on
            return guard.shut(error)

    return call


def _described(error: Exception) -> str:
    """Class, first line and place of an exception: `ZeroDivisionError: division by zero in record/hooks.py:12`."""
    text = (str(error).strip().splitlines() or [""])[0]
    places = [each for each in traceback.extract_tb(error.__traceback__) if _PACKAGE in Path(each.filename).parents]
    where = f" in {Path(places[-1].filename).relative_to(_PACKAGE).as_posix()}:{places[-1].lineno}" if places else ""
    return f"{type(error).__name__}{': ' if text else ''}{text:.200}{where}"


def _warn(text: str) -> None:
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    except Warning:  # the loop has made warnings errors, but this is none of its own
        with contextlib.suppress(Exception):  # a loop may have closed it, or put anything in its place
            sys.stderr.write(f"warning: {text}\n")
