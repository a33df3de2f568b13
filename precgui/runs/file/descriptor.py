"""File descriptors that other code may close and use again, as `os.closerange` does in a process that detaches."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable

from precgui.sentences import L_

CLOSED_BY_OTHERS = L_("other code has closed the descriptor of its file")


class Descriptor:
    """The number of an open file, and which file that was."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._file = _file_of(number)

    def is_ours(self) -> bool:
        """Whether the number still stands for the file: it may be closed, or stand for a file of other code."""
        return self.was(self.number)

    def was(self, number: int) -> bool:
        """Whether another descriptor stands for the same file."""
        return self._file is not None and _file_of(number) == self._file

    def close_elsewhere(self, close: Callable[[], None]) -> None:
        """Call `close`, whose writes to the number go to a file without a name; a file of others gets it back."""
        others = None if self.is_ours() or _file_of(self.number) is None else os.dup(self.number)
        inherited = others is not None and os.get_inheritable(self.number)
        nowhere = os.memfd_create("nowhere") if hasattr(os, "memfd_create") else tempfile.mkstemp()[0]
        if nowhere != self.number:
            os.dup2(nowhere, self.number, inheritable=False)
            os.close(nowhere)
        close()
        if others is not None:
            os.dup2(others, self.number, inheritable=inherited)
            os.close(others)

    def close(self) -> None:
        """Close the file unless others have done so."""
        if self.is_ours():
            with contextlib.suppress(OSError):
                os.close(self.number)


def _file_of(number: int) -> tuple[int, int] | None:
    """Device and number of an open file; None for a descriptor that is closed."""
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return status.st_dev, status.st_ino
