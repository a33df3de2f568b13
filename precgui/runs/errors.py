"""What can go wrong with a run file, as one sentence."""

from __future__ import annotations


class RunFileError(Exception):
    """A run file cannot be written or read; the message is one sentence that names the file and the cure."""
