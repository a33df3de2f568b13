"""A sweep as a folder: `sweep.toml`, `plan.json` and ordinary run files under `members/`."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from precgui.checkpoint_files import all_checkpoint_files
from precgui.config import RunConfig
from precgui.runs.verdict.targets import DEFAULT_TARGETS, Targets, load_targets, targets_toml
from precgui.safe_open import open_to_write, read_text, replace_file
from precgui.sentences import Sentence
from precgui.sweeps.errors import SweepError
from precgui.sweeps.lock import FileLock
from precgui.sweeps.plan import (
    Member,
    SweepPlan,
    config_hash,
    extended,
    make_plan,
    member_config,
    parse_plan,
    plan_json,
)
from precgui.sweeps.spec import Arm, SweepSpec, read_spec, spec_toml
from precgui.sweeps.state import ENDED, MemberState, given_up_arms, read_state
from precgui.sweeps.target_changes import record_change, record_edit, record_planned

SPEC, PLAN, MEMBERS, DISCARDED = "sweep.toml", "plan.json", "members", "discarded"
TARGETS, TARGET_CHANGES = "targets.toml", "targets-changes.jsonl"
PAUSE, JOBS = "pause", "jobs"  # what submitit and the jobs print
PLACES = "places.json"  # which place trains which block
QUEUED = "queued.json"  # of a sweep whose folder is at a place: where it is
MOST_PLAN_BYTES = 16 << 20


_PARTS = {  # and whether each is a folder
    **dict.fromkeys((SPEC, PLAN, TARGETS, TARGET_CHANGES, PAUSE, PLACES, QUEUED), False),
    **dict.fromkeys((MEMBERS, DISCARDED, JOBS), True),
}


def is_sweep(path: Path) -> bool:
    """Whether a path is the folder of a sweep."""
    return (path / SPEC).is_file()


def create_sweep(path: Path, spec: SweepSpec, targets: Targets = DEFAULT_TARGETS) -> SweepFolder:
    """Make the folder of a new sweep. Raises SweepError when it holds something already or cannot be made."""
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            if is_sweep(path):
                raise SweepError(
                    Sentence("{folder} already holds a sweep; name the folder alone to go on with it", folder=path)
                )
            raise SweepError(Sentence("{folder} already holds something; choose another name", folder=path))
        (path / MEMBERS).mkdir(parents=True, exist_ok=True)
        _write(path / PLAN, plan_json(make_plan(spec)))
        if targets != DEFAULT_TARGETS:
            _write(path / TARGETS, targets_toml(targets))
        record_planned(path / TARGET_CHANGES, targets)
        _write(path / SPEC, spec_toml(spec))  # last: a folder with it is complete
    except OSError as error:
        raise SweepError(
            Sentence("{file} cannot be written: {why}; choose another place", file=path, why=error.strerror)
        ) from None
    return SweepFolder(path)


def read_targets(path: Path) -> Targets:
    """The targets of the sweep in a folder: those of its `targets.toml`, else the defaults. Raises TargetError."""
    if not (path / TARGETS).exists():
        return DEFAULT_TARGETS
    return load_targets(path / TARGETS)


def write_targets(path: Path, targets: Targets) -> None:
    """Let the sweep in a folder be judged by other targets from now on, and record a change that came after results.

    Raises SweepError, and TargetError where the present ones cannot be read.
    """
    before, folder = read_targets(path), SweepFolder(path)
    folder.note_edited_targets()
    try:
        if targets != before:
            record_change(path / TARGET_CHANGES, before, targets, folder.ended_runs())
        _write(path / TARGETS, targets_toml(targets))
    except OSError as error:
        raise SweepError(Sentence("{file} cannot be written: {why}", file=path / TARGETS, why=error.strerror)) from None


class SweepFolder:
    """The spec of a sweep, its plan, and the state of its runs. Any number of processes may have it open.

    `runner` is the lock of the one process that runs members, `successor` that of the one process that asks to run them
    next; the operating system releases a lock when its process ends.
    """

    def __init__(self, path: Path) -> None:
        """Raises SweepError when the folder is none of a sweep, or its files do not fit together."""
        self.path = Path(path)
        if not is_sweep(self.path):
            raise SweepError(
                Sentence("{folder} is not the folder of a sweep: it has no {file}", folder=path, file=SPEC)
            )
        self.refuse_links()
        self.spec = read_spec(self.path / SPEC)
        self._arms = {arm.name: arm for arm in self.spec.arms()}
        self._known: dict[Path, tuple[tuple[int, int, int], MemberState]] = {}
        self.runner = FileLock(self.path / "runner.lock")
        self.successor = FileLock(self.path / "successor.lock")
        self._plan_lock = FileLock(self.path / "plan.lock")
        self.plan = self._read_plan()
        for member in self.plan.members:
            self.config_of(member)

    def refuse_links(self) -> None:
        """Raises SweepError where a part of the folder is a link to another place, or a file in place of a folder."""
        for name, is_folder in _PARTS.items():
            part = self.path / name
            try:
                mode = part.lstat().st_mode
            except FileNotFoundError:
                continue
            if not (stat.S_ISDIR if is_folder else stat.S_ISREG)(mode):
                file = Sentence(
                    "{file} is not a file of the sweep itself, and links are never followed; remove it", file=part
                )
                folder = Sentence(
                    "{file} is not a folder of the sweep itself, and links are never followed; remove it", file=part
                )
                raise SweepError(folder if is_folder else file)

    def reload(self) -> None:
        """Read the plan again, which another process may have changed. Raises SweepError."""
        self.plan = self._read_plan()

    def _read_plan(self) -> SweepPlan:
        try:
            return parse_plan(read_text(self.path / PLAN, MOST_PLAN_BYTES))
        except (OSError, UnicodeDecodeError) as error:
            raise SweepError(Sentence("{file} cannot be read: {why}", file=self.path / PLAN, why=error)) from None
        except SweepError as error:
            raise SweepError(Sentence("{file}: {error}", file=self.path / PLAN, error=error)) from None

    def config_of(self, member: Member) -> RunConfig:
        """The config of a member. Raises SweepError when `sweep.toml` is no longer what was planned."""
        arm: Arm | None = self._arms.get(member.arm)
        config = member_config(self.spec, member.kind, arm, member.seed) if arm is not None else None
        if config is None or config_hash(config) != member.config_sha256:
            raise SweepError(
                Sentence(
                    "{file} was changed after {run} was planned, so its runs would not be comparable; undo the change "
                    "or begin a new sweep",
                    file=self.path / SPEC,
                    run=member.name,
                )
            )
        title = f"{self.spec.title} {member.name}".strip()
        return config.model_copy(update={"title": title[:200]})

    def lock_of_block(self, block: int) -> FileLock:
        """The lock of the one process that runs the members of a block."""
        return FileLock(self.path / f"block-{block:03}.lock")

    def path_of(self, member: Member) -> Path:
        return self.path / MEMBERS / f"{member.name}.h5"

    def states(self) -> list[MemberState]:
        """The state of every member in the order of the plan; files that have not changed are not opened again."""
        results = [self.state_of(member) for member in self.plan.members]
        given_up = given_up_arms(results, self.spec.stop_arm_after_failures)
        return [
            replace(state, status="given up") if state.status == "waiting" and state.member.arm in given_up else state
            for state in results
        ]

    def state_of(self, member: Member) -> MemberState:
        """The state of one member; its file is not opened again where it has not changed."""
        path = self.path_of(member)
        try:
            stat = path.stat()
            stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        except OSError:
            return read_state(member, path)
        known = self._known.get(path)
        if known is None or known[0] != stamp or known[1].status in ("running", "waiting") or known[1].member != member:
            known = self._known[path] = stamp, read_state(member, path)
        return known[1]

    def ended_runs(self) -> int:
        """How many runs have ended, with or without success."""
        return sum(state.status in ENDED for state in self.states())

    def note_edited_targets(self) -> None:
        """Record that `targets.toml` was edited by hand, with the number of runs that have ended by now."""
        with contextlib.suppress(SweepError):  # who reads the targets says what is wrong with them
            record_edit(self.path / TARGET_CHANGES, read_targets(self.path), self.ended_runs())

    def discard(self, member: Member) -> None:
        """Put the file of a run that was cut off aside, so that the run can begin anew."""
        self.refuse_links()
        folder = self.path / DISCARDED
        folder.mkdir(exist_ok=True)
        number = 1
        while (folder / f"{member.name}.{number}.h5").exists():
            number += 1
        run = self.path_of(member)
        run.rename(folder / f"{member.name}.{number}.h5")
        for other in all_checkpoint_files(run):
            other.rename(folder / f"{member.name}.{number}.h5{other.name.removeprefix(run.name)}")
        weights = run.with_suffix(".safetensors")  # of train.save_to = auto, which never replaces a file
        if weights.exists():
            weights.rename(folder / f"{member.name}.{number}.safetensors")

    def run_again(self, name: str) -> None:
        """Put the file of a run that has ended aside, so that it runs again in its turn.

        So does one whose process is out of reach: only the user knows whether its machine is lost.
        Raises SweepError for an unknown name, and for a run that has not ended.
        """
        member = self.plan.member(name)
        state = self.state_of(member)
        if state.status not in (*ENDED, "cut off") and not state.is_out_of_reach:
            raise SweepError(
                Sentence("{run} is {status}, so there is nothing of it to run again", run=name, status=state.status)
            )
        try:
            self.discard(member)
        except OSError as error:
            raise SweepError(
                Sentence(
                    "{file} cannot be moved to {folder}: {why}", file=state.path, folder=DISCARDED, why=error.strerror
                )
            ) from None
        if member.skipped:
            self.skip(name, skipped=False)

    def give_up(self, name: str) -> None:
        """Take a run of another machine, whose process cannot be asked, for dead: it runs again in its turn.

        Its file is put aside, so that its process, should it live after all, writes on there. Raises SweepError.
        """
        state = self.state_of(self.plan.member(name))
        if not state.is_out_of_reach:
            raise SweepError(
                Sentence(
                    "{run} is {status}; only a run of another machine can be given up, see --again",
                    run=name,
                    status=state.status,
                )
            )
        self.run_again(name)

    def add_seeds(self, seeds: int) -> None:
        """Plan so many seeds more, after all that is planned. Raises SweepError."""
        if not 1 <= seeds <= 1000:
            raise SweepError(Sentence("--add-seeds {seeds}: name a number from 1 to 1000", seeds=seeds))
        self._change(lambda plan: extended(plan, self.spec, seeds))

    def skip(self, name: str, skipped: bool = True) -> None:
        """Leave a waiting run out, or take it in again. Raises SweepError for an unknown name."""
        self._change(lambda plan: plan.with_skipped(name, skipped))

    def put_first(self, name: str) -> None:
        """Run this one next. Raises SweepError for an unknown name."""
        self._change(lambda plan: plan.with_first(name))

    def put_last(self, name: str) -> None:
        """Run this one after all others. Raises SweepError for an unknown name."""
        self._change(lambda plan: plan.with_last(name))

    def _change(self, change: Callable[[SweepPlan], SweepPlan]) -> None:
        try:
            with self._plan_lock.held():
                plan = change(self._read_plan())
                _write(self.path / PLAN, plan_json(plan))
        except OSError as error:  # TimeoutError, too
            raise SweepError(Sentence("{file} cannot be changed: {why}", file=self.path / PLAN, why=error)) from None
        self.plan = plan

    @property
    def paused(self) -> bool:
        """Whether some process has asked that no further run begins."""
        return (self.path / PAUSE).exists()

    def pause(self) -> None:
        """Ask the process that runs the sweep to begin no further run. The present one ends as planned.

        Raises SweepError.
        """
        set_paused(self.path, True)

    def unpause(self) -> None:
        """Let runs begin again. Raises SweepError."""
        set_paused(self.path, False)


def set_paused(path: Path, paused: bool) -> None:
    """Ask the process that runs the sweep in a folder to begin no further run, or to go on. Raises SweepError."""
    try:
        if paused:
            os.close(open_to_write(path / PAUSE, os.O_WRONLY | os.O_CREAT))
        else:
            (path / PAUSE).unlink(missing_ok=True)
    except OSError as error:
        raise SweepError(Sentence("{file} cannot be changed: {why}", file=path / PAUSE, why=error.strerror)) from None


def _write(path: Path, text: str) -> None:
    replace_file(path, text.encode())
