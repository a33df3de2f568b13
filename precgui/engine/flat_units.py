"""Activation functions whose inputs lie where they are flat: a tanh or sigmoid at its ends, a ReLU below zero."""

from __future__ import annotations

import torch
from torch import Tensor

from precgui.engine.watcher import OperationCall, Watcher

_FLAT = 0.06  # derivative, of the largest one of the function
_LEAST_SHARE = 0.5
_FUNCTIONS = ("tanh", "sigmoid", "relu")


class FlatUnits(Watcher):
    """Told of each operation of the forward pass of a model: the share of the results that hardly depend on their
    operand, for each module and function, in the last step that was seen."""

    fact = "flat_units"

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, str], list[tuple[Tensor, int]]] = {}

    def begin(self, step: int) -> None:
        super().begin(step)
        self._seen = {}

    def observe(self, call: OperationCall) -> None:
        name, out, module = call.base, call.out, call.module
        if module is None or not torch.is_grad_enabled():
            return
        if name not in _FUNCTIONS or not isinstance(out, Tensor) or not out.numel():
            return
        values = out.detach()
        if name == "relu":
            flat = values == 0
        else:
            ends = values.float() if name == "tanh" else 2 * values.float() - 1
            flat = ends.square() > 1 - _FLAT
        self._seen.setdefault((module, name), []).append((flat.sum(), values.numel()))

    def end(self) -> None:
        seen, self._seen = self._seen, {}
        shares = {
            key: sum(float(flat) for flat, _ in calls) / sum(count for _, count in calls) for key, calls in seen.items()
        }
        if not shares:
            return
        flat_first = sorted((key for key in shares if shares[key] > _LEAST_SHARE), key=lambda key: -shares[key])
        self._rows = {
            (module, function): {
                "module": module, "function": function, "share": shares[module, function], "step": self._step,
                "of": sum(1 for _, other in shares if other == function),
            }
            for module, function in flat_first[: self.most_rows]
        }  # fmt: skip
