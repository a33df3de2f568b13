"""Text on a terminal: what files say is shown, never obeyed."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

# C0 but tab and line end, DEL, C1, and what turns the direction of writing: a terminal would act on these.
_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def harmless(text: str) -> str:
    """The text with characters that a terminal would act on written as their codes, such as \\x1b."""
    return _ACTING.sub(lambda result: ascii(result[0])[1:-1], text)


def say(*values: object, file: TextIO | None = None, end: str = "\n", flush: bool = False) -> None:
    """Print as `print` does, with nothing that a terminal would act on."""
    print(harmless(" ".join(map(str, values))), file=file or sys.stdout, end=end, flush=flush)


def say_notes(path: Path, notes: Iterable[str]) -> None:
    """Print to stderr what of a run file is odd or could not be read; call it when all has been read."""
    for note in notes:
        say(f"precgui: {path}: {note}", file=sys.stderr)


def with_streams() -> None:
    """Give Python the standard streams that the caller has closed, so that what is printed goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123  for as long as it lives
