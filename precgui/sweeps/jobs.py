"""The jobs of a sweep on a cluster: kept in its folder when they are submitted, looked up in the queue, cancelled."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from precgui.safe_open import read_text, replace_file
from precgui.sentences import L_, Sentence
from precgui.sweeps.errors import SweepError

FILE = "jobs.json"  # in the folder of what jobs print
_MOST_BYTES = 4 << 20
_MOST_JOBS = 100_000
_ID = re.compile(r"\d{1,12}(?:_\d{1,7})?")  # of Slurm, also of a part of an array; of a local one its process
_ANSWER_S = 20.0
OVER = "ended"  # the state of a job that is no longer in the queue


@dataclass(frozen=True)
class SubmittedJob:
    """A job for one block. `cluster`: slurm or local; of a local one `started_s` tells its process from a later one."""

    job_id: str
    block: int
    cluster: str
    started_s: float = 0.0


@dataclass(frozen=True)
class JobState:
    """A job in the queue: its state as the queue names it, and the reason why it waits; both may be empty."""

    job: SubmittedJob
    state: str
    reason: str = ""

    @property
    def in_words(self) -> str:
        """For people: `job 77_1: pending (Priority)`."""
        job = Sentence("job {job}: {state}", job=self.job.job_id, state=self.state)
        return Sentence("{value} ({remark})", value=job, remark=self.reason) if self.reason else job


def keep_jobs(folder: Path, jobs: Sequence[SubmittedJob]) -> None:
    """Add jobs to those of a folder; a newer job of a block takes the place of an older one. Raises SweepError."""
    kept = {job.block: job for job in (*read_jobs(folder), *jobs)}
    try:
        replace_file(folder / FILE, json.dumps([asdict(job) for job in kept.values()]).encode())
    except OSError as error:
        raise SweepError(Sentence("{file} cannot be written: {why}", file=folder / FILE, why=error.strerror)) from None


def read_jobs(folder: Path) -> list[SubmittedJob]:
    """The jobs that were submitted, by block; [] where there are none or the file is none."""
    try:
        rows = json.loads(read_text(folder / FILE, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return []
    found = [_job(row) for row in rows[:_MOST_JOBS]] if isinstance(rows, list) else []
    return [job for job in found if job is not None]


def _job(row: Any) -> SubmittedJob | None:
    if not isinstance(row, dict) or not _ID.fullmatch(str(row.get("job_id"))):
        return None
    block, started_s = row.get("block"), row.get("started_s", 0.0)
    if type(block) is not int or row.get("cluster") not in ("slurm", "local") or not isinstance(started_s, float):
        return None
    return SubmittedJob(str(row["job_id"]), block, str(row["cluster"]), started_s)


def job_states(jobs: Sequence[SubmittedJob]) -> list[JobState]:
    """The states of jobs now: of Slurm by one question to `squeue`. A job that is no longer in the queue has ended."""
    ids = [job.job_id for job in jobs if job.cluster == "slurm"]
    queue = _queue(ids) if ids else {}
    return [_state(job, queue) for job in jobs]


class JobWatch:
    """The states of the jobs of a folder by block; the queue is asked at most once in `every_s` seconds."""

    def __init__(self, every_s: float = 20.0) -> None:
        self._every_s, self._lock = every_s, threading.Lock()
        self._kept: dict[Path, tuple[float, dict[int, JobState]]] = {}

    def by_block(self, folder: Path) -> dict[int, JobState]:
        with self._lock:
            asked_s, states = self._kept.get(folder, (-math.inf, {}))
            if time.monotonic() - asked_s > self._every_s:
                states = {state.job.block: state for state in job_states(read_jobs(folder))}
                self._kept[folder] = time.monotonic(), states
            return states


def _state(job: SubmittedJob, queue: Mapping[str, tuple[str, str]] | None) -> JobState:
    if job.cluster == "local":
        return JobState(job, "running" if _local_process(job) is not None else OVER)
    if queue is None:
        return JobState(job, L_("not known"), L_("squeue gives no answer here"))
    state, reason = queue.get(job.job_id, (OVER, ""))
    return JobState(job, state.lower(), "" if reason in ("None", "(null)") else reason)


def _queue(ids: Sequence[str]) -> dict[str, tuple[str, str]] | None:
    """State and reason by id of all jobs of this user; None where there is no answer."""
    command = ["squeue", "--noheader", "--array", "--me", "--format", "%i|%T|%r"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.strip().split("|", 2) for line in answer.stdout.splitlines()]
    return {row[0]: (row[1], row[2]) for row in rows if len(row) == 3 and row[0] in set(ids)}


def cancel_jobs(jobs: Sequence[SubmittedJob]) -> list[SubmittedJob]:
    """Cancel the jobs that have not ended; returns them. Raises SweepError where the cluster refuses."""
    left = [state.job for state in job_states(jobs) if state.state != OVER]
    if ids := [job.job_id for job in left if job.cluster == "slurm"]:
        try:
            subprocess.run(["scancel", *ids], capture_output=True, text=True, timeout=_ANSWER_S, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            words = (getattr(error, "stderr", "") or str(error)).strip()
            raise SweepError(
                Sentence("scancel did not cancel {jobs}: {why}", jobs=", ".join(ids[:3]), why=words)
            ) from None
    for job in left:
        if job.cluster == "local" and (process := _local_process(job)) is not None:
            os.kill(process.pid, signal.SIGINT)
    return left


def _local_process(job: SubmittedJob) -> psutil.Process | None:
    try:
        process = psutil.Process(int(job.job_id))
        is_same = abs(process.create_time() - job.started_s) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError):
        return None
    return process if is_same else None


def local_started_s(job_id: str) -> float:
    """When the process of a local job was started, in seconds of the system's clock; 0 where it has ended."""
    try:
        return float(psutil.Process(int(job_id)).create_time())
    except (psutil.Error, ValueError):
        return 0.0
