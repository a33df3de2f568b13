"""Whether runs of other hosts live, told by their beat, which a living run writes to its file (`EventStore.beat`).

A process of another host cannot be asked, and clocks of two hosts differ. So a beat is compared with the one before it:
where it has been the same for a while by the reader's own clock, its process is gone, or the system has stopped it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GONE_AFTER_S = 180.0  # beyond the minute for which a network file system may show an old state
_OF_A_BEAT = ("host", "boot_id", "pid", "start_ticks", "beats")  # and not its time, which is of another clock


@dataclass
class BeatWatch:
    """The beats that it has seen. `clock` is the reader's own, in seconds."""

    gone_after_s: float = GONE_AFTER_S
    clock: Callable[[], float] = time.monotonic
    _seen: dict[Path, tuple[tuple[object, ...], float]] = field(default_factory=dict)

    def is_gone(self, run: Path, beat: Mapping[str, Any]) -> bool:
        """Whether the beat of a run has stopped for `gone_after_s` of watching; False for a file that is not there.

        Of a file without beats, of an older version, each change counts as one.
        """
        now_s, state = self.clock(), tuple(map(beat.get, _OF_A_BEAT)) if beat else _state_of(run)
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
