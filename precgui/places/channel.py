"""A run at a place as a `Channel`: whoever supervises a child process supervises it in the same way."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

from precgui.config import build
from precgui.errors import SentenceError
from precgui.events import RunEnded
from precgui.places.contact import ContactError
from precgui.places.history import events_of
from precgui.places.jobs import RUN_FILE
from precgui.places.messages import JobEvents, JobHistory, JobRow
from precgui.places.orders import run_order
from precgui.places.placed_job import JobError, JobMessage, PlacedJob, PlacedRun, followed_run
from precgui.places.settings import NamedPlace
from precgui.process.child import RUN_TASK, ChildTask, Ready, Stop
from precgui.process.frames import FrameError
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import open_run
from precgui.sentences import Sentence, message_of, together


class PlaceChannel:
    """Takes one `ChildTask` that trains; its file is brought to the path of the task before `RunEnded` is given.

    `job` follows the run, and may be asked to detach. A link that is lost is no end. `why` says why it has ended
    without the end of the run, empty otherwise. `attached`: a run that is there already.
    """

    pid = None

    def __init__(self, place: NamedPlace, *, may_send_code: bool = False, attached: PlacedRun | None = None) -> None:
        self.job = followed_run(attached) if attached is not None else PlacedJob(place)
        self.why = ""
        self._may_send_code = may_send_code
        self._tasks: deque[ChildTask] = deque()
        self._home = attached.path if attached else None
        self._is_over = self._was_ready = False

    def start(self) -> None:
        """Raises ContactError."""
        self.job.open()
        if not self.job.job:
            self.job.prepare()

    def send(self, message: object) -> None:
        """A task or Stop; it is sent in the thread that receives."""
        if isinstance(message, ChildTask):
            self._tasks.append(message)
            self.job.wake()  # the order goes at once, not after the wait for a message
        elif isinstance(message, Stop):
            self.job.stop()

    def receive(self, timeout_s: float) -> Any:
        """Raises EOFError after the end of the run, and where nothing more can come from the place."""
        if self._is_over:
            raise EOFError
        try:
            if self._tasks:
                self._begin(self._tasks.popleft())
            message = self.job.receive(timeout_s)
        except (ContactError, SentenceError) as error:
            self._is_over, self.why = True, message_of(error)
            raise EOFError(str(error)) from None
        if self.job.is_ready and not self._was_ready:
            self._was_ready = True
            return Ready()
        try:
            return self._events(message)
        except FrameError as error:  # a history that is none
            self._is_over, self.why = True, message_of(error)
            raise EOFError(str(error)) from None

    def is_alive(self) -> bool:
        return not self._is_over

    def kill(self) -> None:
        """End the process of the run; without a run or without a link, let go of it."""
        if self._home is not None and self.job.is_linked and self.job.has_begun:
            self.job.stop(kill=True)
        else:
            self.job.detach()

    def wait(self) -> int:
        return int(bool(self.why))

    def last_words(self) -> str:
        return self.why

    def close(self) -> None:
        self.job.close()

    def _begin(self, task: ChildTask) -> None:
        arguments = task.arguments
        if task.task != RUN_TASK or arguments.get("goes_on"):
            raise JobError(
                Sentence(
                    "a run of this machine cannot go on at {name}, only one that was trained there",
                    name=self.job.place.name,
                )
            )
        self._home = Path(arguments["path"])
        name = self.job.place.name
        self.job.begin(
            run_order(build(arguments["config"]), arguments["run_id"], name, may_send_code=self._may_send_code)
        )

    def _events(self, message: JobMessage | None) -> list[Any] | None:
        if isinstance(message, JobHistory):
            return events_of(message)
        if isinstance(message, JobRow):
            return [message.row]
        if not isinstance(message, JobEvents):
            return None
        events: list[Any] = list(message.events)
        if events and isinstance(ended := events[-1], RunEnded):
            try:
                if RUN_FILE in self.job.files():
                    bring_home(self.job, self._home)
            except (SentenceError, OSError) as error:
                text = Sentence(
                    "its file is still at {name}: {error}", name=self.job.place.name, error=message_of(error)
                )
                events[-1] = replace(ended, message=together(ended.message, text, between="; "))
            self._is_over = True
        return events


def bring_home(job: PlacedJob, path: Path | None) -> None:
    """Fetch the run file of a job that has ended, and see that it is the one. Raises SentenceError, OSError.

    It replaces an earlier file of the same run.
    """
    assert path is not None

    def check(draft: Path) -> None:
        try:
            run_id = _run_id(draft)
        except RunFileError as error:
            raise JobError(
                Sentence("the file from {name} is no run: {error}", name=job.place.name, error=message_of(error))
            ) from None
        if run_id != job.job:
            raise JobError(
                Sentence(
                    "the file from {name} is of another run, {run_id}",
                    name=job.place.name,
                    run_id=run_id[:40],
                )
            )

    def is_same(path: Path) -> bool:
        try:
            return _run_id(path) == job.job
        except RunFileError:
            return False

    job.fetch(RUN_FILE, path, check, is_same)


def _run_id(path: Path) -> str:
    with open_run(path) as saved:
        return saved.run_id
