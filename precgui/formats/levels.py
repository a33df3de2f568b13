"""Which different values there are among many numbers, and how often each is, as long as they are few."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from precgui.formats.arrays import Floats

SLOTS_LOG2 = 16
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
Counts = NDArray[np.int_]


class HashedCodes:
    """A table with a slot for each hash; the few values whose slot is another's are counted by bisection."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._slots = np.full(1 << SLOTS_LOG2, np.nan)
        self._counts: Counts = np.zeros(1 << SLOTS_LOG2, np.int_)
        self._others: dict[float, int] = {}
        self._many = False

    def add(self, values: Floats) -> None:
        """Numbers without NaN; both zeros are one."""
        if self._many:
            return
        numbers = values + 0.0
        places = (numbers.view(np.uint64) * _SPREAD >> np.uint64(64 - SLOTS_LOG2)).astype(np.intp)
        held = self._slots[places] == numbers
        if not held.all():
            self._assign_slots(numbers[~held], places[~held])
            held = self._slots[places] == numbers
        if held.all():
            self._counts += np.bincount(places, minlength=self._counts.size)
            return
        self._counts += np.bincount(places[held], minlength=self._counts.size)
        values, counts = np.unique(numbers[~held], return_counts=True)
        for value, count in zip(values[: self._most + 1].tolist(), counts.tolist(), strict=False):
            self._others[value] = self._others.get(value, 0) + count
        self._many = self._size() > self._most

    def _assign_slots(self, numbers: Floats, places: Counts) -> None:
        """Give new values the slots that are free."""
        new, first = np.unique(numbers, return_index=True)
        free = np.isnan(self._slots[places[first]])
        self._slots[places[first][free]] = new[free]

    def _size(self) -> int:
        return int(np.count_nonzero(~np.isnan(self._slots))) + len(self._others)

    def counted(self) -> tuple[Floats, Counts]:
        """The values in ascending order and their counts; both empty where there are too many."""
        if self._many:
            return np.zeros(0), np.zeros(0, np.int_)
        used = np.flatnonzero(self._counts)
        values = np.concatenate([self._slots[used], np.fromiter(self._others, np.float64)])
        counts = np.concatenate([self._counts[used], np.fromiter(self._others.values(), np.int_)])
        order = np.argsort(values)
        return values[order], counts[order]
