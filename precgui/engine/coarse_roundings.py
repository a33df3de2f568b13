"""Numbers around an offset that a loop rounds by itself, by their bits or to a grid, until they hardly differ."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.device import in_fp64
from precgui.engine.operation_names import AFFINE, CLAMPS, PRODUCTS, ROUNDINGS, SAME_NUMBERS
from precgui.engine.telemetry.readable import address_of
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.watcher import OperationCall, Watcher

_SCALING = {*AFFINE, *CLAMPS, *SAME_NUMBERS, "nan_to_num"}  # with a number, or one for each column
_OF_BITS = {
    "add", "sub", "bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__", "bitwise_left_shift",
    "bitwise_right_shift", "__lshift__", "__rshift__", "mul", "floor_divide", "clone",
}  # fmt: skip
_ROWS, _MOST_ROWS, _MOST_COLUMNS = 32, 4096, 64
_MOST_BYTES = 1 << 24  # of the numbers before a rounding, which are kept until it is over
_OFFSET = 8.0  # mean over standard deviation
_COARSE, _OF_ACTIVATIONS = 0.25, 0.5  # rms of the rounding error over the standard deviation
_NEAR = 0.125  # of the mean: what is further away is another quantity
_CARRIES, _CONSTANT = 0.1, 1e-9  # spread of a column, of the largest of its table, and of its numbers
_MOST_ORIGINS = 4


@dataclass(frozen=True)
class _Made:
    """A tensor that stands for the same numbers as its `origins`, the last ones that it was computed from, in another
    unit or form."""

    origins: tuple[Tensor, ...]
    is_rounded: bool = False
    is_difference: bool = False  # what a rounding has changed


class CoarseRoundings(Watcher):
    """Told of each operation outside of the optimizer.

    A rounding counts where its result is near the numbers before it and a product of matrices reads it. A rounded value
    that is subtracted from what it was made of (a remainder, the hour of a day) is no coarse one, unless the difference
    is added back, as estimators do that let gradients through.
    """

    fact = "lost_values"

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = weakref.ref(model)
        self._weights: set[int] = set()  # addresses
        self._made = TensorMarks[_Made]()
        self._coarse = TensorMarks[dict[str, Any]]()

    def begin(self, step: int) -> None:
        super().begin(step)
        model = self._model()
        self._weights = {address_of(each) for each in model.parameters()} if model is not None else set()

    @torch.no_grad()
    def observe(self, call: OperationCall) -> None:
        name, args, out = call.name, call.args, call.out
        if not isinstance(args[0], Tensor):
            return
        if name in PRODUCTS:
            for each in args[:3]:
                if (row := self._coarse.get(each)) is not None:
                    self._note(row, call.module)
            return
        if name.startswith("fake_quantize"):
            if self._may_be_judged(args[0]):
                self._compare(_Made((args[0],), True), out[0] if isinstance(out, tuple) else out)
            return
        if isinstance(out, Tensor) and out.numel() == args[0].numel() and out.numel() >= _ROWS:
            self._follow(name, call.func, args, out)

    def _follow(self, name: str, func: Any, args: Any, out: Tensor) -> None:
        first = args[0]
        known = self._made.get(first)
        if name.endswith("_") and not name.endswith("__"):
            self._made.forget(out)
            self._coarse.forget(out)
            return
        if func is torch.ops.aten.view.dtype:
            self._other_dtype(first, out, known)
        elif func.is_view:
            if known is not None:
                self._made[out] = known
            if (row := self._coarse.get(first)) is not None:
                self._coarse[out] = row
        elif not out.is_floating_point() and not first.is_floating_point():
            if name in _OF_BITS and (made := known or self._made.get(args[1] if len(args) > 1 else None)) is not None:
                self._made[out] = made
        elif name in ROUNDINGS:
            if known is not None:  # to whole numbers of its own unit something may be rounded on purpose
                self._made[out] = replace(known, is_rounded=True)
        elif name in AFFINE and len(args) > 1 and isinstance(args[1], Tensor) and args[1].numel() == out.numel():
            self._joined(name, first, args[1], out)
        elif name in _SCALING:
            self._scaled(first, out, known)

    def _other_dtype(self, first: Tensor, out: Tensor, known: _Made | None) -> None:
        """The bits of a tensor as whole numbers, or back."""
        if first.is_floating_point() and not out.is_floating_point():
            if self._may_be_judged(first):
                self._made[out] = _Made((first,))
        elif known is not None and out.is_floating_point():
            self._made[out] = made = replace(known, is_rounded=True)
            self._compare(made, out)

    def _scaled(self, first: Tensor, out: Tensor, known: _Made | None) -> None:
        is_cut = first.is_floating_point() and (not out.is_floating_point() or out.dtype.itemsize == 1)
        if known is None or not known.is_rounded:
            before = () if is_cut or not self._may_be_judged(first) else (first,)
            known = _Made((*(known.origins if known is not None else ()), *before)[-_MOST_ORIGINS:], is_cut)
        if not known.origins:
            return
        self._made[out] = made = known
        if made.is_rounded and out.is_floating_point():
            self._compare(made, out)

    def _joined(self, name: str, first: Tensor, second: Tensor, out: Tensor) -> None:
        """A difference of a rounded value and what it was made of, or the sum that takes it back."""
        for rounded, own in ((first, second), (second, first)):
            made = self._made.get(rounded)
            if made is None or not made.is_rounded or not any(_are_same(each, own) for each in made.origins):
                continue
            if name == "sub":
                self._coarse.forget(rounded)
                self._made[out] = replace(made, is_difference=True)
            elif name == "add" and made.is_difference:
                self._made[out] = whole = replace(made, is_difference=False)
                self._compare(whole, out)
            return

    def _may_be_judged(self, value: Tensor) -> bool:
        """Whether a tensor may hold the numbers before a rounding: floats, not too many, and no weights."""
        is_wide = value.dtype in (torch.float32, torch.float64) and value.layout is torch.strided and value.dim() > 0
        return (
            is_wide and len(value) >= _ROWS and value.nbytes <= _MOST_BYTES and address_of(value) not in self._weights
        )

    def _compare(self, made: _Made, out: Any) -> None:
        if not isinstance(out, Tensor) or made.is_difference:
            return
        for origin in made.origins:
            if out.numel() == origin.numel() and (row := _lost_spread(origin, out)) is not None:
                self._coarse[out] = row
                return

    def _note(self, row: dict[str, Any], module: str | None) -> None:
        before = self._rows.get(module)
        if self._has_room(module):
            steps = 1 if before is None else before["count"] + (before["step"] != self._step)
            self._rows[module] = {"operation": "coarse rounding", "format": "", "module": module, **row,
                                  "step": self._step, "count": steps}  # fmt: skip


def _are_same(origin: Tensor, own: Tensor) -> bool:
    return own.numel() == origin.numel() and own.dtype == origin.dtype and own.data_ptr() == origin.data_ptr()


def _lost_spread(origin: Tensor, out: Tensor) -> dict[str, Any] | None:
    """The column that loses most of its spread, if it lies around an offset; of what has a graph all columns must."""
    shape = (len(origin), -1) if origin.dim() <= 2 and origin[0].numel() <= _MOST_COLUMNS else (-1, 1)
    before = in_fp64(origin.detach().reshape(shape)[:_MOST_ROWS])
    after = in_fp64(out.detach().reshape(shape)[:_MOST_ROWS])
    mean, spread = before.mean(0), before.std(0)
    error = (after - before).square().mean(0).sqrt()
    varies = (spread > _CONSTANT * before.abs().amax(0)) & error.isfinite()
    varies &= spread >= _CARRIES * spread.nan_to_num(0, 0).amax()
    ratio = torch.where(varies, error / spread, 0.0)
    least = _OF_ACTIVATIONS if origin.requires_grad else _COARSE
    bad = varies & (mean.abs() > _OFFSET * spread) & (error < _NEAR * mean.abs()) & (ratio > least)
    if not bool(bad.any()) or (origin.requires_grad and bool((varies & ~bad).any())):
        return None
    place = int(torch.where(bad, ratio, 0.0).argmax())
    return {
        "share": float(ratio[place]), "largest": float(before[:, place].abs().max()), "mean": float(mean[place]),
        "spread": float(spread[place]), "levels": len(after[:, place].unique()),
    }  # fmt: skip
