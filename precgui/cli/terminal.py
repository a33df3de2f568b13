"""Text on a terminal: what files say is shown, never obeyed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from precgui.sanitize import sanitize
from precgui.words import translated


def say(*values: object, file: TextIO | None = None, end: str = "\n", flush: bool = False) -> None:
    """Print as `print` does, with nothing that a terminal would act on."""
    print(sanitize(" ".join(map(str, values))), file=file or sys.stdout, end=end, flush=flush)


def say_notes(path: Path, notes: Iterable[str]) -> None:
    """Print to stderr what of a run file is odd or could not be read; call it when all has been read."""
    for note in notes:
        say(f"precgui: {path}: {translated(note)}", file=sys.stderr)


def with_streams() -> None:
    """Give Python the standard streams that the caller has closed, so that what is printed goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123  for as long as it lives
