"""Errors of the engine that the user can correct, each with one sentence."""

from precgui.errors import SentenceError


class EngineError(SentenceError):
    """The run cannot start or go on; the message names the thing and the cure, `details` hold a traceback if any."""

    def __init__(self, message: str = "", details: str = "") -> None:
        super().__init__(message)
        self.details = details


class Stopped(Exception):
    """The run was asked to stop before its first step."""
