"""Runs on the pretended device and on the CPU, side by side, in a process of `on_pretended_gpu`."""

from __future__ import annotations

import json
from typing import Any

from precgui import config
from precgui.engine.train import train
from precgui.events import Event, RunStarted, StepDone
from tests.pretended import host_math


def print_run(recipe: str, *settings: str, steps: int = 3, to_the_end: bool = False, device: str = "cuda:0") -> None:
    """Print one line of JSON: losses on both devices, and counts of each step on the pretended one.

    A run that does not go `to_the_end` stops after its last step, without a validation. The budget is so large that
    which tensors are measured in a step does not depend on the time that the others took.
    """
    common = [*settings, f"train.max_steps={steps}", "data.batch_size=16", "record.budget=100"]
    result: dict[str, Any] = {"losses": {}, "steps": []}
    for place in (device, "cpu"):
        losses: list[float] = []

        def emit(event: Event, place: str = place, losses: list[float] = losses) -> None:
            if isinstance(event, StepDone):
                losses.append(event.loss)
            if place != "cpu" and isinstance(event, StepDone):
                result["steps"].append({**host_math.counts(), "skipped": event.skipped})
            if isinstance(event, (StepDone, RunStarted)):
                host_math.record.clear()

        def stopped(losses: list[float] = losses) -> bool:
            return len(losses) == steps and not to_the_end

        train(config.load(recipe, [*common, f"device={place}"]), emit, stopped)
        result["losses"][place] = losses
    print("ROW " + json.dumps({**result, "lost": host_math.lost()}))  # noqa: T201
