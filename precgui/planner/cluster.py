"""The files that start one run on several hosts of a Slurm cluster: its config, and a script for sbatch."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from precgui.config import RunConfig, to_toml
from precgui.errors import SentenceError

CONFIG, SCRIPT, RUN = "config.toml", "run.sbatch", "run.h5"
_WORD = re.compile(r"[\w.,:@/+=-]{1,200}", re.ASCII)  # of a line that sbatch reads

_SCRIPT = """\
#!/bin/bash
{lines}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@120
# Starts torchrun once on each host; all meet at the first one. The first process writes the run file.
# Versions, config and data of all hosts are compared by hash before the first step.
set -u
cd {folder} || exit 1
head_host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 20000))

on_all_ranks() {{
    srun --kill-on-bad-exit=1 {python} -m torch.distributed.run --nnodes "$SLURM_JOB_NUM_NODES" \\
        --nproc-per-node {ranks} --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d \\
        --rdzv-endpoint "$head_host:$1" -m precgui "${{@:2}}"
}}

if [ -e {run} ]; then  # the job was preempted, or its time had ended
    on_all_ranks "$port" run {run} --resume || exit $?
else
    on_all_ranks "$((port + 1))" cluster --try-link || exit $?
    on_all_ranks "$port" run {config} -o {run} || exit $?
fi
# A run that is not complete has left a checkpoint: queue it again.
if ls {run}.checkpoint-*.safetensors > /dev/null 2>&1; then
    scontrol requeue "$SLURM_JOB_ID"
fi
"""


@dataclass(frozen=True)
class ClusterJob:
    """A request to Slurm. Empty and None: left to the cluster. `minutes` is the time limit of the job."""

    nodes: int = 2
    ranks_per_node: int = 1
    gpus_per_node: int | None = None
    minutes: int | None = None
    account: str = ""
    partition: str = ""


def cluster_files(config: RunConfig, job: ClusterJob, folder: Path, python: str) -> dict[str, str]:
    """The texts of the files by name. Raises SentenceError for a config of one process, or an impossible request."""
    if config.parallel.strategy == "none":
        raise SentenceError("the config has one process; add --set parallel.strategy=ddp (or fsdp)")
    if job.nodes < 1 or job.ranks_per_node < 1:
        raise SentenceError("--nodes and --ranks-per-node are 1 at least")
    settings = {
        "job-name": "precgui", "nodes": job.nodes, "ntasks-per-node": 1, "gpus-per-node": job.gpus_per_node,
        "time": job.minutes, "account": job.account, "partition": job.partition,
    }  # fmt: skip
    given = {name: str(value) for name, value in settings.items() if value not in (None, "")}
    for name, value in given.items():
        if not _WORD.fullmatch(value):
            raise SentenceError(f"--{name}: {value!r} is no word that sbatch reads")
    ranks = job.nodes * job.ranks_per_node
    parallel = config.parallel.model_copy(update={"ranks": ranks})
    script = _SCRIPT.format(
        lines="\n".join(f"#SBATCH --{name}={value}" for name, value in given.items()),
        folder=shlex.quote(str(folder)), python=shlex.quote(python), ranks=job.ranks_per_node,
        config=CONFIG, run=RUN,
    )  # fmt: skip
    return {CONFIG: to_toml(config.model_copy(update={"parallel": parallel})), SCRIPT: script}
