"""Differences of data that a cast had rounded, compared with those of the same numbers before the cast."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from precgui.engine.device import in_fp64
from precgui.engine.dtype_names import dtype_name
from precgui.engine.operation_names import FIT_LOSSES, JOINS, PICKS, PRODUCTS
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import as_list, transform_level
from precgui.engine.watcher import OperationCall, Watcher

_SHORTER = {  # formats of data, and those that a cast rounds them to
    torch.float64: (torch.float32, torch.bfloat16, torch.float16),
    torch.float32: (torch.bfloat16, torch.float16),
    torch.int64: (torch.float32, torch.bfloat16, torch.float16),
    torch.int32: (torch.float32, torch.bfloat16, torch.float16),
}
_FOLLOWED = PICKS | {"mean", "amin", "amax", "clone", "roll", "flip", "repeat", "repeat_interleave"}
_FEWEST, _MOST = 64, 1 << 20  # numbers of a tensor
_OFF = 0.5  # rms of the error over the rms of the difference


@dataclass(frozen=True)
class _Cast:
    """Numbers after a cast: those before it, in the same shape, and the format that they have been through.

    `version` is that of the operand of the cast, which the loop may overwrite later.
    """

    before: Tensor
    operand: Tensor
    version: int
    format: str


class RoundedDifferences(Watcher):
    """Told of each operation outside of the optimizer.

    What happens to data after a cast is done with the numbers before it, too, as long as these are only chosen and
    moved. A difference that is mostly rounding counts where a product or a loss reads it, or what is computed from it.
    """

    fact = "cancellation"

    def __init__(self) -> None:
        super().__init__()
        self._casts = TensorMarks[_Cast]()
        self._lost = TensorMarks[dict[str, Any]]()

    @torch.no_grad()
    def observe(self, call: OperationCall) -> None:
        if transform_level() is not None:
            return
        name, out = call.base, call.out
        known = (self._lost.get(each) for each in call.tensors) if self._lost else ()
        lost = next((row for row in known if row is not None), None)
        if lost is not None:
            self._read(name, lost, call)
        if isinstance(out, Tensor) and (out.is_meta or out.requires_grad):
            return
        if call.name == "_to_copy":
            self._cast(call.args[0], out)
        elif name == "sub" and isinstance(out, Tensor):
            self._difference(call.args[0], call.second, out, call)
        elif call.func.is_view or name in _FOLLOWED or name in JOINS:
            self._moved(call)

    def _read(self, name: str, row: dict[str, Any], call: OperationCall) -> None:
        if name in PRODUCTS or name in FIT_LOSSES or "rnn" in name or "lstm" in name:
            key = "rounded_difference", row["module"]
            if self._has_room(key):
                self._rows[key] = row | {"count": self._steps_with(key)}
        elif call.is_elementwise or call.keeps_numbers or name in JOINS or name in PICKS:
            for each in as_list(call.out):
                if isinstance(each, Tensor):
                    self._lost[each] = row

    def _cast(self, source: Any, out: Any) -> None:
        if not isinstance(source, Tensor) or not isinstance(out, Tensor) or not _FEWEST <= out.numel() <= _MOST:
            return
        if (known := self._casts.get(source)) is not None and out.is_floating_point():
            is_shorter = out.dtype in _SHORTER.get(source.dtype, ())
            self._casts[out] = replace(known, format=dtype_name(out.dtype)) if is_shorter else known
        elif not source.requires_grad and out.dtype in _SHORTER.get(source.dtype, ()):
            self._casts[out] = _Cast(source.detach(), source, source._version, dtype_name(out.dtype))

    def _moved(self, call: OperationCall) -> None:
        """Do the same with the numbers before the cast."""
        is_join, first = call.base in JOINS, call.args[0]
        parts = as_list(first) if is_join else [first]
        known = [each for part in parts if (each := self._of(part)) is not None]
        if not known or len(known) < len(parts) or call.name != call.base:
            return
        operands: Any = [each.before for each in known] if is_join else known[0].before
        if call.base == "mean" and not operands.is_floating_point():
            operands = in_fp64(operands)
        done = call.func(operands, *call.args[1:], **{k: v for k, v in call.kwargs.items() if k != "dtype"})
        for out, before in zip(as_list(call.out), as_list(done), strict=True):
            if isinstance(out, Tensor) and out.shape == before.shape:
                self._casts[out] = replace(known[0], before=before)

    def _of(self, value: Any) -> _Cast | None:
        known = self._casts.get(value)
        return known if known is not None and known.operand._version == known.version else None

    def _difference(self, first: Any, second: Any, out: Tensor, call: OperationCall) -> None:
        a, b = self._of(first), self._of(second)
        if a is None or b is None or call.kwargs.get("alpha", 1) != 1 or not _FEWEST <= out.numel() <= _MOST:
            return
        exact = in_fp64(a.before) - in_fp64(b.before)
        if exact.shape != out.shape:
            return
        error, size = (in_fp64(out) - exact).square().mean().sqrt(), exact.square().mean().sqrt()
        share = float(error / size)
        if _OFF < share < float("inf"):
            self._lost[out] = {"step": self._step, "module": call.module, "use": "rounded_difference",
                               "format": a.format, "share": share, "elements": out.numel()}  # fmt: skip
