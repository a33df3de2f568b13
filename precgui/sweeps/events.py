"""Events of a sweep, beside those of its runs; built-in types only, to cross a process border."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from precgui.events import Event


@dataclass(frozen=True, slots=True)
class MemberBegan:
    name: str
    path: str


@dataclass(frozen=True, slots=True)
class MemberEvent:
    """An event of the run that is under way."""

    name: str
    event: Event


@dataclass(frozen=True, slots=True)
class MemberEnded:
    """`wall_s` is the life of the process, from its start to its end."""

    name: str
    status: str
    message: str
    wall_s: float


@dataclass(frozen=True, slots=True)
class SweepWaits:
    """No run starts now, and why: another process trains a run of this sweep, or the sweep is paused."""

    why: str


@dataclass(frozen=True, slots=True)
class MemberGoesOn:
    """A run goes on at its place: the sweep was stopped while the link to it was lost."""

    name: str
    place: str


SweepEvent = MemberBegan | MemberEvent | MemberEnded | SweepWaits | MemberGoesOn
EmitSweep = Callable[[SweepEvent], None]
