"""The messages between a window or command here and the agent of a place, `precgui serve --stdio`.

A job is a run or a command at a place. Its name is 32 hexadecimal digits that the asker has chosen, for a run its
`run_id`; asking for the same job twice starts it once. Messages of a job are numbered from 1 without a gap.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from precgui.errors import SentenceError
from precgui.events import Event, TensorStats
from precgui.process.frames import WITHOUT_SENTENCES, Codec, FrameError
from precgui.sanitize import one_line
from precgui.sentences import L_, Sentence

JOB_NAME = re.compile(r"[0-9a-f]{32}")
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
JobKind = Literal["run", "command"]
Unit = Literal["whole", "ns", "single", "bits"]
COMMANDS = (  # of precgui, that a place runs; `task` is places/tasks.py
    "detect", "bench", "profile", "sweep", "replay", "plan", "twin", "assign", "export", "quantize", "task",
)  # fmt: skip
ONLY_COMMANDS = L_("a place runs the commands {commands}")


class OrderError(SentenceError):
    """An order that a place refuses."""


# From the agent


@dataclass(frozen=True, slots=True)
class PlaceDevice:
    """A device of a place; bytes are 0 where they are not known."""

    id: str
    name: str
    memory_bytes: int
    free_bytes: int

    def __post_init__(self) -> None:
        """Raises FrameError."""
        if not 0 <= self.free_bytes <= self.memory_bytes:
            raise FrameError(
                Sentence(
                    "the place says that {device} has {free_bytes} of {memory_bytes} bytes free, which cannot be; "
                    "upgrade precgui there",
                    device=one_line(self.id, 40),
                    free_bytes=self.free_bytes,
                    memory_bytes=self.memory_bytes,
                )
            )


@dataclass(frozen=True, slots=True)
class PlaceHello:
    """The first message of an agent; `torch` is the installed version, empty without one."""

    precgui: str
    python: str
    torch: str
    host: str
    system: str
    devices: tuple[PlaceDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class PlaceReady:
    """A process has imported torch and waits for a run."""


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The job is there, started now or before; `part` as in `JobLine`."""

    job: str
    part: int = 0


@dataclass(frozen=True, slots=True)
class JobEvents:
    """Events of a run but rows of tensors, in their order; the last event of the last such message is `RunEnded`."""

    job: str
    number: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class JobRow:
    """A row of tensors of a run. Rows have numbers of their own, and come when nothing else is to be sent."""

    job: str
    number: int
    row: TensorStats


@dataclass(frozen=True, slots=True)
class HistoryTable:
    """`count` events of one table as columns; see docs/frames.md for `units`, `orders` and `planes`."""

    table: str
    device: str
    count: int
    units: tuple[Unit, ...]
    orders: tuple[int, ...]
    planes: bytes


@dataclass(frozen=True, slots=True)
class JobHistory:
    """All that the messages `first` to `number` of a run hold, at once; `events` are those that no table takes."""

    job: str
    first: int
    number: int
    tables: tuple[HistoryTable, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class JobOutput:
    """Text that a command has printed."""

    job: str
    number: int
    stream: Literal["stdout", "stderr"]
    text: str


@dataclass(frozen=True, slots=True)
class CommandEnded:
    """The last message of a command."""

    job: str
    number: int
    exit_code: int


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job of a place, for a list. `files` are those that it has made, `config` is that of a run.

    `part` counts how often a run has gone on after it had ended.
    """

    job: str
    kind: JobKind
    title: str
    started: str
    is_running: bool
    files: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    part: int = 0


@dataclass(frozen=True, slots=True)
class JobList:
    """The jobs of a place, the newest first."""

    jobs: tuple[JobLine, ...]


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a file of a job that has ended; `size` in bytes and `sha256` are those of the whole file."""

    job: str
    name: str
    offset: int
    size: int
    sha256: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """An order was not carried out; `message` is a sentence."""

    job: str
    message: str


@dataclass(frozen=True, slots=True)
class Pong:
    """The agent is alive."""


# To the agent


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file that an order needs, such as code of the user's own, sent with their consent."""

    name: str
    sha256: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Prepare:
    """Start a process that imports torch in advance."""


@dataclass(frozen=True, slots=True)
class StartRun:
    """Train `config`, a tree as TOML has it, in a process that outlives the agent, and follow it.

    `place` is the name that the asker has for the place; it joins the `/environment` of the run file.
    """

    job: str
    config: Mapping[str, Any]
    place: str = ""
    files: tuple[SentFile, ...] = ()


@dataclass(frozen=True, slots=True)
class StartCommand:
    """Run `precgui WORDS` in the folder of the job, where `files` lie, and follow it.

    With `of`, the name of a job that has ended, it runs in the folder of that job instead.
    """

    job: str
    words: tuple[str, ...]
    columns: int = 80
    files: tuple[SentFile, ...] = ()
    of: str = ""


@dataclass(frozen=True, slots=True)
class ResumeRun:
    """Let a run go on that broke off, from its last checkpoint, as its part number `part`; then as `AttachJob`.

    Its messages are numbered from 1 again. A part that has begun already is not begun again but followed.
    """

    job: str
    part: int


@dataclass(frozen=True, slots=True)
class AttachJob:
    """Send what a job has said after message `after` and row `after_row`, then what it goes on to say."""

    job: str
    after: int = 0
    after_row: int = 0


@dataclass(frozen=True, slots=True)
class StopJob:
    """Ask a job to end; `kill` ends its process."""

    job: str
    kill: bool = False


@dataclass(frozen=True, slots=True)
class ListJobs:
    """Ask for a `JobList`."""


@dataclass(frozen=True, slots=True)
class FetchPart:
    """Ask for a `FilePart` from `offset` on."""

    job: str
    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class RemoveJob:
    """Remove the folder of a job that has ended."""

    job: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask for a `Pong`."""


REPLIES = Codec((
    PlaceHello, PlaceReady, JobStarted, JobEvents, JobRow, JobHistory, JobOutput, CommandEnded, JobList, FilePart,
    Refused, Pong,
))  # fmt: skip
ORDERS = Codec((Prepare, StartRun, StartCommand, ResumeRun, AttachJob, StopJob, ListJobs, FetchPart, RemoveJob, Ping),
               WITHOUT_SENTENCES)  # fmt: skip
