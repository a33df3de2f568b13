"""The base of errors whose message is for the user, and the first line of those of others."""

from __future__ import annotations


class SentenceError(Exception):
    """Something that the user can correct: the message is one sentence that names the thing and the cure.

    The command line prints it and exits with 2, the window shows it; nobody words it again.
    """


def first_line(error: BaseException, most: int | None = None) -> str:
    """The first line of the message of an error of somebody else, without its last stop; the class where there is none.

    `most`: at most so many characters of it.
    """
    lines = str(error).strip().splitlines()
    return (lines[0].strip().rstrip(".:") if lines else type(error).__name__)[:most]
