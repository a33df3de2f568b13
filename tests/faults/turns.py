"""The seeds and the ways of recording that loops are trained with: one of each, in turns, or all with FAULTS_LONG."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def in_turns(names: Iterable[str], ways: Sequence[T]) -> list[tuple[str, T]]:
    """Each name with one of the ways, which take turns; with each of them where the environment has FAULTS_LONG."""
    if os.environ.get("FAULTS_LONG"):
        return list(itertools.product(names, ways))
    return list(zip(names, itertools.cycle(ways), strict=False))
