"""Ranks that train one run after another, with torchrun's variables.

Importing torch takes longer than the runs, so tests share the processes, which are forks of one that has imported it
where there are such (`tests.warm_children`).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def main(runs: Path, results: Path, environment: Mapping[str, str]) -> None:
    """A rank, which `environment` describes."""
    os.environ.update(environment)
    from precgui.checkpoint_files import checkpoint_path
    from precgui.config import build
    from precgui.engine.checkpoint.resume import Resumption
    from precgui.engine.parallel.rank_run import train_rank

    told: list[dict[str, Any]] = []
    port = int(os.environ["MASTER_PORT"])
    for place, tree in enumerate(json.loads(runs.read_text())):
        os.environ["MASTER_PORT"] = str(port + place)  # each run has a store of its own
        events: list[Any] = []
        error = ""
        try:
            own = tree.pop("of_other_ranks", tree)
            cut, file, step = tree.pop("cut", 0), tree.pop("run_file", ""), tree.pop("resumed_after", 0)
            chosen = build(own if os.environ["RANK"] != "0" else tree)
            resumed = Resumption.read(checkpoint_path(Path(file), step)) if step else None
            train_rank(
                chosen, events.append, _after(events, cut), run_id="r1", run_file=Path(file) if file else None,
                resumed=resumed,
            )  # fmt: skip
        except Exception as raised:  # noqa: BLE001 - told by the test
            error = f"{type(raised).__name__}: {raised}"
        told.append({"error": error, "events": [[type(e).__name__, _plain(e)] for e in events]})
        if os.environ["RANK"] == "0":
            results.write_text(json.dumps(told))
        elif error:
            sys.stderr.write(f"rank {os.environ['RANK']}: {error}\n")


def _after(events: Sequence[Any], step: int) -> Callable[[], bool]:
    """Lets ranks agree to stop at a step, by the one before it; never for step 0."""
    return lambda: (
        bool(step) and any(getattr(e, "step", 0) >= step - 1 and type(e).__name__ == "StepDone" for e in events)
    )


def _plain(event: Any) -> dict[str, Any]:
    names = [name for name in event.__slots__ if name not in ("stats", "exponents", "modules", "parameters")]
    return {name: getattr(event, name) for name in names}


def run_all(
    runs: Sequence[Mapping[str, Any]], ranks: int, folder: Path, port: int, rank_main: Callable[..., None] = main
) -> list[dict[str, Any]]:
    """The results of the first rank: of each run its error, and its events by name."""
    (folder / "runs.json").write_text(json.dumps(runs))
    results = folder / "results.json"
    environment = {
        "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    started = [
        context.Process(  # type: ignore[attr-defined]
            target=rank_main,
            args=(folder / "runs.json", results, {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}),
        )
        for rank in range(ranks)
    ]
    for process in started:
        process.start()
    try:
        for process in started:
            process.join(300)
    finally:
        for process in started:
            process.kill()
            process.join()
    loaded: list[dict[str, Any]] = json.loads(results.read_text())
    return loaded
