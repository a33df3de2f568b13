"""Targets beside the outputs that a loss compares with them: what the last function cannot reach, and other scales."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from precgui.engine.device import in_fp64
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.watcher import OperationCall, Watcher

_BOUNDS = {  # of the results of a function
    "sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0), "_softmax": (0.0, 1.0), "relu": (0.0, math.inf),
    "softplus": (0.0, math.inf),
}  # fmt: skip
_MOST_OF_A_STEP = 2
_NUMBERS = 1 << 16  # that are looked at


class TargetRanges(Watcher):
    """Told of each operation outside of the optimizer, and of each loss of fixed targets, which makes a row."""

    fact, most_rows = "target_ranges", 24

    def __init__(self) -> None:
        super().__init__()
        self._count = 0  # in this step
        self._made = TensorMarks[tuple[str, str | None]]()  # the function whose results these are, and its module

    def begin(self, step: int) -> None:
        super().begin(step)
        self._count = 0

    def observe(self, call: OperationCall) -> None:
        if not isinstance(call.out, Tensor):
            return
        if call.base in _BOUNDS:
            self._made[call.out] = call.name.strip("_"), call.module
        elif call.keeps_numbers and (made := self._made.get(call.args[0])) is not None:
            self._made[call.out] = made

    def compared(self, kind: str, outputs: Tensor, target: Tensor) -> None:
        """A loss of this kind compares outputs that learn with a target of the same shape."""
        is_odd = outputs.shape != target.shape or not target.numel() or not outputs.is_floating_point()
        key = self._step, self._count
        if self._count >= _MOST_OF_A_STEP or not self._has_room(key) or is_odd or target.is_complex():
            return
        self._count += 1
        function, module = self._made.get(outputs) or ("", None)
        row = {"step": self._step, "kind": kind, "function": function, "module": module}
        self._rows[key] = row | _described(outputs.detach(), target.detach(), function)


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
