"""Whole numbers in 16 bits that rounding has merged: positions, time steps and indices beyond 256 or 2048."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.dtype_names import dtype_name
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import graph_task, operation_name

_EXACT = {torch.bfloat16: 2**8, torch.float16: 2**11}  # whole numbers up to here
_MOST = 65536  # elements that are looked at
_FEWEST = 16  # distinct numbers
_KEEPING = {"view", "_unsafe_view", "unsqueeze", "squeeze", "expand", "clone", "detach", "alias", "slice", "select",
            "t", "transpose", "index", "index_select", "gather", "_to_copy", "mul", "div", "neg", "add", "sub",
            "embedding", "cat", "stack", "outer", "bmm", "mm"}  # fmt: skip
_INDEXING = {
    "index": 1,
    "embedding": 1,
    "index_select": 2,
    "gather": 2,
    "scatter": 2,
    "scatter_add": 2,
    "index_put_": 1,
    "nll_loss_forward": 1,
    "nll_loss2d_forward": 1,
}
_MOST_ROWS = 8


@dataclass(frozen=True)
class _Rounded:
    """Numbers in 16 bits, or computed from such in more digits: `merged` is the share of them that is not distinct."""

    kind: str  # `ramp`: consecutive whole numbers; `cast`: whole numbers that were cast; `other`
    format: str
    merged: float
    largest: float
    module: str | None


class CoarseIntegers:
    """Told of each operation outside of the optimizer; follows numbers of 16 bits by the identity of their tensors."""

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self._step = 0
        self._known = TensorMarks[_Rounded]()
        self._stored: dict[int, _Rounded] = {}  # by address
        self._found: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._seen: set[tuple[int, int]] = set()

    def begin(self, step: int) -> None:
        self._step = step
        self._known.clear()
        self._seen.clear()
        model = self._model()
        stored = [t for t in model.buffers() if t.dtype in _EXACT] if model is not None else []
        self._stored = {t.untyped_storage().data_ptr(): kept for t in stored if (kept := _ramp(t, None)) is not None}

    def observe(self, func: Any, args: Any, out: Any, module: str | None) -> None:
        if graph_task() != -1 or not args:
            return
        name = operation_name(func)
        first = args[0]
        if name in _INDEXING:
            self._indexed(args, _INDEXING[name], module)
        if not isinstance(out, Tensor):
            return
        if name in ("sin", "cos", "sin_", "cos_"):
            self._angle(first, module)
        kept = self._made(name, first, out, module)
        if kept is None and name.removesuffix("_") in _KEEPING:
            kept = next((mark for each in args[:2] if (mark := self._mark(each)) is not None), None)
        if kept is not None:
            self._known[out] = kept
            if kept.kind == "ramp" and name in ("index", "mul", "_to_copy", "embedding", "sub", "outer", "mm", "bmm"):
                self._note("ramp", kept, module)

    def _mark(self, value: Any) -> _Rounded | None:
        if not isinstance(value, Tensor):
            return None
        if (known := self._known.get(value)) is not None:
            return known
        return self._stored.get(value.untyped_storage().data_ptr()) if value.dtype in _EXACT and self._stored else None

    def _made(self, name: str, first: Any, out: Tensor, module: str | None) -> _Rounded | None:
        """The mark of whole numbers that this operation writes in 16 bits, or widens."""
        if name == "arange" and out.dtype in _EXACT:
            return _ramp(out, module)
        if name == "cumsum" and out.dtype in _EXACT and isinstance(first, Tensor) and out.shape[-1] > _EXACT[out.dtype]:
            return _counted(first, out, module)
        if name != "_to_copy" or not isinstance(first, Tensor):
            return None
        if out.dtype in _EXACT:
            return _cast(first, out, module)
        if first.dtype in _EXACT and self._mark(first) is None and first.numel() >= _FEWEST and not first.requires_grad:
            return _ramp(first, module) or _Rounded("other", dtype_name(first.dtype), 0.0, 0.0, module)
        return None

    def _angle(self, angle: Any, module: str | None) -> None:
        """A sine or cosine in FP32 of an angle whose digits are those of 16 bits."""
        mark = self._mark(angle)
        if mark is None or angle.dtype in _EXACT or not angle.numel():
            return
        row = {"radians": float(angle.detach().abs().max())}
        self._note("angle", mark, module, row)

    def _indexed(self, args: Any, place: int, module: str | None) -> None:
        """Indices that were numbers in 16 bits beyond the whole ones."""
        indices = args[place] if len(args) > place else None
        for each in indices if isinstance(indices, list | tuple) else (indices,):
            mark = self._mark(each)
            if mark is None or each.is_floating_point() or not each.numel():
                continue
            largest = int(each.max())
            if largest > _EXACT[torch.bfloat16 if mark.format == "bf16" else torch.float16]:
                self._note("index", mark, module, {"largest": largest})

    def _note(self, use: str, mark: _Rounded, module: str | None, row: dict[str, Any] | None = None) -> None:
        key = use, mark.kind, mark.format, module
        row = {"use": use, "kind": mark.kind, "format": mark.format, "merged": mark.merged, "largest": mark.largest,
               "module": module, "step": self._step} | (row or {})  # fmt: skip
        known = self._found.get(key)
        if known is None and len(self._found) >= _MOST_ROWS:
            return
        if known is None or row.get("radians", 0) > known.get("radians", 0):
            self._found[key] = row

    def facts(self) -> list[dict[str, Any]]:
        """A row for each use, see `integers` in docs/run-file.md."""
        return list(self._found.values())


def _ramp(tensor: Tensor, module: str | None) -> _Rounded | None:
    """Consecutive whole numbers that have become fewer: they do not fall, and reach from end to end in steps of 1."""
    exact = _EXACT[tensor.dtype]
    rows = tensor.detach().reshape(-1, tensor.shape[-1]) if tensor.dim() > 1 and tensor.shape[-1] >= exact else None
    values = (rows[0] if rows is not None else tensor.detach().reshape(-1))[:_MOST].double()
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
    row = terms.detach().reshape(-1, terms.shape[-1])[0, :_MOST].double()
    exact, own = row.cumsum(0), out.detach().reshape(-1, out.shape[-1])[0, :_MOST].double()
    if not bool(((row == 0) | (row == 1)).all()) or not float(exact.max()) > _EXACT[out.dtype]:
        return None
    merged = 1 - len(own.unique()) / len(exact.unique())
    return _Rounded("ramp", dtype_name(out.dtype), merged, float(exact.max()), module) if merged > 0 else None


def _cast(source: Tensor, out: Tensor, module: str | None) -> _Rounded | None:
    """Whole numbers cast to 16 bits, where that merges some."""
    if out.numel() < _FEWEST or source.dtype is torch.bool or source.dtype in _EXACT:
        return None
    values = source.detach().reshape(-1)[:_MOST]
    if source.is_floating_point() and not bool((values == values.round()).all()):
        return None
    largest = float(values.abs().max())
    if not _EXACT[out.dtype] < largest < float("inf"):
        return None
    distinct = len(values.unique())
    merged = 1 - len(out.detach().reshape(-1)[:_MOST].unique()) / max(distinct, 1)
    ramp = _ramp(out, module)
    if ramp is not None:
        return ramp
    return _Rounded("cast", dtype_name(out.dtype), merged, largest, module) if distinct >= _FEWEST else None
