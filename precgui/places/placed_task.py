"""A task of the engine at a place as a `Channel`: its events come as from a child process, and its files come home."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precgui.errors import SentenceError
from precgui.places.command import bring_results, failed_there
from precgui.places.jobs import RUN_FILE, is_file_name
from precgui.places.messages import CommandEnded, JobOutput, SentFile, StartCommand
from precgui.places.orders import MOST_SENT_BYTES, sent_file
from precgui.places.placed_job import JobError, JobMessage, PlacedJob
from precgui.places.settings import NamedPlace
from precgui.places.tasks import ARGUMENTS, TASK, arguments_bytes, event_of, task_name, with_texts
from precgui.process.child import ChildTask, Stop
from precgui.process.supervised import Supervised
from precgui.sentences import Sentence, message_of

KILL_AFTER_S = 10.0  # after a stop: a round trip more than here
MOST_LINE = 32 << 20  # characters of one event
_MOST_SAID = 8000  # characters of what a task prints that are kept
_AT_HOME = ("kept", "written")  # kinds of events about files, which are told once the files are here


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """The place where a task is worked on, and what it needs there.

    `run` is the file here of the run `run_id` that was trained there: the task reads the file there, and what it keeps
    beside that comes beside `run`. `homes` are the paths here of the files and folders that it makes; `files` are sent.
    """

    place: NamedPlace
    run_id: str = ""
    run: Path | None = None
    homes: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()


class TaskChannel:
    """Takes one `ChildTask`. `why` says why it has ended badly, empty otherwise; `goes_on` that it could not be ended
    at the place, where it goes on.

    While the link is lost it tells events of the kind "link" with the sentence about it as `text`, then one with "".
    """

    pid = None

    def __init__(self, there: TaskPlace) -> None:
        self.why, self.goes_on = "", False
        self._there, self._job = there, PlacedJob(there.place)
        self._names = {str(path): name_there(path.expanduser()) for path in there.homes}
        self._tasks: deque[ChildTask] = deque()
        self._line, self._said, self._link = "", "", ""
        self._held: list[dict[str, Any]] = []
        self._is_over = False

    def start(self) -> None:
        """Raises ContactError."""
        self._job.open()

    def send(self, message: object) -> None:
        """A task or Stop; it is sent in the thread that receives."""
        if isinstance(message, ChildTask):
            self._tasks.append(message)
            self._job.wake()
        elif isinstance(message, Stop):
            self._job.stop()

    def receive(self, timeout_s: float) -> list[dict[str, Any]] | None:
        """Raises EOFError after the end of the task, and where nothing more can come from the place."""
        if self._is_over:
            raise EOFError
        try:
            if self._tasks:
                self._begin(self._tasks.popleft())
            return self._events(self._job.receive(timeout_s))
        except (SentenceError, OSError) as error:
            self._is_over, self.why = True, message_of(error)
            raise EOFError(str(error)) from None
        except KeyboardInterrupt:
            self._job.stop_now()  # nothing is received any more
            raise

    def is_alive(self) -> bool:
        return not self._is_over

    def kill(self) -> None:
        """End the process of the task; without a link, let go of it."""
        if self._job.is_linked and self._job.has_begun:
            self._job.stop(kill=True)
        else:
            self.goes_on = self._job.has_begun
            self._job.detach()

    def wait(self) -> int:
        return int(bool(self.why))

    def last_words(self) -> str:
        return ""

    def close(self) -> None:
        self._job.close()

    def _begin(self, task: ChildTask) -> None:
        run = {str(self._there.run): RUN_FILE} if self._there.run is not None else {}
        content = arguments_bytes(with_texts(task.arguments, run | self._names), list(self._names.values()))
        sent = SentFile(ARGUMENTS, hashlib.sha256(content).hexdigest(), content)
        files = (sent, *(sent_file(path, MOST_SENT_BYTES) for path in self._there.files))
        words = (TASK, task_name(task.task))
        self._job.begin(StartCommand(uuid.uuid4().hex, words, files=files, of=self._there.run_id))

    def _events(self, message: JobMessage | None) -> list[dict[str, Any]] | None:
        if isinstance(message, CommandEnded):
            return self._ended(message.exit_code)
        if isinstance(message, JobOutput) and message.stream == "stdout":
            events = self._of_lines(message.text)
            self._held += [event for event in events if event["kind"] in _AT_HOME]
            return [event for event in events if event["kind"] not in _AT_HOME] or None
        if isinstance(message, JobOutput):
            self._said = (self._said + message.text)[-_MOST_SAID:]
        if (state := self._job.state) != self._link:
            self._link = state
            return [{"kind": "link", "text": state}]
        return None

    def _of_lines(self, text: str) -> list[dict[str, Any]]:
        *lines, self._line = (self._line + text).split("\n")
        if len(self._line) > MOST_LINE:
            raise self._no_event()
        try:
            return [event_of(line) for line in lines]
        except (ValueError, RecursionError):
            raise self._no_event() from None

    def _no_event(self) -> JobError:
        return JobError(
            Sentence(
                "{name} told of its work in a way that this precgui does not read; upgrade precgui there",
                name=self._there.place.name,
            )
        )

    def _ended(self, code: int) -> list[dict[str, Any]]:
        """The events about files, once these have come home; the job there is removed."""
        job = self._job.job
        for name in filter(is_file_name, self._job.files() if self._names and not code else ()):
            if (home := self._home_of(name)) is not None:
                self._job.fetch(name, home)
        if self._held and self._there.run is not None:
            self._job.job = self._there.run_id
            bring_results(self._job, self._there.run)
        self._job.job, self._is_over = job, True
        self._job.remove()
        if code:
            raise failed_there(self._there.place, self._said, code)
        homes = {name: path for path, name in self._names.items()}
        return [with_texts(event, homes) for event in self._held]

    def _home_of(self, name: str) -> Path | None:
        """The path here for a file that the task has made; None for one that is not wanted."""
        for path, there in self._names.items():
            if name == there or name.startswith(f"{there}/"):
                return Path(path + name.removeprefix(there)).expanduser()
        return None


def name_there(path: Path) -> str:
    """The name at a place of what a task makes for a path here; names of files are plainer between machines."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", path.name)[-100:]
    return name if re.match(r"[A-Za-z0-9_]", name) else f"_{name[1:]}"


def done_there(
    there: TaskPlace, task: str, arguments: Mapping[str, Any], link: Callable[[str], object] = lambda state: None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The events of a task that is worked on at a place, once it has ended; `link` takes the state of the link.

    Raises JobError where it ended badly. Ctrl+C ends it there, too.
    """
    channel, events = TaskChannel(there), list[dict[str, Any]]()
    process = Supervised(channel, KILL_AFTER_S)
    channel.send(ChildTask(task, arguments))

    def take(batch: list[dict[str, Any]]) -> None:
        for event in batch:
            if event["kind"] == "link":
                link(event["text"])
            else:
                events.append(event)

    end = process.run(take)
    if why := end.not_started or channel.why:
        raise JobError(why)
    return events
