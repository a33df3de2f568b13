"""Scores that are rounded to 16 bits and then compared with each other: returns, fitness, losses of samples."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.device import in_fp64
from precgui.engine.dtype_names import SHORT_DTYPES, dtype_name
from precgui.engine.operation_names import ARITHMETIC, COPIES
from precgui.engine.telemetry.readable import address_of, readable
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import as_list
from precgui.engine.watcher import OperationCall, Watcher

_WIDE = (torch.float32, torch.float64)
_COMPARING = {"std", "var", "var_mean", "std_mean", "sort", "argsort", "topk"}
_KEEPING = (ARITHMETIC - {"sub"}) | COPIES | {"mean", "sum", "neg"}
_FEWEST, _MOST = 16, 4096  # scores; of 16 the standard deviation is known to 18 %
_COARSE = 0.25  # rms of the rounding error over the standard deviation
_OFFSET = 8.0  # mean over standard deviation
_MOST_STORES = 8


@dataclass
class _Scores:
    """Numbers in 16 bits that were written in this step, each beside what it was rounded from, by its place."""

    stored: Tensor
    exact: dict[int, float] = field(default_factory=dict)
    row: dict[str, Any] | None = None
    is_judged: bool = False


class ComparedScores(Watcher):
    """Told of each operation outside of the optimizer.

    A rounding counts where scores are then sorted, subtracted from each other or from their mean, or divided by their
    spread: of those that are only kept, or added up, the offset may be what counts. Weights are no scores.
    """

    fact = "lost_values"

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = weakref.ref(model)
        self._weights: set[int] = set()  # addresses
        self._stores: dict[int, _Scores] = {}  # by the address of their memory
        self._made = TensorMarks[_Scores]()  # what was computed from them

    def begin(self, step: int) -> None:
        super().begin(step)
        model = self._model()
        held = [*model.parameters(), *model.buffers()] if model is not None else []
        self._weights = {address_of(each) for each in held}

    def _clear_marks(self) -> None:
        super()._clear_marks()
        self._stores.clear()

    @torch.no_grad()
    def observe(self, call: OperationCall) -> None:
        name, args, out = call.name, call.args, call.out
        if name == "_to_copy" and isinstance(out, Tensor) and out.dtype in SHORT_DTYPES:
            self._written(out, args[0], 0)
        elif name == "copy_" and isinstance(args[0], Tensor) and args[0].dtype in SHORT_DTYPES:
            self._written(args[0], args[1], int(args[0].storage_offset()))
        elif self._stores or self._made:
            self._used(name, args, out, call.module)

    def _written(self, stored: Tensor, source: Any, offset: int) -> None:
        """Note what is written to a vector of scores: all of it, or a number at a place."""
        if not isinstance(source, Tensor) or source.requires_grad or source.dtype not in _WIDE:
            return
        if readable(source) is not source or readable(stored) is not stored:
            return
        is_vector = max(stored.shape, default=1) == stored.numel() and stored.is_contiguous()
        if not is_vector or source.numel() != stored.numel() or stored.untyped_storage().nbytes() > 2 * _MOST:
            return
        address = address_of(stored)
        if address in self._weights or address_of(source) in self._weights:
            return
        if address not in self._stores and len(self._stores) >= _MOST_STORES:
            return
        scores = self._stores.setdefault(address, _Scores(stored))
        scores.exact |= dict(enumerate(in_fp64(source).reshape(-1).tolist(), offset))
        scores.is_judged = False

    def _of(self, value: Any) -> _Scores | None:
        if not isinstance(value, Tensor):
            return None
        if (made := self._made.get(value)) is not None:
            return made
        return self._stores.get(address_of(value)) if value.dtype in SHORT_DTYPES and self._stores else None

    def _used(self, name: str, args: Any, out: Any, module: str | None) -> None:
        scores = self._of(args[0])
        second = self._of(args[1]) if len(args) > 1 else None
        if scores is None and second is None:
            return
        is_compared = name in _COMPARING or (name == "sub" and scores is second)
        if is_compared and scores is not None and (row := self._judged(scores)) is not None:
            self._note(row, module)
        if name in _KEEPING:
            for each in as_list(out):
                known = scores or second
                if isinstance(each, Tensor) and known is not None:
                    self._made[each] = known

    def _judged(self, scores: _Scores) -> dict[str, Any] | None:
        if not scores.is_judged:
            scores.is_judged, scores.row = True, _lost_spread(scores)
        return scores.row

    def _note(self, row: dict[str, Any], module: str | None) -> None:
        key = row["format"], module
        if self._has_room(key):
            self._rows[key] = {"operation": "coarse_scores", "module": module, **row, "step": self._step,
                               "count": self._steps_with(key)}  # fmt: skip


def _lost_spread(scores: _Scores) -> dict[str, Any] | None:
    """The part of the spread of scores that rounding takes away, where that is too much."""
    if len(scores.exact) < _FEWEST:
        return None
    exact = torch.tensor(list(scores.exact.values()), dtype=torch.float64)
    error = (exact.to(scores.stored.dtype).double() - exact).square().mean().sqrt()
    spread, mean = exact.std(), exact.mean()
    if not bool((error > _COARSE * spread) & (spread > 0) & error.isfinite() & (mean.abs() > _OFFSET * spread)):
        return None
    return {
        "format": dtype_name(scores.stored.dtype), "share": float(error / spread), "largest": float(exact.abs().max()),
        "mean": float(mean), "spread": float(spread), "levels": len(exact.to(scores.stored.dtype).unique()),
    }  # fmt: skip
