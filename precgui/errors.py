"""The base of errors whose message is for the user; `sentences.py` has the words for those of others."""

from __future__ import annotations


class SentenceError(Exception):
    """Something that the user can correct: the message is one sentence that names the thing and the cure.

    The command line prints it and exits with 2, the window shows it; nobody words it again.
    """
