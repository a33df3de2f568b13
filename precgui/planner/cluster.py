"""One run on several hosts: its config and a script for sbatch on a Slurm cluster, or the command for each host."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from precgui.config import RunConfig, to_toml
from precgui.errors import SentenceError
from precgui.sentences import L_, Sentence

CONFIG, SCRIPT, RUN = "config.toml", "run.sbatch", "run.h5"
_WORD = re.compile(r"[\w.,:@/+=-]{1,200}", re.ASCII)  # of a line that sbatch reads

_ENDPOINT = re.compile(r"(?P<host>[A-Za-z0-9][\w.-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\]):(?P<port>[0-9]{1,5})", re.ASCII)

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
    _check(config, job)
    settings = {
        "job-name": "precgui", "nodes": job.nodes, "ntasks-per-node": 1, "gpus-per-node": job.gpus_per_node,
        "time": job.minutes, "account": job.account, "partition": job.partition,
    }  # fmt: skip
    given = {name: str(value) for name, value in settings.items() if value not in (None, "")}
    for name, value in given.items():
        if not _WORD.fullmatch(value):
            raise SentenceError(Sentence("--{name}: {value!r} is no word that sbatch reads", name=name, value=value))
    ranks = job.nodes * job.ranks_per_node
    parallel = config.parallel.model_copy(update={"ranks": ranks})
    script = _SCRIPT.format(
        lines="\n".join(f"#SBATCH --{name}={value}" for name, value in given.items()),
        folder=shlex.quote(str(folder)), python=shlex.quote(python), ranks=job.ranks_per_node,
        config=CONFIG, run=RUN,
    )  # fmt: skip
    return {CONFIG: to_toml(config.model_copy(update={"parallel": parallel})), SCRIPT: script}


def host_commands(
    config: RunConfig, words: Sequence[str], job: ClusterJob, rendezvous: str, python: str = "python3"
) -> list[str]:
    """The command for each host, the first of which is that of `rendezvous`, HOST:PORT, and writes the run file.

    `words` name the run to `precgui run`. Raises SentenceError.
    """
    _check(config, job)
    if (found := _ENDPOINT.fullmatch(rendezvous)) is None or not 1 <= int(found["port"]) < 1 << 16:
        raise SentenceError(
            Sentence(
                "--rendezvous {rendezvous!r}: write HOST:PORT, a name or address of the first host that all "
                "others reach, and a free port there, such as gpu1:29400",
                rendezvous=rendezvous,
            )
        )
    address = found["host"].strip("[]")
    return [
        shlex.join([
            python, "-m", "torch.distributed.run", "--nnodes", str(job.nodes), "--node-rank", str(node),
            "--nproc-per-node", str(job.ranks_per_node), "--master-addr", address, "--master-port", found["port"],
            "-m", "precgui", "run", *words,
        ])
        for node in range(job.nodes)
    ]  # fmt: skip


def _check(config: RunConfig, job: ClusterJob) -> None:
    if config.parallel.strategy == "none":
        raise SentenceError(L_("the config has one process; add --set parallel.strategy=ddp (or fsdp)"))
    if job.nodes < 1 or job.ranks_per_node < 1:
        raise SentenceError(L_("--nodes and --ranks-per-node are 1 at least"))
