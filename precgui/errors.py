"""The base of errors whose message is for the user, and the words for those of others."""

from __future__ import annotations

import json

from precgui.sentences import L_, Sentence, message_of


class SentenceError(Exception):
    """Something that the user can correct: the message is one sentence that names the thing and the cure.

    The command line prints it and exits with 2, the window shows it; nobody words it again.
    """


def first_line(error: BaseException, most: int | None = None) -> str:
    """The first line of the message of an error of somebody else, without its last stop; the class where there is none.

    `most`: at most so many characters of it. A `Sentence` that is such a line stays one.
    """
    lines = str(error).strip().splitlines()
    line = (lines[0].strip().rstrip(".:") if lines else type(error).__name__)[:most]
    message = message_of(error)
    return message if message == line else line


def read_fault(error: BaseException) -> str:
    """Plain words for an error of Python on the content of a file, without advice for programmers."""
    match error:
        case json.JSONDecodeError():
            return Sentence("its JSON is damaged at character {place}", place=error.pos + 1)
        case UnicodeDecodeError():
            return Sentence("byte {place} of its text is not UTF-8", place=error.start + 1)
        case RecursionError():
            return L_("it is nested too deep")
        case OSError() if error.strerror:
            return error.strerror
        case KeyError() if error.args:
            return str(error.args[0])
        case ValueError() if "int_max_str_digits" in str(error):
            return L_("a number in it has too many digits")
    return first_line(error)
