"""The state of a sweep as plain data: the JSON of `precgui sweep`, and what the window's grid shows."""

from __future__ import annotations

from dataclasses import dataclass

from precgui.sweeps.estimate import seconds_left
from precgui.sweeps.folder import SweepFolder
from precgui.sweeps.state import ENDED, MemberState


@dataclass(frozen=True)
class MemberRow:
    """One run of the plan; `run` is its file, None before its start."""

    name: str
    kind: str
    arm: str
    precision: str
    seed: int
    block: int
    status: str
    run: str | None
    wall_s: float | None
    loss: float | None
    metric: float | None
    message: str
    is_out_of_reach: bool  # it runs, as far as its file says, on another machine


@dataclass(frozen=True)
class SweepDocument:
    """`left_s` is None before a run has ended.."""

    folder: str
    members: tuple[MemberRow, ...]
    done: int
    left: int
    left_s: float | None
    looks: tuple[int, ...]
    paused: bool


def sweep_document(folder: SweepFolder) -> SweepDocument:
    """The state of a sweep at this moment."""
    folder.reload()
    states = folder.states()
    return SweepDocument(
        folder=str(folder.path),
        members=tuple(_row(state) for state in states),
        done=sum(state.status in ENDED for state in states),
        left=sum(state.status in ("waiting", "cut off", "running") for state in states),
        left_s=seconds_left(states),
        looks=tuple(folder.spec.looks),
        paused=folder.paused,
    )


def _row(state: MemberState) -> MemberRow:
    member = state.member
    started = state.status not in ("waiting", "skipped", "given up")
    return MemberRow(
        member.name, member.kind, member.arm, member.precision, member.seed, member.block, state.status,
        str(state.path) if started else None, state.wall_s, state.loss, state.metric, state.message,
        state.is_out_of_reach,
    )  # fmt: skip
