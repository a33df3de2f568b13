"""Errors of the engine that the user can correct, each with one sentence."""


class EngineError(Exception):
    """The run cannot start or go on; the message names the thing and the cure, `details` hold a traceback if any."""

    def __init__(self, message: str = "", details: str = "") -> None:
        super().__init__(message)
        self.details = details


class Stopped(Exception):
    """The run was asked to stop before its first step."""


def first_line(error: BaseException) -> str:
    """The first line of a message of somebody else's error, without its last stop; the class where there is none."""
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".:") if lines else type(error).__name__
