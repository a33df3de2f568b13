"""Ratios of probabilities whose old logarithms are held in so few digits that the ratios are mostly rounding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from precgui.engine.device import in_fp64
from precgui.engine.dtype_names import DIGITS, dtype_name
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.watcher import OperationCall, Watcher

_DIGITS = {dtype_name(dtype): digits for dtype, digits in DIGITS.items()}
_FEWEST, _MOST = 16, 1 << 20  # log-probabilities
_VARIED = 3  # different ones
_OFF = 0.25  # rms of the rounding error, 1 / sqrt(12) of the step: so far is the logarithm of a ratio off
_NEAR = 4.0  # steps: median of the differences, else they are no ratios near 1
_KEEPING = {"neg", "clamp", "clamp_min", "clamp_max", "unsqueeze", "nan_to_num"}


class RoundedRatios(Watcher):
    """Told of each operation outside of the optimizer; follows differences of what learns and what does not to `exp`.

    The format of the numbers that do not learn is that of their digits, in whatever format they are held.
    """

    fact = "cancellation"

    def __init__(self) -> None:
        super().__init__()
        self._differences = TensorMarks[dict[str, Any]]()

    @torch.no_grad()
    def observe(self, call: OperationCall) -> None:
        name, out, first = call.base, call.out, call.args[0]
        if not isinstance(first, Tensor) or not isinstance(out, Tensor):
            return
        if name in ("sub", "rsub"):
            second = call.second
            if (
                isinstance(second, Tensor)
                and second.shape == first.shape
                and first.requires_grad != second.requires_grad
            ):
                old = second if first.requires_grad else first
                if (row := _rounded(old.detach(), out.detach())) is not None:
                    self._differences[out] = row | {"step": self._step, "module": call.module, "use": "rounded_ratio"}
        elif (known := self._differences.get(first)) is not None:
            if name == "exp":
                key = "rounded_ratio", call.module
                if self._has_room(key):
                    self._rows[key] = known | {"count": self._steps_with(key)}
            elif name in _KEEPING or call.keeps_numbers:
                self._differences[out] = known


def _rounded(old: Tensor, difference: Tensor) -> dict[str, Any] | None:
    """The format of log-probabilities, and how far rounding to it puts ratios off; None where that is not far."""
    if not _FEWEST <= old.numel() <= _MOST or not old.is_floating_point() or old.is_meta:
        return None
    held = _format_of(old)
    if not held:
        return None
    numbers, apart = in_fp64(old).abs(), in_fp64(difference).abs()
    step = 2.0 ** (numbers.clamp_min(1e-30).log2().floor() + 1 - _DIGITS[held])
    off = float((step.square().mean() / 12).sqrt())
    if not off > _OFF or not bool((apart.median() > 0) & (apart.median() < _NEAR * step.median())):
        return None
    return {"format": held, "share": off, "elements": old.numel(), "largest": float(numbers.max())}


def _format_of(old: Tensor) -> str:
    held = dtype_name(old.dtype)
    if held in _DIGITS:
        return held
    if len(old.unique()) < _VARIED or not bool(old.isfinite().all()):
        return ""
    short = (each for each in DIGITS if bool((old.to(each).to(old.dtype) == old).all()))
    return next((dtype_name(each) for each in short), "")
