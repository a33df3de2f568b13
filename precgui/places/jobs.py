"""The jobs of a place, each a folder that its process fills and any agent may follow.

`order` is the frame that asked for it, `process` names the process that has taken it, `frames` are the messages so far,
`rows` are its rows of tensors, `history` and `blocks` its messages as columns (places/history.py), `stop` asks it to
end, `ended` says that its files are whole, `output` takes stray prints, and `out` its files. A folder gets its name
when it is whole, and `process` can be made once: a job never runs twice. A run that goes on after it had ended has all
of these anew, but for `order` and `out`, in a folder `part-N`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from precgui.config import is_own_task
from precgui.events import RunEnded
from precgui.paths import state_dir
from precgui.places.messages import (
    FILE_NAME,
    JOB_NAME,
    ORDERS,
    CommandEnded,
    FilePart,
    JobEvents,
    JobLine,
    OrderError,
    SentFile,
    StartCommand,
    StartRun,
)
from precgui.process.channel import LAST_WORDS_BYTES
from precgui.process.frames import HEAD, FrameError, FrameHead
from precgui.runs.file.process import is_gone, this_process
from precgui.safe_open import open_regular
from precgui.sentences import L_, Sentence

PART_BYTES = 1 << 20
RUN_FILE = "run.h5"
_MOST_FILES = 10_000
_PART = "part-"


class JobFolder:
    """Raises OrderError for a name that no job can have."""

    def __init__(self, job: str) -> None:
        if not JOB_NAME.fullmatch(job):
            raise OrderError(L_("the name of a job is 32 hexadecimal digits"))
        self.job, self.path = job, jobs_dir() / job
        self.out = self.path / "out"
        self.part_number = self._last_part()
        part = self._part_folder(self.part_number)
        self.frames, self.output = part / "frames", part / "output"
        self.rows, self.history, self.blocks = part / "rows", part / "history", part / "blocks"
        self._process, self._ended, self._stop, self._kill = (
            part / name for name in ("process", "ended", "stop", "kill")
        )

    def _last_part(self) -> int:
        numbers = (path.name.removeprefix(_PART) for path in self.path.glob(f"{_PART}*"))
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    def _part_folder(self, part: int) -> Path:
        return self.path / f"{_PART}{part}" if part else self.path

    def begin_part(self, part: int) -> JobFolder:
        """The folder of the job in this part, begun unless it has been. Raises OrderError."""
        if part > self.part_number:
            if not self.is_claimed or self.is_running or part != self.part_number + 1:
                raise OrderError(L_("the run has not ended, so it cannot go on from a checkpoint; attach to it"))
            self._part_folder(part).mkdir(exist_ok=True)
        return JobFolder(self.job)

    @property
    def exists(self) -> bool:
        return (self.path / "order").is_file()

    def make(self, order: StartRun | StartCommand) -> None:
        """Make the folder unless it is there. Raises OrderError, OSError."""
        if self.exists:
            return
        draft = self.path.with_name(f".{self.job}.{secrets.token_hex(4)}")
        (draft / "out").mkdir(parents=True)
        try:
            for file in order.files:
                _write_sent(draft / "out", file)
            (draft / "order").write_bytes(ORDERS.encode(order))
            with contextlib.suppress(OSError):  # another agent was first
                draft.rename(self.path)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def order(self) -> StartRun | StartCommand:
        """Raises FrameError, OSError."""
        order = ORDERS.decode((self.path / "order").read_bytes())
        if not isinstance(order, (StartRun, StartCommand)):
            raise FrameError(Sentence("{path} holds no order", path=self.path))
        return order

    # Its process

    def claim(self) -> bool:
        """Let this process be that of the job; False where another one is."""
        draft = self._process.with_name(f"process.{os.getpid()}")
        draft.write_text(json.dumps(this_process()), encoding="utf-8")
        try:
            os.link(draft, self._process)
        except OSError:
            return False
        finally:
            draft.unlink()
        return True

    @property
    def is_claimed(self) -> bool:
        return self._process.is_file()

    @property
    def is_running(self) -> bool:
        """Whether more messages may come, and its files may change."""
        return self.is_claimed and not self.has_ended and not self.is_process_gone

    @property
    def is_process_gone(self) -> bool:
        return bool(is_gone(self._identity()))

    @property
    def has_ended(self) -> bool:
        """Whether its last message has come or is about to come."""
        return self._ended.is_file()

    def mark_ended(self) -> None:
        """Its files are whole, and the last message is about to come. Raises OSError."""
        self._ended.touch()

    def _identity(self) -> dict[str, object]:
        try:
            identity = json.loads(self._process.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return identity if isinstance(identity, dict) else {}

    def stop(self, *, kill: bool = False) -> None:
        """Ask the process to end; with `kill`, end it."""
        self._stop.touch()
        pid = self._identity().get("pid")
        if kill and not self.is_process_gone and isinstance(pid, int):
            self._kill.touch()
            _end_process(pid)

    @property
    def is_asked_to_stop(self) -> bool:
        return self._stop.is_file()

    @property
    def was_killed(self) -> bool:
        return self._kill.is_file()

    def last_words(self) -> str:
        """The end of the stray prints of the process."""
        with contextlib.suppress(OSError), open_regular(self.output) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
            return file.read().decode("utf-8", "replace").strip()
        return ""

    # Its files

    def files(self) -> tuple[str, ...]:
        """The files that the job has made, with `/` between folders; those that were sent are left out."""
        sent = {file.name for file in self.order().files}
        names = (path.relative_to(self.out).as_posix() for path in sorted(self.out.rglob("*")) if path.is_file())
        return tuple(name for name in names if is_file_name(name) and name not in sent)[:_MOST_FILES]

    def part(self, name: str, offset: int) -> FilePart:
        """Raises OrderError, OSError."""
        if not is_file_name(name) or not (self.out / name).is_file():
            raise OrderError(Sentence("the job has no file {name!r}", name=name))
        if self.is_running:
            raise OrderError(L_("files come when the job has ended"))
        path = self.out / name
        with open_regular(path) as file:
            file.seek(max(offset, 0))
            return FilePart(self.job, name, offset, path.stat().st_size, digest(path), file.read(PART_BYTES))

    def line(self) -> JobLine:
        """Raises FrameError, OSError."""
        order = self.order()
        started = datetime.fromtimestamp((self.path / "order").stat().st_mtime, UTC).isoformat(timespec="seconds")
        if isinstance(order, StartRun):
            title = str(order.config.get("title") or f"{order.config.get('task')}, {order.config.get('precision')}")
            return JobLine(
                self.job, "run", title, started, self.is_running, self.files(), order.config, self.part_number
            )
        return JobLine(self.job, "command", " ".join(order.words), started, self.is_running, self.files())

    def remove(self) -> None:
        """Raises OrderError, OSError."""
        if self.is_running:
            raise OrderError(L_("the job is still running; stop it first"))
        shutil.rmtree(self.path)


def jobs_dir() -> Path:
    """Where the jobs of this machine are that others have asked for. Not created here."""
    return state_dir() / "jobs"


def all_jobs() -> list[JobLine]:
    """The newest first; folders that cannot be read are left out."""
    result = []
    for path in jobs_dir().iterdir() if jobs_dir().is_dir() else ():
        with contextlib.suppress(OrderError, FrameError, OSError):
            result.append(JobFolder(path.name).line())
    return sorted(result, key=lambda line: line.started, reverse=True)


def is_file_name(name: str) -> bool:
    """Whether it names a file inside a folder, whatever system that folder is on."""
    parts = PurePosixPath(name).parts
    return "/".join(parts) == name and 0 < len(parts) < 8 and all(map(FILE_NAME.fullmatch, parts))


def task_file(task: str) -> str:
    """The file of a task of one's own, as it is written; empty for a module and for a task of precgui."""
    place = task.rpartition(":")[0]
    return place if is_own_task(task) and place.endswith(".py") else ""


