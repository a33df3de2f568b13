"""Whole numbers that rounding to a float format has merged: positions, time steps and indices beyond its digits."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.device import in_fp64
from precgui.engine.dtype_names import DIGITS, dtype_name
from precgui.engine.operation_names import AFFINE, CLAMPS, EXTREMES, JOINS, NLL_LOSSES, PICKS, ROUNDINGS
from precgui.engine.telemetry.readable import address_of
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import as_list
from precgui.engine.watcher import OperationCall, Watcher

_EXACT = {dtype: 2**digits for dtype, digits in DIGITS.items()}  # whole numbers up to here
_WIDE = {torch.float32: 2**24, torch.float64: 2**53}  # only casts of whole numbers to these are followed
_WIDER = {  # formats whose whole numbers a cast to these may merge
    torch.float32: (torch.int32, torch.int64, torch.float64),
    torch.float64: (torch.int64,),
}
_LIMITS = {dtype_name(dtype): exact for dtype, exact in (_EXACT | _WIDE).items()}
_MOST = 65536  # elements that are looked at
_FEWEST = 16  # distinct numbers
_KEEPING = {
    *PICKS, *JOINS, *CLAMPS, *EXTREMES, *ROUNDINGS, *AFFINE, "copy", "sort", "topk", "unique",
    "repeat", "repeat_interleave", "flip", "roll", "tril", "triu", "pad", "constant_pad_nd",
    "where", "masked_fill", "masked_scatter", "index_fill", "index_copy", "index_put", "_index_put_impl", "scatter",
    "slice_scatter", "select_scatter", "nan_to_num",
    "relu", "max", "min", "amax", "amin", "cummax", "cummin", "frac", "abs", "neg",
    "remainder", "fmod", "floor_divide", "bitwise_and",
    "outer", "bmm", "mm",
}  # fmt: skip
_FOLDING = {"remainder", "fmod", "bitwise_and"}  # makes smaller numbers of those that were merged before
_SCALING = {"mul", "div", "floor_divide", "outer", "bmm", "mm"}  # of wide formats: numbers that merged may be one then
_ROUNDING = ROUNDINGS | CLAMPS | EXTREMES
_WITH_PLACES = {"max", "min", "cummax", "cummin", "sort", "topk", "unique"}  # that return indices beside the numbers
_ANGLES = ("sin", "cos")
_INDEXING = {
    "index": 1,
    "embedding": 1,
    "index_select": 2,
    "gather": 2,
    "take": 1,
    "scatter": 2,
    "scatter_add": 2,
    "index_put_": 1,
    **dict.fromkeys(NLL_LOSSES, 1),
}
_SHORT = {dtype_name(dtype) for dtype in _EXACT}
_MOST_COLUMNS = 64
_MERGED = 0.25  # share of the whole numbers that are no longer distinct, of those that were made smaller afterwards


@dataclass(frozen=True)
class _Rounded:
    """Numbers that were rounded, or computed from such in more digits: `merged` is the share of them that is not
    distinct."""

    kind: str  # `ramp`: consecutive whole numbers; `cast`: whole numbers that were cast; `other`
    format: str
    merged: float
    largest: float
    module: str | None
    folded: bool = False  # made smaller since by a remainder; of `other`: rounded or clamped since

    @property
    def is_wide(self) -> bool:
        return self.format not in _SHORT


class CoarseIntegers(Watcher):
    """Told of each operation outside of the optimizer; follows rounded numbers by the identity of their tensors."""

    fact = "integers"

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = weakref.ref(model)
        self._known = TensorMarks[_Rounded]()
        self._stored: dict[int, _Rounded] = {}  # by address

    def begin(self, step: int) -> None:
        super().begin(step)
        model = self._model()
        stored = [t for t in model.buffers() if t.dtype in _EXACT] if model is not None else []
        self._stored = {address_of(t): kept for t in stored if (kept := _ramp(t, None)) is not None}

    def observe(self, call: OperationCall) -> None:
        name, args, out, module, first = call.name, call.args, call.out, call.module, call.args[0]
        if name in _INDEXING:
            self._indexed(args, _INDEXING[name], module)
        plain = call.base
        if plain in _ANGLES:
            self._angle(first, module)
        kept = self._made(name, first, out, module) if isinstance(out, Tensor) else None
        if kept is None and (call.keeps_numbers or plain in _KEEPING):
            kept = next((mark for each in _operands(plain, args) if (mark := self._mark(each)) is not None), None)
        if kept is not None and kept.is_wide and plain in _SCALING:
            kept = None
        if kept is not None:
            if plain in (_ROUNDING if kept.kind == "other" else _FOLDING) and _may_fold(kept, name, first):
                kept = replace(kept, folded=True)
            for each in out if isinstance(out, list | tuple) and plain not in _WITH_PLACES else as_list(out)[:1]:
                if isinstance(each, Tensor) and each.dtype is not torch.bool:
                    self._known[each] = kept
            if kept.kind == "ramp" and name in ("index", "mul", "_to_copy", "embedding", "sub", "outer", "mm", "bmm"):
                self._note("ramp", kept, module)

    def _mark(self, value: Any) -> _Rounded | None:
        if not isinstance(value, Tensor):
            return None
        if (known := self._known.get(value)) is not None:
            return known
        return self._stored.get(address_of(value)) if value.dtype in _EXACT and self._stored else None

    def _made(self, name: str, first: Any, out: Tensor, module: str | None) -> _Rounded | None:
        """The mark of whole numbers that this operation writes in 16 bits, or widens."""
        if name == "arange" and out.dtype in _EXACT:
            return _ramp(out, module)
        if name == "cumsum" and out.dtype in _EXACT and isinstance(first, Tensor) and out.shape[-1] > _EXACT[out.dtype]:
            return _counted(first, out, module)
        if name != "_to_copy" or not isinstance(first, Tensor):
            return None
        if out.dtype in _EXACT or first.dtype in _WIDER.get(out.dtype, ()):
            return _cast(first, out, module)
        if first.dtype in _EXACT and self._mark(first) is None and first.numel() >= _FEWEST and not first.requires_grad:
            return _ramp(first, module) or _Rounded("other", dtype_name(first.dtype), 0.0, 0.0, module)
        return None

    def _angle(self, angle: Any, module: str | None) -> None:
        """A sine or cosine in FP32 of an angle whose digits are those of 16 bits."""
        mark = self._mark(angle)
        if mark is None or mark.is_wide or angle.dtype in _EXACT or not angle.numel():
            return
        row = {"radians": float(angle.detach().abs().max())}
        self._note("angle", mark, module, row)

    def _indexed(self, args: Any, place: int, module: str | None) -> None:
        """Indices that were rounded numbers beyond the whole ones of their format."""
        indices = args[place] if len(args) > place else None
        for each in indices if isinstance(indices, list | tuple) else (indices,):
            mark = self._mark(each)
            if mark is None or each.is_floating_point() or not each.numel():
                continue
            largest = int(each.max())
            is_beyond = mark.folded or largest > _LIMITS[mark.format]
            if is_beyond and (mark.merged > _MERGED or not (mark.folded or mark.is_wide)):
                self._note("index", mark, module, {"largest": largest})

    def _note(self, use: str, mark: _Rounded, module: str | None, row: dict[str, Any] | None = None) -> None:
        key = use, mark.kind, mark.format, module
        row = {"use": use, "kind": mark.kind, "format": mark.format, "merged": mark.merged, "largest": mark.largest,
               "module": module, "step": self._step} | (row or {})  # fmt: skip
        known = self._rows.get(key)
        if self._has_room(key) and (known is None or row.get("radians", 0) > known.get("radians", 0)):
            self._rows[key] = row


def _may_fold(mark: _Rounded, name: str, first: Any) -> bool:
    """Whether an operation makes those numbers smaller that were merged: of a table these are one column of many."""
    if mark.kind == "other" or name.endswith("_") or not isinstance(first, Tensor) or not first.numel():
        return True
    return bool(float(first.detach().abs().max()) > _LIMITS[mark.format])


def _whole_column(table: Tensor, exact: int) -> int | None:
    """The column of a table that holds whole numbers beyond the exact ones; None without one."""
    if table.dim() < 2 or not 1 < table.shape[-1] <= _MOST_COLUMNS:
        return None
    rows = table.detach().reshape(-1, table.shape[-1])[:_MOST]
    whole = (rows == rows.round()).all(0) & (rows.abs().amax(0) > exact)
    return int(whole.int().argmax()) if bool(whole.any()) else None


def _operands(name: str, args: Any) -> list[Any]:
    """The arguments whose numbers are among those of the result: not the indices by which it is read."""
    if name in _INDEXING and name != "index_put_":
        return [args[0]]
    return [part for each in args for part in as_list(each)]


def _ramp(tensor: Tensor, module: str | None) -> _Rounded | None:
    """Consecutive whole numbers that have become fewer: they do not fall, and reach from end to end in steps of 1."""
    exact = _EXACT[tensor.dtype]
    rows = tensor.detach().reshape(-1, tensor.shape[-1]) if tensor.dim() > 1 and tensor.shape[-1] >= exact else None
    values = in_fp64((rows[0] if rows is not None else tensor.detach().reshape(-1))[:_MOST])
    if len(values) < exact or not bool(((values == values.round()) & values.isfinite()).all()):
        return None
    low, high = float(values[0]), float(values[-1])
    if not max(abs(low), abs(high)) > exact or not bool((values.diff() >= 0).all() | (values.diff() <= 0).all()):
        return None
    if abs(abs(high - low) + 1 - len(values)) > 0.02 * len(values):
        return None
    merged = 1 - len(values.unique()) / len(values)
    largest = max(abs(low), abs(high))
    return _Rounded("ramp", dtype_name(tensor.dtype), merged, largest, module) if merged > 0 else None


def _counted(terms: Tensor, out: Tensor, module: str | None) -> _Rounded | None:
    """A cumulative sum of zeros and ones in 16 bits, of which rounding has merged numbers, or which stops to grow."""
    row = in_fp64(terms.detach().reshape(-1, terms.shape[-1])[0, :_MOST])
    exact, own = row.cumsum(0), in_fp64(out.detach().reshape(-1, out.shape[-1])[0, :_MOST])
    if not bool(((row == 0) | (row == 1)).all()) or not float(exact.max()) > _EXACT[out.dtype]:
        return None
    merged = 1 - len(own.unique()) / len(exact.unique())
    return _Rounded("ramp", dtype_name(out.dtype), merged, float(exact.max()), module) if merged > 0 else None


def _cast(source: Tensor, out: Tensor, module: str | None) -> _Rounded | None:
    """Whole numbers, or a table with a column of such, cast to fewer digits, where that merges some."""
    if out.numel() < _FEWEST or source.dtype is torch.bool or source.dtype in _EXACT:
        return None
    exact = _LIMITS[dtype_name(out.dtype)]
    values, rounded = source.detach().reshape(-1)[:_MOST], out.detach().reshape(-1)[:_MOST]
    if source.is_floating_point() and not bool((values == values.round()).all()):
        if (column := _whole_column(source, exact)) is None:
            return None
        values, rounded = (each.detach()[..., column].reshape(-1)[:_MOST] for each in (source, out))
    largest = float(values.abs().max())
    if not exact < largest < float("inf"):
        return None
    distinct = len(values.unique())
    merged = 1 - len(rounded.unique()) / max(distinct, 1)
    ramp = _ramp(out, module) if out.dtype in _EXACT else None
    if ramp is not None:
        return ramp
    return _Rounded("cast", dtype_name(out.dtype), merged, largest, module) if distinct >= _FEWEST else None
