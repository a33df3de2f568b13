"""The flight recorder: a ring buffer of the rows of the last steps that were not written, for the case of a fault."""

from __future__ import annotations

import collections

from precgui.events import Emit, TensorStats

BLACK_BOX_STEPS = 64
FLIGHT_RECORDER_BYTES = 64 << 20


class FlightRecorder:
    """Remembers events of the last BLACK_BOX_STEPS steps, of at most `room_bytes`: then the oldest go first."""

    def __init__(self, room_bytes: int = FLIGHT_RECORDER_BYTES) -> None:
        self._room_bytes, self._held_bytes = room_bytes, 0
        self._events: collections.deque[TensorStats] = collections.deque()

    def add(self, event: TensorStats) -> None:
        self._events.append(event)
        self._held_bytes += _size_bytes(event)
        while self._held_bytes > self._room_bytes or self._events[0].step <= event.step - BLACK_BOX_STEPS:
            self._held_bytes -= _size_bytes(self._events.popleft())

    def write(self, emit: Emit) -> None:
        """Emit all that is remembered, oldest first, and forget it."""
        while self._events:
            emit(self._events.popleft())
        self._held_bytes = 0


def _size_bytes(event: TensorStats) -> int:
    return len(event.stats) + len(event.exponents)
