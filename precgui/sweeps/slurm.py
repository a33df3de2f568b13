"""A sweep on a cluster: one array of jobs, a job for each block, submitted with submitit (the extra `slurm`).

A block is never divided: the runs of one seed are compared with one another, so they share a machine. A job that is
preempted, or whose time ends, has its run write a checkpoint and goes on in a new one.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precgui.sentences import L_, Sentence
from precgui.sweeps.errors import SweepError
from precgui.sweeps.folder import JOBS, SweepFolder
from precgui.sweeps.jobs import SubmittedJob, keep_jobs, local_started_s
from precgui.sweeps.runner import run_sweep

_POLL_S = 0.2
_MOST_WAIT_S = 80.0  # for a run to write its checkpoint; Slurm gives 90 s from the signal of submitit


def submit_blocks(folder: SweepFolder, settings: Mapping[str, Any], cluster: str | None = None) -> list[Any]:
    """Submit a job for each block with runs left, as one array; returns submitit's jobs, each with its `job_id`.

    `settings` are parameters of submitit's executor, such as `slurm_partition` and `timeout_min`; `cluster` is slurm,
    local, or None for whichever there is. The jobs are kept in the folder. Raises SweepError without submitit and for
    settings that it refuses.
    """
    try:
        import submitit
    except ImportError:
        raise SweepError(L_("submitit is not installed; install precgui[slurm], or pip install submitit")) from None
    states = folder.states()
    blocks = sorted({state.member.block for state in states if state.status in ("waiting", "cut off")})
    if not blocks:
        return []
    executor = submitit.AutoExecutor(folder=folder.path / JOBS, cluster=cluster)
    try:
        executor.update_parameters(**settings)
        jobs = executor.map_array(BlockJob(), [str(folder.path)] * len(blocks), blocks)
    except (NameError, TypeError, ValueError, RuntimeError) as error:
        why = " ".join(str(error).split())
        raise SweepError(Sentence("the jobs could not be submitted: {why}", why=why)) from None
    kind = "slurm" if executor.cluster == "slurm" else "local"
    keep_jobs(
        folder.path / JOBS,
        [
            SubmittedJob(str(job.job_id), block, kind, local_started_s(str(job.job_id)) if kind == "local" else 0.0)
            for job, block in zip(jobs, blocks, strict=True)
        ],
    )
    return list(jobs)


def job_settings(
    account: str | None = None, gpus: int | None = None, minutes: int | None = None, partition: str | None = None
) -> dict[str, Any]:
    """Parameters of submitit's executor; what is None or empty is left to the cluster.

    Args:
        account: that the jobs are charged to.
        gpus: of each job.
        minutes: the time limit of each job, after which it is queued again.
        partition: of the cluster.
    """
    named = {
        "slurm_account": account, "slurm_gpus_per_node": gpus, "timeout_min": minutes, "slurm_partition": partition,
    }  # fmt: skip
    return {name: value for name, value in named.items() if value}


class BlockJob:
    """One job: what is left of a block. submitit calls `checkpoint` when the job is preempted or its time ends."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._preempted: threading.Event | None = None  # made in the job: neither can be pickled

    def __call__(self, path: str, block: int) -> int:
        """Run it in a thread, so that a signal finds this one waiting. Returns how many runs have come through."""
        self._preempted, faults = threading.Event(), list[BaseException]()
        self._thread = threading.Thread(target=self._run, args=(path, block, faults), name="block")
        self._thread.start()
        while self._thread.is_alive():
            self._thread.join(_POLL_S)
        for fault in faults:
            raise fault
        return _came_through(path, block)

    def checkpoint(self, path: str, block: int) -> Any:
        """Let the present run write its checkpoint and end; the job that follows goes on with it."""
        from submitit.helpers import DelayedSubmission

        if self._preempted is not None and self._thread is not None:
            self._preempted.set()
            self._thread.join(_MOST_WAIT_S)
        return DelayedSubmission(BlockJob(), path, block)

    def _run(self, path: str, block: int, faults: list[BaseException]) -> None:
        assert self._preempted is not None
        _leave_preemption_to_this_job()
        try:
            run_block(path, block, self._preempted)
        except BaseException as fault:  # noqa: BLE001 - raised again where submitit sees it
            faults.append(fault)


def run_block(path: str, block: int, preempted: threading.Event | None = None) -> int:
    """Run the rest of a block until `preempted` is set. Returns how many of its runs have come through."""
    aborted = preempted.is_set if preempted is not None else lambda: False
    run_sweep(SweepFolder(Path(path)), lambda event: None, aborted=aborted, block=block)
    return _came_through(path, block)


def _came_through(path: str, block: int) -> int:
    states = SweepFolder(Path(path)).states()
    return sum(state.came_through for state in states if state.member.block == block)


def _leave_preemption_to_this_job() -> None:
    """Keep the signal from the processes of runs, which would end at it: they inherit the mask of this thread.

    Slurm sends it to every process of a job.
    """
    with contextlib.suppress(ImportError, AttributeError, RuntimeError):
        from submitit.core.job_environment import JobEnvironment

        signal.pthread_sigmask(signal.SIG_BLOCK, {JobEnvironment._usr_sig()})
