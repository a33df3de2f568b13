"""Builds everything that a run needs before its first step: device, switches, task, model, optimizer, facts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from precgui.config import RunConfig
from precgui.engine import backend_flags, execution, precisions, tasks
from precgui.engine import device as devices
from precgui.engine.adapters.adapt import add_adapters
from precgui.engine.certificate import certificate
from precgui.engine.precisions.base import Precision
from precgui.engine.precisions.conversion import Conversion
from precgui.engine.run_parts import RunParts
from precgui.engine.tasks.base import Task
from precgui.engine.tasks.download import Tell
from precgui.engine.update import make_average, make_optimizer


def build_run(
    config: RunConfig,
    tell: Tell,
    shard: Callable[[nn.Module], None] | None = None,
    fill_base: Callable[[nn.Module], None] | None = None,
) -> RunParts:
    """Set torch's switches for this run and build its parts. `tell` receives a sentence about each long wait.

    `shard` may exchange the parameters of the converted model, before the optimizer takes them. `fill_base` puts the
    weights of its base into the model of a run with adapters. Raises EngineError for faults that the user can correct.
    """
    threads = devices.pin_threads(config.threads)
    device = devices.choose(config.device)
    devices.make_current(device)
    if config.train.deterministic:
        backend_flags.set_deterministic(device)
    precision = precisions.make(config, device)
    precision.prepare()
    torch.manual_seed(config.seed)
    task = tasks.make(config, tell)
    # Every precision starts from the same FP32 weights: built first, converted after.
    model = start_model(config, task, device, precision, fill_base)
    weights_hash, state_names = _hash(model), frozenset(model.state_dict())
    conversion = Conversion(model) if config.precision_schedule else None
    model = execution.prepare_model(precision.convert(model), config.train, precision)
    if conversion is not None:
        conversion.converted()
    if shard is not None:
        shard(model)
    weights = precision.weights(model)
    facts = _facts(device, threads, model, weights_hash, precision)
    facts |= {"metric": vars(task.metric), "data": dict(task.facts)}
    average = make_average(config, model, weights)
    return RunParts(
        device, task, precision, model, weights, make_optimizer(config, weights), average, facts, conversion,
        state_names,
    )  # fmt: skip


def start_model(
    config: RunConfig, task: Task, device: torch.device, precision: Precision,
    fill_base: Callable[[nn.Module], None] | None,
) -> nn.Module:  # fmt: skip
    """The model in FP32 before its first step: a run with adapters first gets its base."""
    model = task.model()
    with_adapters = config.adapter.kind != "none"
    if with_adapters and fill_base is not None:
        fill_base(model)
    if config.train.rounding_twin:
        move_by_one_ulp(model, config.seed)
    if with_adapters:
        torch.manual_seed(config.seed)
        precision.notes += add_adapters(model, config, device)
    return model


@torch.no_grad()
def move_by_one_ulp(model: nn.Module, seed: int) -> None:
    """Move each parameter to one of its two neighbours in its format, or leave it, at random with equal chances."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        way = torch.randint(-1, 2, parameter.shape, generator=generator).to(parameter.device)
        towards = torch.where(way > 0, torch.inf, -torch.inf).to(parameter.dtype)
        parameter.copy_(torch.where(way == 0, parameter, torch.nextafter(parameter, towards)))


def _hash(model: nn.Module) -> str:
    """SHA-256 of the parameters as FP32, as evidence that runs began alike."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().float().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _facts(
    device: torch.device, threads: int, model: nn.Module, weights_hash: str, precision: Precision
) -> dict[str, Any]:
    return {
        "device": str(device),
        "device_name": devices.name(device),
        "threads": threads,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "parameters": sum(p.numel() for p in model.parameters()),
        "initial_weights_sha256": weights_hash,
        "loss_scaling": precision.scaling_mode,
        "notes": list(precision.notes),
        "kept_in_fp32": list(precision.fp32_modules),
        "certificate": certificate(device),
    }
