"""The agent of a place, `precgui serve --stdio`: frames of orders in, frames of jobs out.

It owns nothing: jobs are processes in sessions of their own, and their folders are the truth. It may be ended at any
time, and ends with its input.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import precgui
from precgui.config import ConfigError, build, is_own_task
from precgui.errors import SentenceError
from precgui.events import RunEnded
from precgui.places.hello import hello, torch_version
from precgui.places.history import JobRecord
from precgui.places.jobs import RUN_FILE, JobFolder, SpooledFrames, all_jobs, is_end, task_file
from precgui.places.messages import (
    COMMANDS,
    ONLY_COMMANDS,
    ORDERS,
    REPLIES,
    AttachJob,
    CommandEnded,
    FetchPart,
    JobEvents,
    JobList,
    JobStarted,
    ListJobs,
    OrderError,
    Ping,
    PlaceReady,
    Pong,
    Prepare,
    Refused,
    RemoveJob,
    ResumeRun,
    StartCommand,
    StartRun,
    StopJob,
)
from precgui.places.tasks import TASK, TASKS
from precgui.process.frames import FrameError, FrameReader
from precgui.runs.broken_off import broken_off
from precgui.runs.errors import RunFileError
from precgui.runs.file.reader import open_run
from precgui.runs.file.repair import complete
from precgui.sentences import L_, Sentence, filled, message_of

FOLLOW_S = 0.02
LOOK_S = 0.5  # between looks whether the process of a job is there
ROWS_AT_ONCE_BYTES = 256 << 10  # of rows of tensors between two looks for messages
START_S = 60.0  # in which a process takes its job
_LOST = L_("the process of the run ended without a last word; somebody ended it, or the system was out of memory")
_KILLED = L_("stopped; the process of the run did not answer and was ended")
_NO_TORCH = L_("torch is not installed at this place; there run `python -m pip install torch`")
_PROGRAM = "import sys; sys.path.append({parent!r}); from precgui.places.runner import main; sys.exit(main())"


def serve_stdio() -> None:
    """Serve until the input ends. Never returns: a thread may be inside a read or a write."""
    output = os.dup(1)
    os.dup2(2, 1)  # nothing that prints comes between the frames
    serve(0, output)
    os._exit(0)


def serve(source: int, output: int) -> None:
    """Carry out orders from one descriptor, and answer on the other, until one of them is closed."""
    agent = Agent(output)
    try:
        agent.send(hello())
        reader = FrameReader(ORDERS)
        while data := os.read(source, 1 << 16):
            for order in reader.feed(data):
                agent.obey(order)
    except FrameError as error:
        with contextlib.suppress(_AskerGone):
            agent.send(Refused("", message_of(error)))
    except (OSError, _AskerGone):
        pass
    finally:
        agent.close()


class _AskerGone(Exception):
    """Nobody reads any more; the jobs go on."""


class Agent:
    """Carries out orders; answers go to the descriptor `output`, from several threads."""

    def __init__(self, output: int) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._warm: subprocess.Popen[str] | None = None
        self._followed: set[str] = set()
        self._closing = threading.Event()

    def send(self, message: object) -> None:
        self.send_frame(REPLIES.encode(message))

    def send_frame(self, frame: bytes) -> None:
        """Raises _AskerGone."""
        with self._lock:
            if self._closing.is_set():  # the descriptor may be another one's by now
                raise _AskerGone
            try:
                view = memoryview(frame)
                while view:
                    view = view[os.write(self._output, view) :]
            except OSError:
                raise _AskerGone from None

    def close(self) -> None:
        """End the process that waits for a run, and the threads that follow jobs."""
        self._closing.set()
        if self._warm is not None and self._warm.stdin is not None:
            with contextlib.suppress(OSError):
                self._warm.stdin.close()

    def obey(self, order: object) -> None:
        """Carry out an order; one that cannot be is answered by a sentence."""
        try:
            self._obey(order)
        except (SentenceError, OSError) as error:
            self.send(Refused(getattr(order, "job", ""), message_of(error)))

    def _obey(self, order: object) -> None:
        match order:
            case StartRun() | StartCommand():
                self._start(order)
            case ResumeRun(job=job, part=part):
                self._resume(_known(job), part)
            case AttachJob(job=job):
                self._follow(_known(job), order)
            case StopJob(job=job, kill=kill):
                _known(job).stop(kill=kill)
            case FetchPart(job=job, name=name, offset=offset):
                self.send(_known(job).part(name, offset))
            case ListJobs():
                self.send(JobList(tuple(all_jobs())))
            case RemoveJob(job=job):
                _known(job).remove()
            case Prepare():
                self._prepare()
            case Ping():
                self.send(Pong())

    # Jobs

    def _start(self, order: StartRun | StartCommand) -> None:
        folder = JobFolder(order.job)
        if not folder.exists:
            _check(order)
            folder.make(order)
        self._follow(folder, AttachJob(folder.job))

    def _resume(self, folder: JobFolder, part: int) -> None:
        if part > folder.part_number:
            if not isinstance(folder.order(), StartRun):
                raise OrderError(L_("only a run can go on after it had ended"))
            if folder.is_claimed and folder.is_process_gone:
                _end_of(folder, 1)  # completes the file of a run whose process was killed
            broken_off(folder.out / RUN_FILE)
        folder = folder.begin_part(part)
        self._follow(folder, AttachJob(folder.job))

    def _follow(self, folder: JobFolder, read: AttachJob) -> None:
        """Also starts a job whose process never took it."""
        self.send(JobStarted(folder.job, folder.part_number))
        process = None if folder.is_claimed else self._process_for(folder.job)
        if folder.job not in self._followed:
            self._followed.add(folder.job)
            threading.Thread(target=self._relay, args=(folder, read, process), daemon=True).start()

    def _prepare(self) -> None:
        if self._warm is None:
            self._warm = _runner("--wait")
            threading.Thread(target=self._tell_when_ready, args=(self._warm,), daemon=True).start()

    def _tell_when_ready(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with contextlib.suppress(_AskerGone):
            if process.stdout.readline().strip() == "ready":
                self.send(PlaceReady())

    def _process_for(self, job: str) -> subprocess.Popen[str]:
        warm, self._warm = self._warm, None
        if warm is not None and warm.poll() is None and warm.stdin is not None:
            with contextlib.suppress(OSError):
                warm.stdin.write(f"{job}\n")
                warm.stdin.close()
                return warm
        return _runner(job)

    def _relay(self, folder: JobFolder, read: AttachJob, process: subprocess.Popen[str] | None) -> None:
        with contextlib.suppress(_AskerGone):
            try:
                self._relay_frames(folder, read, process)
            except (SentenceError, OSError) as error:
                self.send(
                    Refused(
                        folder.job,
                        Sentence(
                            "the record of the job cannot be read: {error}",
                            error=message_of(error),
                        ),
                    )
                )
            finally:
                self._followed.discard(folder.job)

    def _relay_frames(self, folder: JobFolder, read: AttachJob, process: subprocess.Popen[str] | None) -> None:
        record, rows = JobRecord(folder, read.after), SpooledFrames(folder.rows, read.after_row)
        until_s, looked_s = time.monotonic() + START_S, 0.0
        for frame in record.new():  # all that has been said comes before any row
            self.send_frame(frame)
        is_over = False
        while not self._closing.is_set():
            messages = list(record.new())
            for frame in _some(rows.new()):  # also those that came before these messages
                self.send_frame(frame)
            for frame in messages:
                self.send_frame(frame)
            if is_over:
                break
            if time.monotonic() > looked_s + LOOK_S:
                looked_s = time.monotonic()
                if process is not None:
                    process.poll()  # takes the exit code, so that it does not stay as a zombie
                late = time.monotonic() > until_s or (process is not None and process.poll() is not None)
                is_over = folder.is_process_gone if folder.is_claimed else late
            self._closing.wait(0 if is_over else FOLLOW_S)
        if self._closing.is_set():
            return
        if not record.last or not is_end(REPLIES.decode(record.last)):
            self.send(_end_of(folder, record.number + 1))


def _some(frames: Iterator[bytes]) -> Iterator[bytes]:
    """The first of them, until they have more than `ROWS_AT_ONCE_BYTES`."""
    size = 0
    while size < ROWS_AT_ONCE_BYTES and (frame := next(frames, b"")):
        size += len(frame)
        yield frame


def _known(job: str) -> JobFolder:
    folder = JobFolder(job)
    if not folder.exists:
        raise OrderError(Sentence("there is no job {job} at this place", job=job))
    return folder


def _check(order: StartRun | StartCommand) -> None:
    """Raises SentenceError for an order that would fail, before anything is made."""
    if isinstance(order, StartCommand):
        if not order.words or order.words[0] not in COMMANDS:
            raise OrderError(filled(ONLY_COMMANDS, commands=", ".join(COMMANDS)))
        if order.words[0] == TASK:
            _check_task(order)
        if order.of:
            _check_of(order.of)
        return
    if not torch_version():
        raise OrderError(_NO_TORCH)
    config = build(order.config)
    if is_own_task(config.task) and task_file(config.task) not in {file.name for file in order.files}:
        code = task_file(config.task) or config.task
        raise ConfigError(
            {
                "task": Sentence(
                    "the code {code} was not sent; it runs here only when its file is sent with the run",
                    code=code,
                )
            }
        )


def _check_task(order: StartCommand) -> None:
    """Raises OrderError for a task that is not known, or that needs torch where there is none."""
    if len(order.words) != 2 or order.words[1] not in TASKS:
        raise OrderError(Sentence("a place works on the tasks {tasks}", tasks=", ".join(TASKS)))
    if not torch_version():
        raise OrderError(_NO_TORCH)


def _check_of(job: str) -> None:
    """Raises OrderError where no command can be run in the folder of a job."""
    folder = _known(job)
    if folder.is_running:
        raise OrderError(Sentence("the job {job} has not ended", job=job))
    if isinstance(folder.order(), StartRun) and not (folder.out / RUN_FILE).is_file():
        raise OrderError(Sentence("the run {job} has left no file", job=job))


def _end_of(folder: JobFolder, number: int) -> JobEvents | CommandEnded:
    """The last message of a job whose process did not write one; the file of a run is completed first."""
    if isinstance(folder.order(), StartCommand):
        return CommandEnded(folder.job, number, 1)
    path = folder.out / RUN_FILE
    if folder.was_killed:
        ended = RunEnded(0.0, "stopped", _KILLED)
    else:
        ended = RunEnded(0.0, "failed", _LOST, folder.last_words())
    if path.is_file():
        complete(path, ended)
        with contextlib.suppress(RunFileError), open_run(path) as saved:
            if saved.status != "running":
                ended = RunEnded(0.0, saved.status, saved.message, saved.details)
    return JobEvents(folder.job, number, (ended,))


def _runner(argument: str) -> subprocess.Popen[str]:
    """The process of a job: no signal of the agent's terminal or link reaches it."""
    parent = str(Path(precgui.__file__).parent.parent)
    waits = argument == "--wait"
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM.format(parent=parent), argument],
        stdin=pipe if waits else nothing,
        stdout=pipe if waits else nothing,
        stderr=nothing,
        text=True,
        start_new_session=True,
        creationflags=getattr(subprocess, "DETACHED_PROCESS", 0),
    )
