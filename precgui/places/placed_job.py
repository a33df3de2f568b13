"""A job at a place, followed from here: each message once, whatever happens to the link, and its files fetched."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from precgui.errors import SentenceError
from precgui.places.contact import ContactError, upgrade
from precgui.places.link import PlaceLink
from precgui.places.messages import (
    ONLY_COMMANDS,
    AttachJob,
    CommandEnded,
    FetchPart,
    FilePart,
    JobEvents,
    JobHistory,
    JobLine,
    JobList,
    JobOutput,
    JobRow,
    JobStarted,
    ListJobs,
    PlaceReady,
    Prepare,
    Refused,
    RemoveJob,
    ResumeRun,
    StartCommand,
    StartRun,
    StopJob,
)
from precgui.places.settings import NamedPlace
from precgui.sentences import Sentence, message_of

FIRST_WAIT_S, LONGEST_WAIT_S = 2.0, 60.0  # between two tries to connect
MOST_LOST = 3  # links that are lost before the job has begun
MOST_FUTILE = 8  # links in a row over which the agent has said nothing but its hello
_TRIES = 2  # of a file whose SHA-256 does not match

JobMessage = JobEvents | JobHistory | JobRow | JobOutput | CommandEnded


class JobError(SentenceError):
    """The place refuses the job, or has lost it."""


class Detached(SentenceError):
    """This end has let go of the job; it goes on at its place."""


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """A run that goes on at a place: its name there, the path for its file, how many messages and rows were read.

    `part` is the part that is followed; one that has not begun lets a run go on that broke off.
    """

    place: NamedPlace
    run_id: str
    path: Path
    after: int = 0
    after_row: int = 0
    part: int = 0


class PlacedJob:
    """Follows one job; `stop` and `detach` may be called from any thread, `state` read, the rest belongs to one.

    `order` starts the job, which is harmless where it has been started before; without one it must be there.
    """

    def __init__(
        self,
        place: NamedPlace,
        job: str = "",
        order: StartRun | StartCommand | ResumeRun | None = None,
        *,
        after: int = 0,
        after_row: int = 0,
        part: int | None = None,
    ) -> None:
        """`after`, `after_row`: how many messages and rows of the job have been read, of its part `part`."""
        self.place, self.job, self._order = place, order.job if order is not None else job, order
        self._link: PlaceLink | None = None
        self.part = part  # None until the place has said which one it is
        self.number, self.row_number = after, after_row
        self._wanted: deque[StopJob] = deque()
        self._let_go = threading.Event()
        self._wait_s, self._next_try_s, self._why = FIRST_WAIT_S, 0.0, ""
        self._lost_at_s = 0.0
        self.is_ready = False
        self.has_begun = False  # the place has said that the job is there
        self._lost_before = 0  # links, before the job began
        self._futile = 0  # links since the last one over which something came

    def open(self) -> None:
        """Connect for the first time. Raises ContactError."""
        self._link = PlaceLink(self.place)
        self._futile += 1
        self._ask()

    def begin(self, order: StartRun | StartCommand) -> None:
        """Start a job over a link that is there or comes back."""
        self.job, self._order = order.job, order
        if self._link is not None:
            self._try(lambda link: link.send(order))

    def prepare(self) -> None:
        """Let the place import torch before there is a job."""
        self._try(lambda link: link.send(Prepare()))

    def stop(self, *, kill: bool = False) -> None:
        """Ask the job to end, as soon as there is a link; without a job, let go."""
        if not self.job:
            self.detach()
            return
        self._wanted.append(StopJob(self.job, kill))

    def stop_now(self) -> None:
        """Ask the job to end over the link that there is, for who receives nothing more."""
        self._try(lambda link: link.send(StopJob(self.job)))

    def remove(self) -> None:
        """Remove the folder of a job that has ended, where there is a link."""
        self._try(lambda link: link.send(RemoveJob(self.job)))

    def wake(self) -> None:
        """Let a `receive` that waits return, from any thread."""
        if (link := self._link) is not None:
            link.wake()

    def detach(self) -> None:
        """Let go; `receive` and `fetch` raise Detached."""
        self._let_go.set()

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    @property
    def is_linked(self) -> bool:
        return self._link is not None

    @property
    def is_detached(self) -> bool:
        return self._let_go.is_set()

    @property
    def lost_s(self) -> float:
        """Seconds since the link was lost; 0 while there is one."""
        return time.monotonic() - self._lost_at_s if self._lost_at_s else 0.0

    @property
    def state(self) -> str:
        """The link in one sentence; empty while it is well."""
        link = self._link
        if link is not None:
            return _no_answer(self.place, link.silent_s) if link.silent_s > 7 else ""
        if not self._lost_at_s:
            return ""
        now = time.monotonic()
        lost = _no_answer(self.place, now - self._lost_at_s)
        values = {"lost": lost, "seconds": max(self._next_try_s - now, 0), "reason": self._why}
        if self.has_begun and isinstance(self._order, StartCommand):
            return Sentence("{lost}, the work goes on there; next try in {seconds:.0f} s ({reason})", **values)
        if self.has_begun:
            return Sentence("{lost}, the run goes on there; next try in {seconds:.0f} s ({reason})", **values)
        return Sentence("{lost}; next try in {seconds:.0f} s ({reason})", **values)

    def receive(self, timeout_s: float) -> JobMessage | None:
        """The next message of the job, None where none comes in that time; a lost link is opened again.

        Raises ContactError where that cannot help, JobError, Detached.
        """
        message = self._next(timeout_s)
        if isinstance(message, Refused):
            raise self._refusal(message.message)
        if isinstance(message, PlaceReady):
            self.is_ready = True
        if not isinstance(message, JobMessage) or message.job != self.job:
            return None
        read = self.row_number if isinstance(message, JobRow) else self.number
        first = message.first if isinstance(message, JobHistory) else message.number
        if message.number <= read:
            return None
        if first != read + 1:
            if isinstance(message, JobRow):
                missing = Sentence("row {number} is missing", number=read + 1)
            else:
                missing = Sentence("message {number} is missing", number=read + 1)
            self._lost(ContactError(missing, is_final=False))
            return None
        if isinstance(message, JobRow):
            self.row_number = message.number
        else:
            self.number = message.number
        return message

    def _refusal(self, why: str) -> JobError:
        if why.startswith(ONLY_COMMANDS.partition("{")[0]):  # of an earlier precgui, which knows fewer
            return JobError(
                Sentence(
                    "precgui at {name} is too old for this; upgrade it with {commands}",
                    name=self.place.name,
                    commands=upgrade(self.place),
                )
            )
        return JobError(Sentence("{place}: {message}", place=self.place.name, message=why))

    def jobs(self) -> tuple[JobLine, ...]:
        """All jobs of the place, the newest first. Raises as `receive`."""
        listed = self._answer(ListJobs(), lambda message: isinstance(message, JobList))
        assert isinstance(listed, JobList)
        return listed.jobs

    def files(self) -> tuple[str, ...]:
        """The files that the job has made, once it has ended. Raises as `receive`."""
        return next((line.files for line in self.jobs() if line.job == self.job), ())

    def fetch(
        self,
        name: str,
        path: Path,
        check: Callable[[Path], None] = lambda draft: None,
        may_replace: Callable[[Path], bool] = lambda path: False,
    ) -> None:
        """Bring a file of the job to `path`, which exists only where `may_replace` says so of it; goes on where an
        earlier try was cut off.

        Its SHA-256 is compared, then `check` may refuse it. Raises SentenceError, OSError; `path` is then not made.
        """
        draft = path.with_name(f".{path.stem}.{self.job[:8]}.part{path.suffix}")
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in reversed(range(_TRIES)):
            digest = self._fetch_parts(name, draft)
            if _sha256(draft) == digest:
                break
            draft.unlink()
            if not left:
                raise JobError(
                    Sentence(
                        "{name} arrived from {place} other than it is there; fetch it again",
                        name=name,
                        place=self.place.name,
                    )
                )
        check(draft)
        if path.exists() and not may_replace(path):
            raise JobError(
                Sentence(
                    "{path} is there already; the file from {name} stays at {draft}",
                    path=path,
                    name=self.place.name,
                    draft=draft,
                )
            )
        draft.replace(path)

    def _fetch_parts(self, name: str, draft: Path) -> str:
        """Append to `draft` until it has the whole size; returns the SHA-256 that the place gives."""
        with draft.open("ab") as file:
            while True:
                part = self._part(name, file.tell())
                file.write(part.content)
                if file.tell() > part.size or (not part.content and file.tell() < part.size):  # of another file
                    file.truncate(0)
                elif file.tell() == part.size:
                    return part.sha256

    def _part(self, name: str, offset: int) -> FilePart:
        def is_wanted(message: object) -> bool:
            return isinstance(message, FilePart) and (message.name, message.offset) == (name, offset)

        part = self._answer(FetchPart(self.job, name, offset), is_wanted)
        assert isinstance(part, FilePart)
        return part

    # The link

    def _answer(self, order: object, is_wanted: Callable[[object], bool]) -> object:
        """The answer to an order, which is sent again with each new link."""
        asked: PlaceLink | None = None
        while True:
            if self._link is not None and self._link is not asked:
                asked = self._link
                self._try(lambda link: link.send(order))
            message = self._next(0.2)
            if isinstance(message, Refused):
                raise self._refusal(message.message)
            if is_wanted(message):
                return message

    def _next(self, timeout_s: float) -> object | None:
        if self._let_go.is_set():
            if self.has_begun:
                raise Detached(Sentence("the run goes on at {place}", place=self.place.name))
            raise Detached(Sentence("let go before the run had begun at {place}", place=self.place.name))
        if self._link is None and not self._connected():
            self._let_go.wait(min(timeout_s, max(self._next_try_s - time.monotonic(), 0.0)))
            return None
        while self._wanted and self._link is not None:
            self._try(lambda link: link.send(self._wanted[0]))
            if self._link is not None:
                self._wanted.popleft()
        message = self._try(lambda link: link.receive(timeout_s))
        if message is not None and not isinstance(message, JobStarted):
            self._wait_s, self._futile = FIRST_WAIT_S, 0
        if isinstance(message, JobStarted) and message.job == self.job:
            self.has_begun = True
            if self.part not in (None, message.part) and self.number:
                raise JobError(
                    Sentence(
                        "the run at {name} was let go on by somebody else; attach to it once more",
                        name=self.place.name,
                    )
                )
            self.part = message.part
        return message

    def _try(self, use: Callable[[PlaceLink], object | None]) -> object | None:
        if self._link is None:
            return None
        try:
            return use(self._link)
        except ContactError as error:
            self._lost(error)
            return None

    def _lost(self, error: ContactError) -> None:
        """Raises the error where another try would not help."""
        self.close()
        if error.is_final:
            raise error
        self._lost_before += not self.has_begun
        if not self.has_begun and self._lost_before >= MOST_LOST:
            values = {"name": self.place.name, "count": MOST_LOST, "reason": message_of(error)}
            if self.job:
                raise ContactError(
                    Sentence(
                        "the link to {name} was lost {count} times before the run began ({reason}); `precgui places "
                        "test {name}` asks whether it works",
                        **values,
                    )
                )
            raise ContactError(
                Sentence(
                    "the link to {name} was lost {count} times before it answered ({reason}); `precgui places test "
                    "{name}` asks whether it works",
                    **values,
                )
            )
        if self._futile >= MOST_FUTILE:
            name = self.place.name
            raise ContactError(
                Sentence(
                    "the agent at {name} answered {count} times, and ended each time when it was asked for "
                    "the run ({reason}); the run may go on there, and `precgui places test {name}` asks whether the "
                    "place works",
                    name=name,
                    count=MOST_FUTILE,
                    reason=message_of(error),
                )
            )
        self._lost_at_s = self._lost_at_s or time.monotonic()
        self._why, self._next_try_s = message_of(error), time.monotonic() + self._wait_s
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)

    def _connected(self) -> bool:
        if time.monotonic() < self._next_try_s:
            return False
        try:
            self.open()
        except ContactError as error:
            self._lost(error)
            return False
        self._lost_at_s = 0.0
        return self._link is not None

    def _ask(self) -> None:
        """Start the job, or go on after the last message that has come."""
        if not self.job:
            return
        was_read = bool(self.number or self.row_number)
        attach = AttachJob(self.job, self.number, self.row_number)
        order = attach if was_read or self._order is None else self._order
        self._try(lambda link: link.send(order))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def followed_run(run: PlacedRun) -> PlacedJob:
    """Follows a run that is at its place already."""
    order = ResumeRun(run.run_id, run.part) if run.part else None
    read = run.part if run.after else None
    return PlacedJob(run.place, run.run_id, order, after=run.after, after_row=run.after_row, part=read)


def _no_answer(place: NamedPlace, seconds: float) -> Sentence:
    return Sentence("no answer from {name} for {seconds:.0f} s", name=place.name, seconds=seconds)
