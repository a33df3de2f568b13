"""All that a step leaves behind for the next one, as a tree of plain values and tensors; and put back."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from precgui.engine.adapters.adapt import LoraLinear
from precgui.engine.adapters.weights_file import tensors_of
from precgui.engine.hook import TrainingRun
from precgui.engine.run_parts import RunParts
from precgui.engine.telemetry.parameters import parameters_of
from precgui.sentences import L_, Sentence

_FIRST_FIT = 1 << 20  # elements of a frozen tensor that enter its digest, from its beginning and from its end


def training_state(run: TrainingRun) -> dict[str, Any]:
    """Weights, buffers, optimizer, average, precision and hooks; random numbers are not in it."""
    parts = run.parts
    _gather_nothing(parts.model)
    return {
        "precision": parts.precision.config.precision,
        "hooks": {type(hook).__name__: hook.state() for hook in run.hooks.hooks},
        "weights": {name: own_part(tensor) for name, tensor in learned(parts.model)},
        "updated": [own_part(weight.detach()) for weight in _copies(parts)],
        "optimizer": _optimizer_state(parts.optimizer),
        "average": list(parts.average.values) if parts.average is not None else [],
        "arithmetic": parts.precision.state(),
        "names": _names(parts),
    }


def _names(parts: RunParts) -> dict[str, Any]:
    """How the tensors are found as a `state_dict()` of the task's own model; for exports, not for going on.

    `state`: its names and those of the weights here. `frozen`: names of which nothing is kept. `full`: the shapes of
    those of which each process has a part.
    """
    model = parts.model
    known = {name for name, _ in learned(model)}
    ids = {id(value): name for name, value in itertools.chain(model.named_parameters(), model.named_buffers())}
    state = {name: ids.get(id(value), name) for name, value in tensors_of(model).items() if name in parts.state_names}
    trained = [name for name, _ in parts.trained()]
    own = {id(parameter) for parameter in model.parameters()}
    copied = zip(trained, parts.weights, strict=False)
    adapted = [module for module in model.modules() if isinstance(module, LoraLinear)]
    return {
        "state": {name: kept for name, kept in state.items() if kept in known},
        "frozen": [name for name, kept in state.items() if kept not in known],
        "trained": trained,
        "copies": [name for name, weight in copied if id(weight) not in own and weight.numel()],
        "full": {name: list(value.shape) for name, value in learned(model) if own_part(value) is not value},
        "lora_factor": adapted[0].factor if adapted else None,
    }


@torch.no_grad()
def restore(run: TrainingRun, state: Mapping[str, Any]) -> None:
    """Put a state back into a run that has just been built from the same config.

    Raises ValueError, TypeError, KeyError, AttributeError or RuntimeError where it does not fit.
    """
    for hook in run.hooks.hooks:  # a schedule changes the precision, which comes before all else
        hook.load_state(state["hooks"][type(hook).__name__])
    parts = run.parts
    if parts.precision.config.precision != state["precision"]:
        raise ValueError(L_("it is of another precision"))
    own = dict(learned(parts.model))
    if own.keys() != state["weights"].keys():
        raise ValueError(L_("it has other weights than the model"))
    for name, tensor in own.items():
        _fill(tensor, state["weights"][name])
    for weight, value in zip(_copies(parts), state["updated"], strict=True):
        _fill(weight, value)
    averages = parts.average.values if parts.average is not None else []
    for mean, value in zip(averages, state["average"], strict=True):
        _fill(mean, value)
    _restore_optimizer(parts.optimizer, state["optimizer"])
    parts.precision.load_state(state["arithmetic"])


def learned(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Trained parameters and all buffers, also those that a `state_dict()` leaves out, but for those of a held base."""
    held = _held(model)
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if not (isinstance(tensor, nn.Parameter) and not tensor.requires_grad) and not name.startswith(held):
            yield name, tensor.detach()


def frozen_digest(model: nn.Module) -> str:
    """A SHA-256 of what is not learned, of large tensors of their ends; the same for every build of the model."""
    known, digest = {name for name, _ in learned(model)}, hashlib.sha256()
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if name not in known and type(tensor) in (Tensor, nn.Parameter):
            flat = tensor.detach().reshape(-1)
            for part in (flat[:_FIRST_FIT], flat[-_FIRST_FIT:]):
                digest.update(name.encode() + part.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _held(model: nn.Module) -> tuple[str, ...]:
    return tuple(f"{name}.base." for name, module in model.named_modules() if isinstance(module, LoraLinear))


def _copies(parts: RunParts) -> list[Tensor]:
    """The copies that the optimizer updates beside the model's own weights, where it is kept between steps."""
    own = {id(parameter) for parameter in parts.model.parameters()}
    return [weight for weight in parts.weights if id(weight) not in own and weight.numel()]


def own_part(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that this process has; other tensors as they are."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _gather_nothing(model: nn.Module) -> None:
    """Let shards of weights be what they are between steps; an evaluation leaves some gathered."""
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()  # type: ignore[operator]


def _fill(tensor: Tensor, value: Tensor) -> None:
    tensor = own_part(tensor)
    if tensor.shape != value.shape or tensor.dtype != value.dtype:
        raise ValueError(
            Sentence(
                "it has a tensor of {dtype}, {shape} where the run has {own_dtype}",
                dtype=str(value.dtype),
                shape=list(value.shape),
                own_dtype=str(tensor.dtype),
            )
        )
    tensor.copy_(value)


def _optimizer_state(optimizer: Optimizer) -> list[dict[str, Any]]:
    """By parameter; of each tensor its order in memory, and whether it stays on the CPU (AdamW's count of steps)."""
    parameters = parameters_of(optimizer)
    return [
        {
            key: _kept(value) if isinstance(value, Tensor) else value
            for key, value in optimizer.state.get(parameter, {}).items()
        }
        for parameter in parameters
    ]


def _kept(value: Tensor) -> list[Any]:
    own = own_part(value)
    return [own, list(own.stride()), own.is_cpu, own is not value]


def _restore_optimizer(optimizer: Optimizer, states: list[dict[str, Any]]) -> None:
    """Past `load_state_dict`, which changes types and loses the order in memory."""
    parameters = parameters_of(optimizer)
    for parameter, state in zip(parameters, states, strict=True):
        if state:
            optimizer.state[parameter] = {
                key: _restored(value, parameter) if isinstance(value, list) else value for key, value in state.items()
            }


def _restored(kept: list[Any], parameter: Tensor) -> Tensor:
    value, strides, on_cpu = kept[:3]
    placed = _placed(value, strides, on_cpu, parameter.device)
    if not any(kept[3:]):
        return placed
    from torch.distributed.tensor import DTensor

    assert isinstance(parameter, DTensor)
    return DTensor.from_local(
        placed, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape,
        stride=parameter.stride(),
    )  # fmt: skip


def _placed(value: Tensor, strides: list[int], on_cpu: bool, device: torch.device) -> Tensor:
    extent = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, strides, strict=True))
    if extent != value.numel() or min(strides, default=1) < 1:
        strides = list(value.stride())
    placed = torch.empty_strided(value.shape, strides, dtype=value.dtype, device="cpu" if on_cpu else device)
    return placed.copy_(value)
