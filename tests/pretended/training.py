"""Runs on the pretended device and on the CPU, side by side, in a process of `on_pretended_gpu`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from precgui import config
from precgui.events import Event, RunEnded, RunStarted, StepDone
from precgui.job import Job
from tests.devices.runs import fp8_errors, run_on
from tests.pretended import host_math


def print_run(
    recipe: str, *settings: str, steps: int = 3, to_the_end: bool = False, device: str = "cuda:0",
    of_gpu: Sequence[str] = (),
) -> None:  # fmt: skip
    """Print one line of JSON: losses on both devices, and counts of each step on the pretended one; `refused` has the
    sentence of each device on which the config is refused. `of_gpu` are settings that the run on the CPU has not.
    """
    result: dict[str, Any] = {name: {} for name in ("losses", "incidents", "gradients", "refused")} | {"steps": []}
    updates = [0]

    def count(*_: Any) -> None:
        updates[0] += 1

    def seen(event: Event) -> None:
        if isinstance(event, StepDone):
            ahead = updates[0] - event.step  # updates that were queued before the host waited for this step
            graphs = host_math.record.operations["graph"]
            result["steps"].append({**host_math.counts(), "skipped": event.skipped, "ahead": ahead, "graphs": graphs})
        if isinstance(event, (StepDone, RunStarted)):
            host_math.record.clear()

    host_math.elsewhere.clear()
    counter = register_optimizer_step_post_hook(count)
    own = run_on(device, recipe, *settings, *of_gpu, steps=steps, to_the_end=to_the_end, seen=seen)
    counter.remove()
    for place, ran in ((device, own), ("cpu", run_on("cpu", recipe, *settings, steps=steps, to_the_end=to_the_end))):
        result["losses"][place], result["gradients"][place] = ran.losses, ran.gradients
        result["incidents"][place] = ran.incidents
        result["refused"] |= {place: ran.refused} if ran.refused else {}
    print("ROW " + json.dumps({**result, "lost": host_math.lost(), "elsewhere": host_math.elsewhere}))  # noqa: T201


def print_native_fp8(*settings: str) -> None:
    """Print one line of JSON: `fp8_errors` of the pretended device."""
    errors, note = fp8_errors("cuda:0", *settings)
    print("ROW " + json.dumps({"errors": errors, "note": note}))  # noqa: T201


def count_operations(folder: str) -> int:
    """The operations of the run that `print_faulty_run` disturbs."""
    host_math.fault.plan(-1, loses_device=False)
    _job(Path(folder) / "whole.h5")
    return host_math.fault.operations


def print_faulty_run(folder: str, at: int, *, loses_device: bool) -> None:
    """Print one line of JSON on a run of two steps in which an operation finds no memory, or loses the device."""
    path = Path(folder) / f"{at}-{loses_device}.h5"
    host_math.fault.plan(at, loses_device=loses_device)
    ended = _job(path)
    host_math.fault.plan(-1, loses_device=False)
    row = {"status": ended.status, "message": ended.message, "file": str(path)}
    print("ROW " + json.dumps(row))  # noqa: T201


def _job(path: Path) -> RunEnded:
    settings = ["device=cuda:0", "train.max_steps=2", "data.batch_size=16", "record.budget=100"]
    return Job(config.load("digits-quick", settings), path).run()
