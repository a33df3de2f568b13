"""Numbers that a cast to FP16 makes zero, or that an operation wraps around the end of an integer format."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.device import in_fp64
from precgui.engine.dtype_names import SHORT_DTYPES, dtype_name
from precgui.engine.operation_names import SUMS
from precgui.engine.telemetry.readable import address_of
from precgui.engine.watcher import Facts, OperationCall, Watcher

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32)
_COMPUTING = SUMS | {"mul"}
_MOST = 65536  # elements that are looked at
_MOST_OF_A_CAST = 1 << 24
_FEWEST = 4
_MOSTLY, _SOME = 0.5, 0.01  # shares of the elements
_NEGLIGIBLE = 2.0**-14  # beside a number from here on, it is below the rounding of FP16 what FP16 makes zero
_COARSE = 0.25  # rms of the rounding error over the standard deviation of a column
_MOST_COLUMNS = 64
_CARRIES = 0.1  # spread of a column over the largest of its table: less of it is next to nothing beside the others
_CONSTANT = 1e-9  # relative spread of a column that is a constant
_ROWS = 32  # that a standard deviation means something
_WIDTHS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24, torch.float64: 53, torch.int32: 31, torch.int64: 63}


class LostValues(Watcher):
    """Told of each operation outside of the optimizer.

    Of casts of data to 16 bits, or from them, outside of the model it says that they ran, whatever they lose.
    """

    fact = "lost_values"

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = weakref.ref(model)
        self._weights: set[int] = set()  # addresses: copies of weights are no data
        self._casts: dict[torch.dtype, dict[str, Any]] = {}

    def begin(self, step: int) -> None:
        super().begin(step)
        model = self._model()
        stored = [*model.parameters(), *model.buffers()] if model is not None else []
        self._weights = {address_of(each) for each in stored}

    def observe(self, call: OperationCall) -> None:
        name, args, out = call.name, call.args, call.out
        if not isinstance(out, Tensor) or not isinstance(args[0], Tensor) or out.numel() < _FEWEST:
            return
        if name == "_to_copy":
            self._cast(args[0], out, call.module)
        elif out.dtype in _INTEGERS and name in _COMPUTING:
            self._computed(name, args, out, call.module)

    def overflow(self, call: OperationCall) -> None:
        """An operation of a step has run that is watched for what is not finite alone."""
        out, source = call.out, call.args[0]
        if call.name == "_to_copy" and isinstance(source, Tensor) and isinstance(out, Tensor):
            self._narrow(source, out, call.module)

    def _narrow(self, source: Tensor, out: Tensor, module: str | None) -> None:
        """A cast of data to 16 bits or from them, and the Inf that it makes."""
        if source.requires_grad or out.numel() < _FEWEST or source.dtype == out.dtype:
            return
        if module is None and address_of(source) not in self._weights:
            for each in (source.dtype, out.dtype):
                if each in SHORT_DTYPES:
                    self._casts.setdefault(each, {"format": dtype_name(each), "step": self._step})
        is_wide = source.dtype in (torch.float32, torch.float64)
        if is_wide and out.dtype is torch.float16:
            self._overflows(source.detach(), out.detach(), module)

    def _cast(self, source: Tensor, out: Tensor, module: str | None) -> None:
        self._narrow(source, out, module)
        before, after = source.detach().reshape(-1)[:_MOST], out.detach().reshape(-1)[:_MOST]
        if out.dtype is torch.float16 and source.dtype in (torch.float32, torch.float64) and not source.requires_grad:
            known, largest = before != 0, float(before.abs().max())
            share = float((known & (after == 0)).sum() / known.sum().clamp_min(1))
            if share > _MOSTLY and int(known.sum()) >= _FEWEST and largest < _NEGLIGIBLE:
                self._note("cast", out, share, largest, module)
        is_data = (module is None or torch.is_grad_enabled()) and address_of(source) not in self._weights
        if is_data and _loses_spread(source, out) and (share := _worst_column(source, out)) > _COARSE:
            self._note("coarse cast", out, share, float(before.abs().max()), module)
        if out.dtype in _INTEGERS and source.dtype not in (out.dtype, torch.bool):
            exact = in_fp64(before).trunc()
            share = float(in_fp64(in_fp64(after) != exact).mean())
            if share > _SOME:
                self._note("wrapped cast", out, share, float(in_fp64(before).abs().max()), module)

    def _overflows(self, before: Tensor, after: Tensor, module: str | None) -> None:
        """Note the first cast that makes Inf of finite numbers. -Inf is what a mask becomes, and is meant."""
        key = "overflowing_cast", module
        if key in self._rows or not self._has_room(key) or after.numel() > _MOST_OF_A_CAST:
            return
        beyond = before.isfinite() & (after == torch.inf)
        if bool(beyond.any()):
            self._rows[key] = {
                "operation": "overflowing_cast", "format": "fp16", "share": float(in_fp64(beyond).mean()),
                "largest": float(before[beyond].max()), "module": module, "step": self._step, "count": 1,
                "numbers": after.numel(), "infinite": int(beyond.sum()),
            }  # fmt: skip

    def _computed(self, name: str, args: Any, out: Tensor, module: str | None) -> None:
        """Sums, differences and products of integers in the format of their operands, which wraps around."""
        operands = [each.to(torch.int64) if isinstance(each, Tensor) else each for each in args[:2]]
        if len(operands) < 2 or any(isinstance(each, float) for each in operands):
            return
        exact = getattr(torch, name)(*operands)
        share = float(in_fp64(exact != out).mean())
        if share > _SOME:
            self._note(f"wrapped {name}", out, share, float(exact.abs().max()), module)

    def _note(self, operation: str, out: Tensor, share: float, largest: float, module: str | None) -> None:
        stored = dtype_name(out.dtype) if out.dtype.is_floating_point else str(out.dtype).removeprefix("torch.")
        key = operation, stored, module
        if self._has_room(key):
            count = 1 + int(self._rows[key]["count"] if key in self._rows else 0)
            self._rows[key] = {
                "operation": operation, "format": stored, "share": share, "largest": largest, "module": module,
                "step": self._step, "count": count,
            }  # fmt: skip

    def facts(self) -> Facts:
        return super().facts() | {"narrow_casts": list(self._casts.values())}


def _loses_spread(source: Tensor, out: Tensor) -> bool:
    """Whether a cast of data to floating point may round it: to fewer digits, without a graph, of more than a few."""
    if not out.dtype.is_floating_point or source.requires_grad or not out.dim() or len(out) < _ROWS:
        return False
    return _WIDTHS.get(source.dtype, 0) > _WIDTHS.get(out.dtype, 99)


def _worst_column(source: Tensor, out: Tensor) -> float:
    """The largest rms of the rounding error over the standard deviation, of the columns of a table or a vector.

    Images and wide tables have columns that are nearly constant: there all numbers are one column. Of a table only
    columns count whose spread is not small beside that of another: slow cosines of an embedding carry next to nothing.
    """
    shape = (len(source), -1) if source.dim() <= 2 and source[0].numel() <= _MOST_COLUMNS else (-1, 1)
    rows = in_fp64(source.detach().reshape(shape)[:_MOST])
    error = (in_fp64(out.detach().reshape(shape)[:_MOST]) - rows).square().mean(0).sqrt()
    spread = rows.std(0)
    known = (spread > _CONSTANT * rows.abs().amax(0)) & error.isfinite()
    known &= spread >= _CARRIES * spread.nan_to_num(0, 0).amax()
    return float((error / spread)[known].max()) if bool(known.any()) else 0.0
