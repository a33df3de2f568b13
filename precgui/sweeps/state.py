"""How far a run of a sweep has come, read from its file: the files are the state, there is no other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import SavedRun, open_run
from precgui.runs.outcome import why_failed
from precgui.sentences import L_, message_of
from precgui.sweeps.plan import Member

MemberStatus = Literal["waiting", "running", "completed", "failed", "cut off", "skipped", "given up"]
ENDED = ("completed", "failed")
START_S = 5.0  # a process with torch; only for members of which nothing else is known
RUN_PROCESS = L_("the process of the run")
KILLED = f"{RUN_PROCESS} was killed by"  # how the message of such a run begins


@dataclass(frozen=True)
class MemberState:
    """`wall_s` is from the making of the file to its last write. `loss` and `metric` are the final validation's.

    `message` of a running one names the process that writes it where that is out of reach, see `is_out_of_reach`.
    A run that completed and did not come through (see `runs.outcome.why_failed`) counts as a failure of its arm.
    """

    member: Member
    path: Path
    status: MemberStatus
    wall_s: float | None = None
    loss: float | None = None
    metric: float | None = None
    message: str = ""
    came_through: bool = False
    beat: Mapping[str, Any] = field(default_factory=dict)  # see `SavedRun.beat`

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended its process, from outside or for want of memory: no answer about its arm."""
        return self.status == "failed" and self.message.startswith(KILLED)

    @property
    def is_out_of_reach(self) -> bool:
        """Whether it runs on another machine or in another container, if its process has not ended unseen."""
        return self.status == "running" and bool(self.message)


def read_state(member: Member, path: Path) -> MemberState:
    """The state of a member from its file; never raises for a bad file, which is one that was cut off."""
    if not path.exists():
        return MemberState(member, path, "skipped" if member.skipped else "waiting")
    try:
        with open_run(path) as run:
            return _state_of(member, path, run)
    except RunFileError as error:
        return MemberState(member, path, "cut off", message=message_of(error))


def _state_of(member: Member, path: Path, run: SavedRun) -> MemberState:
    if run.status == "running":
        writer = run.written_by if run.cannot_ask_writer else ""
        return MemberState(member, path, "running", message=writer, beat=run.beat)
    final = run.summary.get("final")
    if not isinstance(final, dict) or run.status == "stopped":  # killed, or ended before its time: runs again
        return MemberState(member, path, "cut off", message=run.message)
    status: MemberStatus = "completed" if run.status == "completed" else "failed"
    why = why_failed(run)
    if run.damage:  # known when its columns were read
        return MemberState(member, path, "cut off", message=run.damage)
    validated = len(run.series("val_loss")[1]) > 0  # a run that is too short for a validation has its training loss
    loss, metric = _finite(final.get("val_loss" if validated else "train_loss")), _finite(final.get("val_accuracy"))
    message = run.message if status == "failed" or not why else why
    return MemberState(member, path, status, _wall_s(path, run), loss, metric, message, came_through=not why)


def _wall_s(path: Path, run: SavedRun) -> float | None:
    try:
        return max(path.stat().st_mtime - datetime.fromisoformat(run.created).timestamp(), 0.0)
    except (OSError, ValueError):
        return None


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def given_up_arms(states: list[MemberState], failures: int) -> set[str]:
    """Arms whose runs have failed so many times without one that came through; none for 0. Killed ones do not count."""
    if not failures:
        return set()
    came_through = {state.member.arm for state in states if state.came_through}
    failed = Counter(
        state.member.arm
        for state in states
        if state.member.kind == "run" and state.status in ENDED and not (state.came_through or state.was_killed)
    )
    return {arm for arm, count in failed.items() if count >= failures and arm not in came_through}


def seconds_left(states: Sequence[MemberState]) -> float | None:
    """How long the rest takes, from the runs that have ended: of the same arm, else of any; None before the first."""
    waiting = [state for state in states if state.status in ("waiting", "cut off", "running")]
    known = _seconds_of_arms(states)
    if not waiting:
        return 0.0
    if not known:
        return None
    usual = mean(known.values())
    return sum(START_S + _short_share(state) * known.get(state.member.arm, usual) for state in waiting)


def _short_share(state: MemberState) -> float:
    return 0.0 if state.member.kind in ("warm-up", "timing") else 1.0


def _seconds_of_arms(states: Sequence[MemberState]) -> Mapping[str, float]:
    arms: dict[str, list[float]] = {}
    for state in states:
        if state.member.kind in ("run", "twin") and state.wall_s is not None and state.status in ENDED:
            arms.setdefault(state.member.arm, []).append(state.wall_s)
    return {arm: mean(values) for arm, values in arms.items()}
