"""Targets beside the outputs that a loss compares with them: what the last function cannot reach, and other scales."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from precgui.engine.device import in_fp64
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import graph_task, operation_name

_BOUNDS = {  # of the results of a function
    "sigmoid": (0.0, 1.0), "sigmoid_": (0.0, 1.0), "tanh": (-1.0, 1.0), "tanh_": (-1.0, 1.0), "_softmax": (0.0, 1.0),
    "relu": (0.0, math.inf), "relu_": (0.0, math.inf), "softplus": (0.0, math.inf),
}  # fmt: skip
_KEEPING = {"_to_copy", "clone"}  # as each view
_MOST_ROWS, _MOST_OF_A_STEP = 24, 2
_NUMBERS = 1 << 16  # that are looked at


class TargetRanges:
    """Told of each operation outside of the optimizer, and of each loss of fixed targets with its operands."""

    def __init__(self) -> None:
        self._step, self._count = 0, 0
        self._made = TensorMarks[tuple[str, str | None]]()  # the function whose results these are, and its module
        self._rows: list[dict[str, Any]] = []

    def begin(self, step: int) -> None:
        self._step, self._count = step, 0
        self._made.clear()

    def observe(self, func: Any, args: Any, out: Any, module: str | None) -> None:
        if graph_task() != -1 or not args or not isinstance(out, Tensor):
            return
        name = operation_name(func)
        if name in _BOUNDS:
            self._made[out] = name.rstrip("_").lstrip("_"), module
        elif (func.is_view or name in _KEEPING) and (made := self._made.get(args[0])) is not None:
            self._made[out] = made

    def compared(self, kind: str, outputs: Tensor, target: Tensor) -> None:
        """A loss of this kind compares outputs that learn with a target of the same shape."""
        is_odd = outputs.shape != target.shape or not target.numel() or not outputs.is_floating_point()
        if self._count >= _MOST_OF_A_STEP or len(self._rows) >= _MOST_ROWS or is_odd or target.is_complex():
            return
        self._count += 1
        function, module = self._made.get(outputs) or ("", None)
        self._rows.append(
            {"step": self._step, "kind": kind, "function": function, "module": module}
            | _described(outputs.detach(), target.detach(), function)
        )

    def facts(self) -> list[dict[str, Any]]:
        """A row for each loss, see `target_ranges` in docs/run-file.md."""
        return self._rows


def _described(outputs: Tensor, target: Tensor, function: str) -> dict[str, float]:
    given, aim = (in_fp64(each.reshape(-1)[:_NUMBERS]) for each in (outputs, target))
    low, high = next((ends for name, ends in _BOUNDS.items() if name.strip("_") == function), (-math.inf, math.inf))
    beyond = (aim - aim.clamp(low, high)).abs()
    variance = (aim - aim.mean()).square().mean()
    numbers = (
        aim.amin(), aim.amax(), aim.mean(), variance.sqrt(),
        given.mean(), (given - given.mean()).square().mean().sqrt(),
        (beyond > 0).double().mean(), beyond.square().mean() / variance.clamp_min(1e-300),
    )  # fmt: skip
    names = ("low", "high", "mean", "spread", "output_mean", "output_spread", "beyond", "lost")
    return dict(zip(names, torch.stack(numbers).tolist(), strict=True)) | {"numbers": target.numel()}
