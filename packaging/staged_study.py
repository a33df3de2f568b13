"""A study on a cluster for the pictures: its first blocks are trained here, a stand-in for `squeue` tells the rest."""

from __future__ import annotations

import os
from pathlib import Path

from precgui import config
from precgui.sweeps.folder import JOBS, create_sweep
from precgui.sweeps.jobs import SubmittedJob, keep_jobs
from precgui.sweeps.runner import run_sweep
from precgui.sweeps.spec import make_spec

SETTINGS = ("model.name=mlp", "train.epochs=2", "data.epoch_steps=20", "device=cpu", "record.tensors=false")
PRECISIONS = ("fp32", "bf16-amp", "fp16-amp")
STATES = ("RUNNING|None", "PENDING|Priority", "PENDING|QOSMaxGRESPerUser")


def study_with_jobs(path: Path) -> Path:
    """Plan the study in a new folder, train its first two blocks, and let the queue hold a job for each other one."""
    folder = create_sweep(
        path, make_spec(config.load("digits-quick", SETTINGS), PRECISIONS, len(STATES) + 1, order_seed=3)
    )
    blocks = sorted({member.block for member in folder.plan.members})
    for block in blocks[:2]:
        run_sweep(folder, lambda _: None, block=block)
    names = [f"481516_{place}" for place in range(len(blocks))]
    (path / JOBS).mkdir()
    keep_jobs(path / JOBS, [SubmittedJob(name, block, "slurm") for name, block in zip(names, blocks, strict=True)])
    tools = path.with_name("tools")
    tools.mkdir()
    lines = [f"echo '{name}|{state}'" for name, state in zip(names[2:], STATES, strict=False)]
    (tools / "squeue").write_text("\n".join(["#!/bin/sh", *lines, ""]), encoding="utf-8")
    (tools / "squeue").chmod(0o755)
    os.environ["PATH"] = f"{tools}{os.pathsep}{os.environ['PATH']}"
    return path
