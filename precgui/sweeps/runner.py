"""Runs the members of a sweep one after the other, each in a process of its own, and goes on where another stopped."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from precgui.config import RunConfig, build
from precgui.errors import SentenceError
from precgui.events import Event, RunEnded
from precgui.process.supervised import DeathWords, task_process
from precgui.runs.broken_off import broken_off
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import open_run
from precgui.runs.held_power_limit import why_no_power_limit
from precgui.runs.step_times import keep_step_time
from precgui.runs.training_process import TrainingProcess
from precgui.sanitize import one_line
from precgui.sentences import L_, Sentence
from precgui.sweeps.errors import SweepError
from precgui.sweeps.events import EmitSweep, MemberBegan, MemberEnded, MemberEvent, SweepEvent, SweepWaits
from precgui.sweeps.folder import QUEUED, SweepFolder
from precgui.sweeps.lock import FileLock
from precgui.sweeps.plan import Member
from precgui.sweeps.state import RUN_PROCESS, MemberState

if TYPE_CHECKING:
    from precgui.process.child import StopToken


POLL_S = 0.5
_TRIES, _BETWEEN_TRIES_S = 3, 0.05  # who asks for the owner of the lock holds it for some microseconds
KILL_AFTER_S = 3.0  # after a stop; the child gives up a step that does not end in `child.GRACE_S`
WORDS = DeathWords(RUN_PROCESS, L_("the process"), L_("somebody ended it, or the system was out of memory"))
GONE_AFTER_S = 180.0  # beyond the minute for which a network file system may show an old state
_OF_A_BEAT = ("host", "boot_id", "pid", "start_ticks", "beats")  # and not its time, which is of another clock


class SweepBusy(SweepError):
    """Another process runs the members of this sweep."""

    def __init__(self, owner: Mapping[str, Any]) -> None:
        super().__init__(
            Sentence("the sweep is being run by process {pid} on {host}", pid=owner.get("pid"), host=owner.get("host"))
        )


def run_sweep(
    folder: SweepFolder,
    emit: EmitSweep,
    stopped: Callable[[], bool] = lambda: False,
    aborted: Callable[[], bool] = lambda: False,
    *,
    block: int | None = None,
    take_over: bool = False,
    train: TrainMember | None = None,
) -> None:
    """Run what is left, of one block or of all. Returns when nothing is, when it is paused, or when asked to.

    `stopped`: begin no further run. `aborted`: end the present one, too; it runs again from its start next time. Blocks
    may run in several processes at once, each on a machine of its own. `take_over`: the process that runs members now
    ends its present one and leaves the others to this one. `train` trains a member; by default a process of its own
    does. Raises SweepBusy while another one runs them, or SweepError.
    """
    _refuse_what_cannot_be(folder)
    lock = folder.runner if block is None else folder.lock_of_block(block)
    if not _acquired(lock) and not take_over:
        raise SweepBusy(lock.owner() or {})
    if not lock.is_held and not _taken_over(folder, emit, lambda: stopped() or aborted()):
        return
    try:
        while not (stopped() or aborted()):
            if block is None and (successor := folder.successor.owner()) is not None:
                raise SweepBusy(successor)
            folder.note_edited_targets()  # with each run, so that the record says how many had ended
            if folder.paused:
                emit(SweepWaits(L_("somebody paused the sweep")))
                return
            states = _states_now(folder, block)
            if any(state.status == "running" for state in states):  # its runner was killed, it was not
                _wait_for_it(folder, block, emit, lambda: stopped() or aborted())
                continue
            if (member := next_member(states)) is None:
                return
            _run_member(folder, member, emit, aborted, train or run_in_process)
    finally:
        lock.release()


def _refuse_what_cannot_be(folder: SweepFolder) -> None:
    """Raises SweepError for a sweep that is trained in the queue of a place, and, before the first run, where one is
    to set a power limit and this machine refuses it."""
    if (folder.path / QUEUED).exists():
        raise SweepError(
            Sentence(
                "the runs of {folder} are in the queue of a place, which {file} names; `precgui sweep {folder} --place "
                "NAME` asks it",
                folder=folder.path,
                file=QUEUED,
            )
        )
    spec = folder.spec
    limits = [*spec.vary.get("power.limit_w", []), build(spec.config).power.limit_w]
    if any(limit is not None for limit in limits) and (why := why_no_power_limit()):
        raise SweepError(Sentence("{why}; leave power.limit_w out of the study", why=why))


def _acquired(lock: FileLock) -> bool:
    for _ in range(_TRIES):
        if lock.acquire():
            return True
        time.sleep(_BETWEEN_TRIES_S)
    return False


def _taken_over(folder: SweepFolder, emit: EmitSweep, stopped: Callable[[], bool]) -> bool:
    """Ask the process that runs the members for them, and wait for its lock; whether it was acquired before a stop.

    The lock of the successor is the request: the system releases it if this process is killed. Raises SweepBusy when
    another process has asked already.
    """
    if not _acquired(folder.successor):
        raise SweepBusy(folder.successor.owner() or {})
    try:
        if (owner := folder.runner.owner()) is not None:
            own = {"pid": owner.get("pid"), "host": owner.get("host")}
            emit(SweepWaits(Sentence("process {pid} on {host} ends its present run first", **own)))
        while not stopped():
            if folder.runner.acquire():
                return True
            time.sleep(POLL_S)
        return False
    finally:
        folder.successor.release()


def _states_now(folder: SweepFolder, block: int | None) -> list[MemberState]:
    """Those of one block, or of all, by the plan as it is now."""
    folder.reload()
    return [state for state in folder.states() if block is None or state.member.block == block]


def next_member(states: list[MemberState]) -> Member | None:
    """The first of the plan that has not run to its end and is not left out."""
    return next((state.member for state in states if state.status in ("waiting", "cut off")), None)


def _run_member(
    folder: SweepFolder, member: Member, emit: EmitSweep, aborted: Callable[[], bool], train_member: TrainMember
) -> None:
    config, path = folder.config_of(member), folder.path_of(member)
    emit(MemberBegan(member.name, str(path)))
    begin = time.monotonic()

    def train(*, goes_on: bool = False) -> RunEnded:
        return train_member(config, path, lambda event: emit(MemberEvent(member.name, event)), aborted, goes_on=goes_on)

    ended = train(goes_on=True) if member.kind != "timing" and _goes_on(path, config) else None
    if ended is None or (folder.state_of(member).status == "cut off" and not aborted()):  # refused, with its file left
        if path.exists():
            folder.discard(member)
        ended = train()
    if path.exists() and folder.state_of(member).status == "running":  # begun by a runner that was killed
        emit(SweepWaits(Sentence("{run} is trained by another process already", run=member.name)))
        return
    emit(MemberEnded(member.name, ended.status, ended.message, time.monotonic() - begin))
    if not path.exists():
        why = ended.message or L_("the process could not be started")
        raise SweepError(Sentence("{run} left no file: {why}", run=member.name, why=why))
    with contextlib.suppress(RunFileError, OSError), open_run(path) as run:  # for estimates of later runs, no more
        keep_step_time(run)


def _goes_on(path: Path, config: RunConfig) -> bool:
    """Whether a member that was cut off has a checkpoint from which its very training can go on."""
    try:
        return path.exists() and broken_off(path).config == config
    except RunFileError:
        return False


def _wait_for_it(folder: SweepFolder, block: int | None, emit: EmitSweep, stopped: Callable[[], bool]) -> None:
    def is_running(state: MemberState) -> bool:
        return state.status == "running" and (block is None or state.member.block == block)

    emit(SweepWaits(_why_it_waits(list(filter(is_running, folder.states())))))
    beats = BeatWatch()
    while not stopped() and (running := [state for state in folder.states() if is_running(state)]):
        for state in running:
            if state.is_out_of_reach and beats.is_gone(state.path, state.beat):
                folder.give_up(state.member.name)
                why = _no_sign_of_life(state)
                emit(SweepWaits(Sentence("{run} runs again: {why}", run=state.member.name, why=why)))
        time.sleep(POLL_S)


def _no_sign_of_life(state: MemberState) -> str:
    time_there = one_line(str(state.beat.get("time", "")), 40)
    if not time_there:
        return Sentence("{process} has given no sign of life", process=state.message)
    return Sentence(
        "{process} has given no sign of life since {time}, by its own clock", process=state.message, time=time_there
    )


def _why_it_waits(running: list[MemberState]) -> str:
    lost = next((state for state in running if state.is_out_of_reach), None)
    if lost is None:
        return L_("a run that was begun before still trains")
    return Sentence(
        "{run} is written by {process}, which cannot be asked from here; it runs again when that process has given no "
        "sign of life for {seconds:.0f} s, at once with --give-up {run}",
        run=lost.member.name,
        process=lost.message,
        seconds=GONE_AFTER_S,
    )


def _message(error: SentenceError) -> str:
    """The message of an error; a sentence stays one."""
    return error.args[0] if error.args and isinstance(error.args[0], str) else str(error)


def serve(emit: EmitSweep, control: StopToken, *, folder: str, take_over: bool = False) -> None:
    """A sweep as the task of a child process of the window (`process/child.py`); Stop ends the present run, too.

    The events of its runs are not passed on: the window reads their files.
    """

    def relay(event: SweepEvent) -> None:
        if not isinstance(event, MemberEvent):
            emit(event)

    try:
        run_sweep(SweepFolder(Path(folder)), relay, aborted=control.stopped, take_over=take_over)
    except SentenceError as error:
        emit(SweepWaits(_message(error)))


class TrainMember(Protocol):
    """Trains one run into the file `path` until it has ended, as `run_in_process` does."""

    def __call__(
        self,
        config: RunConfig,
        path: Path,
        emit: Callable[[Event], None],
        stopped: Callable[[], bool],
        *,
        goes_on: bool = False,
    ) -> RunEnded: ...


def run_in_process(
    config: RunConfig, path: Path, emit: Callable[[Event], None], stopped: Callable[[], bool], *, goes_on: bool = False
) -> RunEnded:
    """Train in a new process until it has ended, or go on with a broken run; its events go to `emit`.

    Returns how it ended, also when it died.
    """
    process = task_process(KILL_AFTER_S)
    training = TrainingProcess(process, WORDS)
    training.begin(config, path, uuid.uuid4().hex, goes_on=goes_on)

    def take(batch: list[Event]) -> None:
        training.watch(batch)
        for event in batch:
            emit(event)

    lost = training.lost(process.run(take, stopped))
    ended = training.ended or lost
    assert ended is not None
    return ended


@dataclass
class BeatWatch:
    """Whether runs of other hosts live, told by their beat, which a living run writes to its file (`EventStore.beat`).

    A process of another host cannot be asked, and clocks of two hosts differ. So a beat is compared with the one before
    it: where it has been the same for a while by the reader's own `clock`, in seconds, its process is gone, or the
    system has stopped it.
    """

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