_digests: dict[Path, tuple[int, int, str]] = {}


def digest(path: Path) -> str:
    """The SHA-256 of a file, computed once for as long as it does not change. Raises OSError."""
    state = path.stat()
    known = _digests.get(path)
    if known is None or known[:2] != (state.st_size, state.st_mtime_ns):
        with open_regular(path) as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        known = (state.st_size, state.st_mtime_ns, found)
        _digests[path] = known
    return known[2]


class SpooledFrames:
    """The whole frames of a job, as they are appended. The n-th frame holds message n.

    `start`: the byte at which the frame of the message after `number` begins.
    """

    def __init__(self, path: Path, after: int, start: int = 0, number: int = 0) -> None:
        self._path, self._skip = path, after
        self._place, self._buffer = start, bytearray()
        self.number, self.last = number, b""

    def new(self) -> Iterator[bytes]:
        """Those that came since the last call, but for the first `after`; who takes only some gets the others by
        another call. Raises FrameError, OSError."""
        if not self._path.is_file():
            return
        with open_regular(self._path) as file:
            file.seek(self._place)
            while True:
                for frame in self._cut():
                    self.number, self.last = self.number + 1, frame
                    if self.number > self._skip:
                        yield frame
                if not (data := file.read(PART_BYTES)):
                    return
                self._place += len(data)
                self._buffer += data

    def _cut(self) -> Iterator[bytes]:
        while len(self._buffer) >= HEAD.size:
            size = HEAD.size + FrameHead.read(self._buffer).body_bytes
            if len(self._buffer) < size:
                return
            frame = bytes(self._buffer[:size])
            del self._buffer[:size]
            yield frame


def is_end(message: object) -> bool:
    """Whether it is the last message of a job."""
    if isinstance(message, JobEvents):
        return bool(message.events) and isinstance(message.events[-1], RunEnded)
    return isinstance(message, CommandEnded)


def _write_sent(folder: Path, file: SentFile) -> None:
    if not is_file_name(file.name) or "/" in file.name:
        raise OrderError(Sentence("a file cannot be sent as {name!r}", name=file.name))
    if hashlib.sha256(file.content).hexdigest() != file.sha256:
        raise OrderError(Sentence("{name} did not arrive as it was sent; send it again", name=file.name))
    (folder / file.name).write_bytes(file.content)


def _end_process(pid: int) -> None:
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        psutil.Process(pid).kill()
