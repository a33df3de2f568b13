"""Ranks on pretended devices and on the CPU, in processes that a process of `on_pretended_gpu` starts."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from precgui.config import load
from tests.engine.parallel import many_runs
from tests.pretended import collectives, host_math


def print_ranks(folder: str, recipe: str, runs: Mapping[str, Sequence[str]], ranks: int = 2) -> None:
    """Print one line of JSON: by run the events of its first rank, and by rank what its process has counted."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    trees = [load(recipe, settings).model_dump() for settings in runs.values()]
    told = many_runs.run_all(trees, ranks, Path(folder), port, rank_main)
    processes = [json.loads((Path(folder) / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
    print("ROW " + json.dumps({"runs": dict(zip(runs, told, strict=True)), "processes": processes}))  # noqa: T201


def rank_main(runs: Path, results: Path, environment: Mapping[str, str]) -> None:
    """A rank as `many_runs.main`, with the counts of each of its updates."""
    host_math.install()
    host_math.install_compiled()
    collectives.install()
    steps: list[dict[str, Any]] = []

    def count(*_: Any) -> None:
        steps.append(host_math.counts())
        host_math.record.clear()

    register_optimizer_step_post_hook(count)
    many_runs.main(runs, results, environment)
    counted = {"steps": steps, "lost": host_math.lost(), "touched": host_math.touched()}
    results.with_name(f"rank-{os.environ['RANK']}.json").write_text(json.dumps(counted))
