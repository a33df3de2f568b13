"""What the processes of one distributed training tell each other about a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_NAME_BYTES = 200


@dataclass(frozen=True)
class Trouble:
    """What was not finite in one process, and the first module or parameter in which it was; '' when not known."""

    rank: int
    loss: bool
    gradients: bool
    module: str = ""
    parameter: str = ""


def world() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    return torch.distributed.get_rank() if world() > 1 else 0


def troubles(
    loss: bool, gradients: bool, module: Callable[[], str], parameter: Callable[[], str], device: torch.device
) -> list[Trouble]:
    """The processes in which the loss or a gradient is not finite; all of them must ask, in the same step.

    Names are asked for, and exchanged, only when something is wrong anywhere. `device` is one that the processes
    can exchange tensors on.
    """
    if world() == 1:
        own = loss or gradients
        return [Trouble(0, loss, gradients, module() if loss else "", parameter() if gradients else "")] if own else []
    flags = torch.zeros(world(), 2, device=device)
    flags[rank()] = torch.tensor([float(loss), float(gradients)])
    torch.distributed.all_reduce(flags)
    bad = [(bool(a), bool(b)) for a, b in flags.tolist()]
    if not any(map(any, bad)):
        return []
    own_names = torch.stack([_packed(module() if loss else ""), _packed(parameter() if gradients else "")])
    names = [torch.empty_like(own_names, device=device) for _ in bad]
    torch.distributed.all_gather(names, own_names.to(device))
    return [
        Trouble(place, *found, *(_unpacked(row) for row in names[place].cpu()))
        for place, found in enumerate(bad)
        if any(found)
    ]


def _packed(name: str) -> Tensor:
    data = name.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _unpacked(row: Tensor) -> str:
    return bytes(row.tolist()).rstrip(b"\0").decode(errors="ignore")
