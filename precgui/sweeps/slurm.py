"""A sweep on a cluster: one job for each block, submitted with submitit (the extra `slurm`).

A block is never divided: the runs of one seed are compared with one another, so they share a machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precgui.sweeps.errors import SweepError
from precgui.sweeps.folder import JOBS, SweepFolder
from precgui.sweeps.runner import run_sweep


def submit_blocks(folder: SweepFolder, settings: Mapping[str, Any], cluster: str | None = None) -> list[Any]:
    """Submit a job for each block with runs left; returns submitit's jobs, each with its `job_id`.

    `settings` are parameters of submitit's executor, such as `slurm_partition` and `timeout_min`; `cluster` is slurm,
    local, or None for whichever there is. Raises SweepError without submitit and for settings that it refuses.
    """
    try:
        import submitit
    except ImportError:
        raise SweepError("submitit is not installed; install precgui[slurm], or pip install submitit") from None
    states = folder.states()
    blocks = sorted({state.member.block for state in states if state.status in ("waiting", "cut off")})
    executor = submitit.AutoExecutor(folder=folder.path / JOBS, cluster=cluster)
    try:
        executor.update_parameters(**settings)
        return [executor.submit(run_block, str(folder.path), block) for block in blocks]
    except (NameError, TypeError, ValueError, RuntimeError) as error:
        raise SweepError(f"the jobs could not be submitted: {' '.join(str(error).split())}") from None


def run_block(path: str, block: int) -> int:
    """One job: what is left of a block. Returns how many of its runs have come through."""
    folder = SweepFolder(Path(path))
    run_sweep(folder, lambda event: None, block=block)
    return sum(state.came_through for state in folder.states() if state.member.block == block)
