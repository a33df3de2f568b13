"""Starts a run on several processes: as one of torchrun's, or by starting them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from precgui.config import RunConfig
from precgui.engine import device as devices
from precgui.engine.checkpoint.resume import Resumption
from precgui.engine.errors import EngineError
from precgui.engine.parallel.allocation import allocated_rank, in_allocation
from precgui.engine.parallel.error_files import failure_of, write_failure
from precgui.engine.parallel.rank_run import train_rank
from precgui.events import Emit
from precgui.sentences import L_, Sentence


def check_machine(config: RunConfig) -> None:
    """Raises EngineError for too few cores or devices, and where torch cannot run several processes."""
    ranks, device = config.parallel.ranks, devices.choose(config.device)
    if not dist.is_available() or sys.platform == "win32":
        raise EngineError(L_("this torch cannot run several processes on this system; set parallel.strategy = none"))
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if ranks > count:
            raise EngineError(
                Sentence(
                    "parallel.ranks = {ranks}, but torch sees {count} GPUs, and each rank needs its own; set "
                    "parallel.ranks = {count} or device = cpu",
                    ranks=ranks,
                    count=count,
                )
            )
    elif device.type != "cpu":
        raise EngineError(
            Sentence(
                "several processes run on CPUs and CUDA GPUs, not on {device}; set device = cpu", device=device.type
            )
        )
    else:
        _check_cores(config)


def _check_cores(config: RunConfig) -> None:
    ranks = config.parallel.ranks
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if ranks > cores and not config.parallel.oversubscribe:
        raise EngineError(
            Sentence(
                "parallel.ranks = {ranks}, but this process may use {cores} cores; set parallel.ranks = {cores}, or "
                "parallel.oversubscribe = true where times do not matter",
                ranks=ranks,
                cores=cores,
            )
        )


def train_allocated(
    config: RunConfig, emit: Emit, stopped: Callable[[], bool], start_s: float | None = None, run_id: str = "",
    run_file: Path | None = None, resumed: Resumption | None = None,
) -> None:  # fmt: skip
    """As `train_rank`, for a process of torchrun, which reports the earliest failure of its ranks as their cause."""
    try:
        train_rank(config, emit, stopped, start_s, run_id, run_file, resumed)
    except (Exception, SystemExit) as error:
        write_failure(failure_of(allocated_rank(), error))
        raise


def train_on_ranks(
    config: RunConfig, emit: Emit, stopped: Callable[[], bool], run_id: str = "", run_file: Path | None = None,
    resumed: Resumption | None = None,
) -> None:  # fmt: skip
    """Train as `config.parallel` says, in processes of this machine or as one of an allocation of torchrun.

    Emits and raises as `precgui.engine.train.train`. No process is left when it returns or raises.
    """
    if in_allocation():
        start_s = time.perf_counter() - (resumed.checkpoint.time_s if resumed is not None else 0.0)
        train_allocated(config, emit, stopped, start_s, run_id, run_file, resumed)
        return
    check_machine(config)
    from precgui.engine.parallel.launch import launch  # torchrun takes a second to import

    launch(config, emit, stopped, run_id, run_file, resumed)
