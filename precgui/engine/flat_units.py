"""Activation functions whose inputs lie where they are flat: a tanh or sigmoid at its ends, a ReLU below zero."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from precgui.engine.torch_private import graph_task, operation_name

_FLAT = 0.06  # derivative, of the largest one of the function
_MOST, _LEAST_SHARE = 8, 0.5
_FUNCTIONS = ("tanh", "sigmoid", "relu")


class FlatUnits:
    """Told of each operation of the forward pass of a model: the share of the results that hardly depend on their
    operand, for each module and function, in the last step that was seen."""

    def __init__(self) -> None:
        self._step = 0
        self._seen: dict[tuple[str, str], list[tuple[Tensor, int]]] = {}
        self._rows: list[dict[str, Any]] = []

    def begin(self, step: int) -> None:
        self._step, self._seen = step, {}

    def observe(self, func: Any, out: Any, module: str | None) -> None:
        if module is None or graph_task() != -1 or not torch.is_grad_enabled():
            return
        name = operation_name(func).removesuffix("_")
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
        """The step is over."""
        seen, self._seen = self._seen, {}
        shares = {
            key: sum(float(flat) for flat, _ in calls) / sum(count for _, count in calls) for key, calls in seen.items()
        }
        if not shares:
            return
        chosen = sorted((key for key in shares if shares[key] > _LEAST_SHARE), key=lambda key: -shares[key])[:_MOST]
        self._rows = [
            {"module": module, "function": function, "share": shares[module, function], "step": self._step,
             "of": sum(1 for _, other in shares if other == function)}
            for module, function in chosen
        ]  # fmt: skip

    def facts(self) -> list[dict[str, Any]]:
        """A row for each module and function most of whose results are flat, see `flat_units` in docs/run-file.md."""
        return self._rows
