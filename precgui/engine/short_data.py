"""Data that came into a step with fewer digits than the differences of a column have: rounded before the loop."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.device import in_fp64
from precgui.engine.telemetry.readable import address_of, readable
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import as_list
from precgui.engine.watcher import OperationCall, Watcher

_DIGITS = {"bf16": 7, "tf32": 10, "fp16": 10}  # behind the point
_DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
_ROWS, _MOST_ROWS, _MOST_COLUMNS = 32, 4096, 64  # of a table
_OFFSET = 8.0  # mean over standard deviation
_COARSE = 0.25  # rms of the rounding error, 1 / sqrt(12) of its step, over the standard deviation
_CARRIES = 0.1  # spread of a column, of the largest one of its table
_VARIED, _ODD = 32, 0.25  # different numbers of another column, and the share of them that use the last digit
_MOST_OF_A_STEP = 16


class ShortData(Watcher):
    """Told of each operation outside of the optimizer; reads tables that were there before the step, each once in it.

    A column around an offset was rounded where all numbers of the table end at the last digit of a format of 16 bits,
    or of TF32, and another column of it uses that digit as numbers do that were rounded to it. A table that is held in
    16 bits needs no other column. Columns that hardly vary beside others are left alone, as slow waves of an embedding.
    """

    fact = "lost_values"

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model, self._count = weakref.ref(model), 0
        self._weights: set[int] = set()  # addresses
        self._known = TensorMarks[bool]()  # made in this step, or looked at

    def begin(self, step: int) -> None:
        super().begin(step)
        self._count, model = 0, self._model()
        held = [*model.parameters(), *model.buffers()] if model is not None else []
        self._weights = {address_of(each) for each in held}

    @torch.no_grad()
    def observe(self, call: OperationCall) -> None:
        for each in call.args[:2]:
            for part in as_list(each)[:2]:
                if isinstance(part, Tensor) and self._known.get(part) is None:
                    self._known[part] = True
                    if self._count < _MOST_OF_A_STEP and self._is_table(part):
                        self._count += 1
                        self._look_at(part, call.module)
        for each in as_list(call.out):
            if isinstance(each, Tensor):
                self._known[each] = True

    def _is_table(self, value: Tensor) -> bool:
        if value.requires_grad or value.dim() != 2 or value.dtype not in (torch.float32, *_DTYPES):
            return False
        if len(value) < _ROWS or not 1 <= value.shape[1] <= _MOST_COLUMNS or readable(value) is not value:
            return False
        return address_of(value) not in self._weights

    def _look_at(self, value: Tensor, module: str | None) -> None:
        table = in_fp64(value.detach()[:_MOST_ROWS])
        low = _DTYPES.get(value.dtype) or _format_of(table)
        row = _coarse_column(table, low, is_stored=value.dtype in _DTYPES) if low else None
        if row is None:
            return
        if self._has_room(low):
            self._rows[low] = {"operation": "short_data", "format": low, "module": module, **row, "step": self._step,
                               "count": self._steps_with(low)}  # fmt: skip


def _format_of(table: Tensor) -> str:
    """The format of fewest digits that holds all numbers of a table in FP32; '' where FP32 is needed."""
    if not bool(table.isfinite().all()):
        return ""
    mantissa = torch.frexp(table)[0] * 2.0  # 1 <= |x| < 2, or 0
    for name, digits in _DIGITS.items():
        steps = mantissa * 2.0**digits
        if bool((steps == steps.round()).all()):
            is_half = name == "tf32" and bool((table.half().double() == table).all())
            return "fp16" if is_half else name
    return ""


def _coarse_column(table: Tensor, low: str, *, is_stored: bool) -> dict[str, Any] | None:
    """The column whose step is largest beside its spread, where it is too large."""
    mean, spread = table.mean(0), table.std(0)
    step = 2.0 ** (mean.abs().clamp_min(1e-300).log2().floor() - _DIGITS[low])
    error = step / 12**0.5
    own = (mean.abs() > _OFFSET * spread) & (spread > 0) & (error > _COARSE * spread)
    own &= spread >= _CARRIES * spread.amax()
    own &= (step > 1) | (table != table.round()).any(0)  # whole numbers of years are exact
    if not bool(own.any()) or not (is_stored or _uses_its_digits(table[:, ~own], low)):
        return None
    place = int(torch.where(own, error / spread.clamp_min(1e-300), 0.0).argmax())
    column = table[:, place]
    return {
        "share": float(error[place] / spread[place]), "largest": float(column.abs().max()),
        "mean": float(mean[place]), "spread": float(spread[place]), "levels": len(column.unique()), "column": place,
        "distance": float(step[place]),
    }  # fmt: skip


def _uses_its_digits(columns: Tensor, low: str) -> bool:
    """Whether a column has many numbers that use the last digit of a format, as those do that are rounded to it."""
    for column in columns.unbind(1):
        numbers = column[column != 0].unique()
        if len(numbers) > _VARIED:
            last = torch.frexp(numbers)[0] * 2.0 ** (_DIGITS[low] + 1)
            if float((last.round() % 2 != 0).double().mean()) > _ODD:
                return True
    return False
