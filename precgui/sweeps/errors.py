"""The one error of sweeps, and the clause that tells any error of a folder of somebody else."""

from precgui.errors import SentenceError
from precgui.sanitize import one_line


class SweepError(SentenceError, ValueError):
    """A sweep cannot be made, read or changed; the message is one sentence with the cure."""


def reason(error: Exception) -> str:
    """Why something of a sweep cannot be read, as a clause without a full stop."""
    text = one_line(str(error), 600).rstrip(".")
    is_sentence = isinstance(error, SentenceError | ValueError | OSError)
    return text if text and is_sentence else f"its files are damaged ({type(error).__name__}: {text[:200]})"
