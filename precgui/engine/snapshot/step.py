"""A step as it can be made again: its batches, the weights and random numbers before it, the loss scale."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from precgui.engine import device as devices
from precgui.engine.casting import tensors_in
from precgui.engine.errors import EngineError
from precgui.engine.snapshot.file import pack_tree, read_tensors, unpack_tree, write_tensors
from precgui.engine.tasks.base import Batch
from precgui.sentences import L_, Sentence, message_of

_SCHEMA = 1
_WEIGHTS, _BATCH, _RANDOM, _DEVICE_RANDOM = "weights.", "batch.", "random", "random.device"


@dataclass(frozen=True)
class StepSnapshot:
    """The state before a step, counted from 1. `batch_count` seeds stochastic rounding.

    `random` and `device_random` are the states of torch's generators on the CPU and, where there is one, on the device.
    """

    step: int
    scale: float
    batch_count: int
    batches: Sequence[Batch]
    weights: Mapping[str, Tensor]
    random: Tensor
    device_random: Tensor | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        tensors = [*self.weights.values(), *tensors_in(self.batches)]
        return sum(tensor.numel() * tensor.dtype.itemsize for tensor in tensors)

    def write(self, path: Path) -> None:
        """Write the snapshot as a safetensors file.

        Raises OSError, and TypeError for batches that hold other things than tensors and plain values.
        """
        tensors: dict[str, Tensor] = {f"{_WEIGHTS}{name}": value for name, value in self.weights.items()}
        tensors[_RANDOM] = self.random
        if self.device_random is not None:
            tensors[_DEVICE_RANDOM] = self.device_random
        tree = pack_tree(list(self.batches), tensors, _BATCH, L_("its batches hold a {type}"))
        document = {
            "snapshot": _SCHEMA, "step": self.step, "scale": self.scale, "batch_count": self.batch_count,
            "batches": tree,
        }  # fmt: skip
        write_tensors(path, tensors, json.dumps(document))


def read_snapshot(path: Path) -> StepSnapshot:
    """The snapshot in a file. Raises EngineError for a file that is none; nothing in it is executed."""
    tensors, text = read_tensors(path)
    try:
        document = json.loads(text)
        if document["snapshot"] != _SCHEMA:
            raise ValueError(
                Sentence(
                    "it has the layout {layout}, known is {known}", layout=str(document["snapshot"]), known=_SCHEMA
                )
            )
        weights = {name.removeprefix(_WEIGHTS): t for name, t in tensors.items() if name.startswith(_WEIGHTS)}
        batches = [_batch(unpack_tree(tree, tensors)) for tree in document["batches"]["list"]]
        return StepSnapshot(
            int(document["step"]), float(document["scale"]), int(document["batch_count"]), batches, weights,
            tensors[_RANDOM], tensors.get(_DEVICE_RANDOM),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise EngineError(
            Sentence("{path} is no snapshot of precgui, or is damaged: {error}", path=path, error=message_of(error))
        ) from None


def _batch(value: Any) -> Batch:
    inputs, targets = value
    if not isinstance(targets, Tensor | list | tuple | dict):
        raise TypeError(L_("its batches have no targets"))
    return inputs, cast(Tensor, targets)


def random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """The states of torch's generators on the CPU and on an accelerator."""
    return torch.get_rng_state(), devices.random_state(device)


def set_random_state(snapshot: StepSnapshot, device: torch.device) -> None:
    """Set torch's generators as they were before the step. Raises EngineError where the states do not fit."""
    try:
        torch.set_rng_state(snapshot.random)
        if snapshot.device_random is not None and device.type != "cpu":
            devices.set_random_state(device, snapshot.device_random)
    except (RuntimeError, TypeError) as error:
        raise EngineError(
            Sentence("the snapshot holds no state of torch's generators: {error}", error=message_of(error))
        ) from None
