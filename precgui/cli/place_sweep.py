"""`precgui sweep --place a,b`: the blocks of a sweep, each trained as a whole at one of several places.

The folder of the sweep stays here, and each run file comes home to it. The place of each block is kept in the folder:
whoever goes on with the sweep follows the runs that are under way there, since a run has the same name at a place
whenever it is asked for. A place that is lost hands its unfinished block back, which then begins anew elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from precgui.config import RunConfig
from precgui.errors import SentenceError
from precgui.events import Event, RunEnded
from precgui.places.settings import NamedPlace, place_called
from precgui.places.training import PlacedTraining
from precgui.runs.file.event_tables import EventRows
from precgui.safe_open import read_text, replace_file
from precgui.sanitize import one_line
from precgui.sentences import Sentence, together
from precgui.sweeps.errors import SweepError
from precgui.sweeps.events import EmitSweep, MemberEvent, MemberGoesOn, SweepEvent, SweepWaits
from precgui.sweeps.folder import DISCARDED, PLACES, SweepFolder
from precgui.sweeps.runner import SweepBusy, run_sweep
from precgui.sweeps.state import ENDED

LOST_AFTER_S = 300.0  # without a link, after which a place is lost
_POLL_S = 0.5
_MOST_BYTES = 1 << 20
_TOKEN = re.compile(r"[0-9a-f]{32}")


class PlaceLost(SentenceError):
    """A place can train no run of the sweep any more."""


class BlockPlaces:
    """Which place has which block, kept in the folder. Thread-safe."""

    def __init__(self, folder: Path, places: Sequence[str] = ()) -> None:
        """A file that cannot be read counts as none. Raises SweepError where it cannot be written.

        `places` are the names of the places that train now.
        """
        self._path, self._lock = folder / PLACES, threading.Lock()
        try:
            kept = json.loads(read_text(self._path, _MOST_BYTES))
        except (OSError, ValueError, RecursionError):
            kept = {}
        kept = kept if isinstance(kept, dict) else {}
        token, blocks = kept.get("token"), kept.get("blocks")
        self.token = token if isinstance(token, str) and _TOKEN.fullmatch(token) else secrets.token_hex(16)
        self._places = list(places)
        self._blocks = {
            int(block): place
            for block, place in (blocks.items() if isinstance(blocks, dict) else ())
            if block.isdecimal() and len(block) < 8 and isinstance(place, str)
        }
        self._write()

    def of(self, block: int) -> str:
        """The place of a block, empty where it has none."""
        return self._blocks.get(block, "")

    def give(self, block: int, place: str) -> None:
        """Raises SweepError."""
        with self._lock:
            self._blocks[block] = place
            self._write()

    def _write(self) -> None:
        blocks = {str(block): place for block, place in sorted(self._blocks.items())}
        try:
            kept = {"token": self.token, "places": self._places, "blocks": blocks}
            replace_file(self._path, json.dumps(kept, indent=1).encode())
        except OSError as error:
            raise SweepError(
                Sentence("{path} cannot be written: {strerror}", path=self._path, strerror=error.strerror)
            ) from None


class PlacesSweep:
    """Trains what is left of a sweep at places, a block at a time at each."""

    def __init__(
        self,
        path: Path,
        places: Sequence[NamedPlace],
        emit: EmitSweep,
        stopped: Callable[[], bool],
        aborted: Callable[[], bool],
        *,
        may_send_code: bool = False,
        names_blocks: bool = True,
    ) -> None:
        """`stopped`: begin no further run. `aborted`: end the present ones, too. `names_blocks`: say which place begins
        which block."""
        self._path, self._places, self._stopped, self._aborted = path, places, stopped, aborted
        self._emit_one, self._may_send_code, self._names_blocks = emit, may_send_code, names_blocks
        self._lock = threading.Lock()
        self._taken: dict[int, str] = {}  # blocks that are trained now
        self._trainers: list[PlacedTrainer] = []  # those that train them
        self._left = [place.name for place in places]  # places that are not lost
        self._faults: list[str] = []
        self._kept = BlockPlaces(path, self._left)

    def run(self) -> None:
        """Returns when nothing is left, or when it was stopped. Raises SweepError where no place is left."""
        folder = SweepFolder(self._path)
        if not folder.runner.acquire():
            raise SweepBusy(folder.runner.owner() or {})
        try:
            threads = [threading.Thread(target=self._work, args=(place,), name=place.name) for place in self._places]
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(_POLL_S)  # a signal is handled between two of them
        finally:
            folder.runner.release()
        if not self._left:
            faults = together(*self._faults, between="; ")
            raise SweepError(Sentence("no place is left that trains: {faults}", faults=faults))

    def _emit(self, event: SweepEvent) -> None:
        with self._lock:
            self._emit_one(event)

    def _work(self, place: NamedPlace) -> None:
        pause = threading.Event()
        try:
            while not (self._stopped() or self._aborted()):
                folder = SweepFolder(self._path)
                if folder.paused:
                    self._emit(SweepWaits(Sentence("somebody paused the sweep")))
                    return
                left = _blocks_left(folder)
                block = self._take(folder, left, place.name)
                if block is not None:
                    self._train_block(folder, block, place)
                elif left:
                    pause.wait(_POLL_S)  # the place of one of them may be lost
                else:
                    return
        except SentenceError as error:
            self._lose(place, error.args[0])

    def _take(self, folder: SweepFolder, left: Sequence[int], place: str) -> int | None:
        """A block for a place: its own first, then one that has none, then one of a place that is lost or not named."""
        with self._lock:
            free = [block for block in left if block not in self._taken]
            own = [block for block in free if self._kept.of(block) == place]
            new = [block for block in free if not self._kept.of(block)]
            lost = [block for block in free if self._kept.of(block) not in ("", *self._left)]
            block = next(iter((*own, *new, *lost)), None)
            if block is None:
                return None
            if block in lost:
                _begin_anew(folder, block)
            self._taken[block] = place
            self._kept.give(block, place)
            return block

    def _train_block(self, folder: SweepFolder, block: int, place: NamedPlace) -> None:
        if self._names_blocks:
            self._emit(SweepWaits(Sentence("block {block} is trained at {name}", block=block, name=place.name)))
        trainer = PlacedTrainer(place, self._path, self._kept.token, may_send_code=self._may_send_code)
        self._trainers.append(trainer)
        try:
            run_sweep(folder, self._emit, self._stopped, self._aborted, block=block, train=trainer)
        finally:
            self._trainers.remove(trainer)
            with self._lock:
                del self._taken[block]

    def tell_what_goes_on(self) -> None:
        """Say of each run that was asked to end that no link has taken this to its place; in any thread."""
        for trainer in list(self._trainers):
            if run := trainer.out_of_reach:
                self._emit(MemberGoesOn(run, trainer.place.name))

    def _lose(self, place: NamedPlace, why: str) -> None:
        with self._lock:
            self._left.remove(place.name)
            self._faults.append(Sentence("{name}: {why}", name=place.name, why=why))
        self._emit(SweepWaits(Sentence("{name} is lost, its block is handed back: {why}", name=place.name, why=why)))


class StopAsked(Protocol):
    """Says whether a child process was asked to stop; `on_stuck` is called before it ends without its task."""

    def stopped(self) -> bool: ...
    def on_stuck(self, call: Callable[[], None]) -> None: ...


def serve(emit: EmitSweep, control: StopAsked, *, folder: str, places: Sequence[str], may_send_code: bool) -> None:
    """A sweep at places as the task of a child process of the window; Stop ends the present runs, too.

    The events of its runs are not passed on: the window reads their files, which come home one by one.
    """

    def relay(event: SweepEvent) -> None:
        if not isinstance(event, MemberEvent):
            emit(event)

    try:
        named = [place_called(name) for name in places]
        stopped = control.stopped
        options = {"may_send_code": may_send_code, "names_blocks": False}  # the window shows the files themselves
        sweep = PlacesSweep(Path(folder), named, relay, stopped, stopped, **options)
        control.on_stuck(sweep.tell_what_goes_on)
        sweep.run()
    except SentenceError as error:
        emit(SweepWaits(error.args[0]))


class PlacedTrainer:
    """Trains a member of a sweep at a place until its file is at home, as `run_in_process` does here."""

    def __init__(self, place: NamedPlace, folder: Path, token: str, *, may_send_code: bool) -> None:
        self.place, self._folder, self._token, self._may_send_code = place, folder, token, may_send_code
        self._training: PlacedTraining | None = None

    @property
    def out_of_reach(self) -> str:
        """The name of the run that goes on at the place while there is no link to it; else empty."""
        training = self._training
        goes_on = training is not None and training.has_begun and training.ended is None and training.link_state
        return training.path.stem if training is not None and goes_on else ""

    def __call__(
        self,
        config: RunConfig,
        path: Path,
        emit: Callable[[Event], None],
        stopped: Callable[[], bool],
        *,
        goes_on: bool = False,
    ) -> RunEnded:
        """Raises PlaceLost where this cannot be, and where there is no link for `LOST_AFTER_S`."""
        if goes_on:  # its checkpoint is on this machine
            return RunEnded(
                0.0, "failed", Sentence("a run of this machine does not go on at {name}", name=self.place.name)
            )
        training = self._training = PlacedTraining.of_config(
            self.place, config, path, may_send_code=self._may_send_code, run_id=self.run_id(path)
        )
        asked = False

        def look() -> None:
            nonlocal asked
            if stopped() and not asked:
                asked = True
                training.stop()
            if training.lost_s > LOST_AFTER_S:
                training.detach()

        def take(batch: Iterable[Event | EventRows]) -> None:
            for event in batch:
                emit(event.last() if isinstance(event, EventRows) else event)

        training.run(take, look)
        if training.ended is None or not path.exists():
            why = training.ended.message if training.ended is not None else training.why
            if training.lost_s > LOST_AFTER_S:
                why = Sentence("no answer for {seconds:.0f} s", seconds=LOST_AFTER_S)
            raise PlaceLost(f"{path.stem}: {one_line(why, 400)}")
        return training.ended

    def run_id(self, path: Path) -> str:
        """The name of a run at each place: another one only after a file of the run was put aside."""
        attempts = len(list((self._folder / DISCARDED).glob(f"{path.stem}.*.h5")))
        return hashlib.sha256(f"{self._token} {path.stem} {attempts}".encode()).hexdigest()[:32]


def _blocks_left(folder: SweepFolder) -> list[int]:
    """The blocks with runs left, in the order of the plan."""
    states = folder.states()
    return list(dict.fromkeys(state.member.block for state in states if state.status in ("waiting", "cut off")))


def _begin_anew(folder: SweepFolder, block: int) -> None:
    """Put the runs of a block aside that have ended at another place: a block is compared within itself."""
    for state in folder.states():
        if state.member.block == block and state.status in (*ENDED, "cut off") and state.path.exists():
            folder.discard(state.member)
