"""The one error of sweeps, and the clause that tells any error of a folder of somebody else."""

from precgui.errors import SentenceError
from precgui.sanitize import one_line
from precgui.sentences import Sentence


class SweepError(SentenceError, ValueError):
    """A sweep cannot be made, read or changed; the message is one sentence with the cure."""


def reason(error: Exception) -> str:
    """Why something of a sweep cannot be read, as a clause without a full stop."""
    text = one_line(str(error), 600).rstrip(".")
    if text and isinstance(error, SentenceError | ValueError | OSError):
        own = error.args[0] if error.args else ""
        return own if isinstance(own, Sentence) and own == text else text
    return Sentence("its files are damaged ({error}: {text})", error=type(error).__name__, text=text[:200])
