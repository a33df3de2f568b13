"""Errors of run files, each with one sentence."""

from __future__ import annotations

from precgui.errors import SentenceError


class RunFileError(SentenceError):
    """A run file cannot be written or read; the message is one sentence that names the file and the cure."""
