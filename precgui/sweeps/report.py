"""The state of a sweep as plain data: the JSON of `precgui sweep`, and what the window's grid shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from precgui.sweeps.folder import JOBS, SweepFolder
from precgui.sweeps.jobs import JobWatch
from precgui.sweeps.state import ENDED, MemberState, seconds_left

_JOBS = JobWatch()


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
    job: str = ""  # of a cluster, with its state and the reason why it waits, while the run has not ended


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
    jobs = {block: state.in_words for block, state in _JOBS.by_block(folder.path / JOBS).items()}
    return SweepDocument(
        folder=str(folder.path),
        members=tuple(_row(state, jobs) for state in states),
        done=sum(state.status in ENDED for state in states),
        left=sum(state.status in ("waiting", "cut off", "running") for state in states),
        left_s=seconds_left(states),
        looks=tuple(folder.spec.looks),
        paused=folder.paused,
    )


def _row(state: MemberState, jobs: Mapping[int, str]) -> MemberRow:
    member = state.member
    started = state.status not in ("waiting", "skipped", "given up")
    return MemberRow(
        member.name, member.kind, member.arm, member.precision, member.seed, member.block, state.status,
        str(state.path) if started else None, state.wall_s, state.loss, state.metric, state.message,
        state.is_out_of_reach, "" if state.status in ENDED else jobs.get(member.block, ""),
    )  # fmt: skip
