"""Runs on the pretended device and on the CPU, side by side, in a process of `on_pretended_gpu`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from precgui import config
from precgui.engine import precisions
from precgui.engine.errors import EngineError
from precgui.engine.train import train
from precgui.events import Event, Incident, RunEnded, RunStarted, StepDone, TensorStats
from precgui.job import Job
from tests.pretended import host_math


def print_run(
    recipe: str, *settings: str, steps: int = 3, to_the_end: bool = False, device: str = "cuda:0",
    of_gpu: Sequence[str] = (),
) -> None:  # fmt: skip
    """Print one line of JSON: losses on both devices, and counts of each step on the pretended one; `refused` has the
    sentence of each device on which the config is refused.

    A run that does not go `to_the_end` stops after its last step, without a validation. The budget is so large that
    which tensors are measured in a step does not depend on the time that the others took. `of_gpu` are settings that
    the run on the CPU has not.
    """
    common = [*settings, f"train.max_steps={steps}", "data.batch_size=16", "record.budget=100"]
    places = (device, "cpu")
    result: dict[str, Any] = {name: {place: [] for place in places} for name in ("losses", "incidents", "gradients")}
    result |= {"steps": [], "refused": {}}
    updates = [0]

    def count(*_: Any) -> None:
        updates[0] += 1

    host_math.elsewhere.clear()
    counter = register_optimizer_step_post_hook(count)
    for place in places:
        losses: list[float] = result["losses"][place]
        updates[0] = 0

        def emit(event: Event, place: str = place) -> None:
            if isinstance(event, StepDone):
                result["losses"][place].append(event.loss)
            if isinstance(event, Incident) and event.kind.startswith("nonfinite"):
                result["incidents"][place].append([event.step, event.kind, event.module])
            if isinstance(event, TensorStats) and event.kind == "gradient":
                result["gradients"][place].append(event.step)
            if place != "cpu" and isinstance(event, StepDone):
                ahead = updates[0] - event.step  # updates that were queued before the host waited for this step
                graphs = host_math.record.operations["graph"]
                row = {**host_math.counts(), "skipped": event.skipped, "ahead": ahead, "graphs": graphs}
                result["steps"].append(row)
            if isinstance(event, (StepDone, RunStarted)):
                host_math.record.clear()

        def stopped(losses: list[float] = losses) -> bool:
            return len(losses) == steps and not to_the_end

        own = () if place == "cpu" else of_gpu
        try:
            train(config.load(recipe, [*common, *own, f"device={place}"]), emit, stopped)
        except (config.ConfigError, EngineError) as error:
            result["refused"][place] = str(error)
    counter.remove()
    print("ROW " + json.dumps({**result, "lost": host_math.lost(), "elsewhere": host_math.elsewhere}))  # noqa: T201


def print_native_fp8(*settings: str) -> None:
    """Print one line of JSON: how far a linear layer with FP8 products is from its emulation on the CPU.

    These are relative differences of the result, the gradient of the input, and those of weight and bias.
    """
    found: list[list[torch.Tensor]] = []
    notes: list[str] = []
    for device in ("cuda:0", "cpu"):
        torch.manual_seed(1)
        layer, x = nn.Sequential(nn.Linear(48, 64)), torch.randn(24, 48)
        precision = precisions.make(config.load("gpt-quick", ["precision=fp8", *settings]), torch.device(device))
        model = precision.convert(layer.to(device))
        x = x.to(device).requires_grad_()
        with precision.forward_context():
            result = model(x)
        result.square().mean().backward()
        found.append([each.detach().cpu() for each in (result, x.grad, *(p.grad for p in model.parameters()))])
        notes += precision.notes[:1]
    errors = [float((own - other).norm() / other.norm()) for own, other in zip(*found, strict=True)]
    print("ROW " + json.dumps({"errors": errors, "note": notes[0]}))  # noqa: T201


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
