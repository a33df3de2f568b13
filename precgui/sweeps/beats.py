"""Whether runs of other hosts live, told by their beat: a living run writes to its file each second (`HostRead`).

A process of another host cannot be asked, and clocks of two hosts differ. So a file is compared with itself: one that
has not changed for a while by the reader's own clock is of a process that is gone, or that the system has stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

GONE_AFTER_S = 180.0  # beyond the minute for which a network file system may show an old state


@dataclass
class BeatWatch:
    """The files that it has watched. `clock` is the reader's own, in seconds."""

    gone_after_s: float = GONE_AFTER_S
    clock: Callable[[], float] = time.monotonic
    _seen: dict[Path, tuple[tuple[int, ...], float]] = field(default_factory=dict)

    def is_gone(self, run: Path) -> bool:
        """Whether a file has not changed for `gone_after_s` of watching; False for one that is not there."""
        now_s, state = self.clock(), _state_of(run)
        before, since_s = self._seen.get(run, ((), now_s))
        if not state or state != before:
            self._seen[run] = state, now_s
            return False
        return now_s - since_s >= self.gone_after_s


def _state_of(path: Path) -> tuple[int, ...]:
    try:
        state = path.stat()
    except OSError:
        return ()
    return state.st_ino, state.st_size, state.st_mtime_ns
