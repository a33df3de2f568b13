"""Losses that are not finite in 16 bits and would be in FP32: zeros, ones and Inf that rounding makes are followed."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.dtype_names import FLOAT8_DTYPES, SHORT_DTYPES, dtype_name
from precgui.engine.operation_names import (
    JOINS,
    LOWER_BOUNDS,
    NLL_LOSSES,
    PICKS,
    PRODUCTS,
    SAME_NUMBERS,
    SOFTMAXES,
    is_elementwise,
    keeps_numbers,
)
from precgui.engine.overflowing_casts import OverflowingCasts
from precgui.engine.shadow.origin import line_of_user
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import as_list, graph_task, transform_level, tree_map
from precgui.engine.vanished_epsilons import OF_SMALL, VanishedEpsilons
from precgui.engine.watcher import Facts, OperationCall, Watcher

_PLAIN = (Tensor, nn.Parameter)
_NARROW = (*SHORT_DTYPES, *FLOAT8_DTYPES)
_MOST = 2**24  # elements of a tensor that is computed again
_NORMAL = 2.0**-14  # the smallest number of FP16 with all its digits
_MOSTLY = 0.5  # of the results
_EXACT = {  # operations whose result holds no number that is not among their operands
    *PICKS, *JOINS, *(SAME_NUMBERS - {"_to_copy"}), "relu", "where", "sort", "topk", "max", "min", "amax", "amin",
    "neg", "abs", "repeat", "flip", "roll", "threshold",
}  # fmt: skip
_REPEATED = {  # beside those that are elementwise: they write to no operand, also not against their schema
    *PRODUCTS, *_EXACT, *NLL_LOSSES, *SOFTMAXES, "_log_softmax", "sum", "mean", "prod", "var", "std", "var_mean",
    "std_mean", "logsumexp", "cumsum", "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "kl_div", "linalg_vector_norm", "norm", "native_layer_norm", "_fused_rms_norm",
    "native_group_norm", "_to_copy", "avg_pool2d", "_adaptive_avg_pool2d", "_cdist_forward", "scatter_add", "index_add",
    "full", "scalar_tensor", "log_sigmoid_forward",
}  # fmt: skip
_EXPONENTIALS = {"exp", "exp2"}
_BOUNDED = 0.1  # of the sums of exponentials


@dataclass(frozen=True)
class _Beside:
    """A tensor as FP32 makes it, and the first operation that rounded one of its numbers to 0, 1 or Inf."""

    wide: Tensor
    operation: str
    kind: str  # `overflow` or `zero` (a one, too)
    format: str
    module: str | None
    line: str = ""  # of the user's that ran it


class FiniteInFp32(Watcher):
    """Told of each operation outside of the optimizer, those of a backward pass, too.

    An operation whose result in 16 bits is 0, 1 or not finite where FP32 computes another number is computed in FP32 as
    well, and so is what follows from it, as long as that differs so. No random numbers are drawn. An epsilon that is
    0 in FP16 is noted where it is divided by, or its root or logarithm is taken; and Inf of an overflow where it makes
    most of a result 0 that FP32 and FP16 could hold, as 1 / Inf does in a norm. So is a sum of exponentials that is 0
    in FP16 alone, where a lower bound in its place is divided by, or its logarithm is taken. Of a backward pass only
    the operations that make a gradient Inf in FP16 of finite numbers are computed again, each by itself. A cast to FP8
    of finite numbers that gives Inf or NaN is noted anywhere, and followed as the others are.
    """

    fact = "finite_in_fp32"

    def __init__(self) -> None:
        super().__init__()
        self._beside = TensorMarks[_Beside]()
        self._epsilons = VanishedEpsilons()
        self._bounds = TensorMarks[tuple[_Beside, float]]()  # in place of sums that are 0: what made them so, how many
        self._bounded: dict[Hashable, dict[str, Any]] = {}
        self._casts = OverflowingCasts()

    def begin(self, step: int) -> None:
        super().begin(step)
        self._casts.clear()
        self._epsilons.clear()

    def end(self) -> None:
        super().end()
        self._casts.clear()
        self._epsilons.clear()

    @torch.no_grad()
    def observe(self, call: OperationCall) -> None:
        if transform_level() is not None:
            return
        func, name, args, kwargs, out, module, _ = call
        cast = self._casts.observe(name, args, out)
        if cast is not None:
            self._note_cast(cast, module)
        if graph_task() != -1:
            self._gradient(func, name, args, kwargs, out)
            return
        self._epsilon(func, call.base, args, out, module)
        self._read_bound(func, name, args, out, module)
        first = out[0] if isinstance(out, list | tuple) and out else out
        if type(first) not in _PLAIN or not first.is_floating_point() or first.numel() > _MOST or first.is_meta:
            return
        known = self._known(args)
        if known is None and cast is None and not self._may_round(func, name, args, first):
            return
        if not _may_repeat(func, name):
            self._beside.forget(first)
            return
        wide = func(*tree_map(self._widened, args), **tree_map(self._widened, kwargs))
        if known is not None and (name in LOWER_BOUNDS or name == "add"):
            self._bound(args[0], first, wide, known)
        for low, other in zip(as_list(out), as_list(wide), strict=False):
            if type(low) in _PLAIN and low.is_floating_point() and low.shape == other.shape:
                self._keep(name, low, other, known, module, lambda: func(*tree_map(_own, args), **kwargs))

    def _known(self, args: Any) -> _Beside | None:
        if not self._beside:
            return None
        parts = [part for each in args for part in as_list(each)]
        return next((mark for each in parts if (mark := self._beside.get(each)) is not None), None)

    @staticmethod
    def _may_round(func: Any, name: str, args: Any, out: Tensor) -> bool:
        """Whether this operation rounds to 16 bits, and made a number of which nothing or not much is left."""
        if out.dtype not in SHORT_DTYPES or func.is_view or name in _EXACT or not args:
            return False
        numbers = out.detach()
        if not math.isfinite(numbers.sum(dtype=torch.float32)) and not bool(numbers.isfinite().all()):
            return True  # the sum, which is cheaper, overflows at times where no number does
        if name in PRODUCTS:
            return False
        sizes = numbers.abs()
        return bool((sizes == 0).any()) or bool((sizes == 1).any())

    def _widened(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            known = self._beside.get(value)
            if known is not None:
                return known.wide
            return value.detach().float() if value.dtype in _NARROW else value.detach()
        return torch.float32 if value in _NARROW and isinstance(value, torch.dtype) else value

    def _keep(
        self, name: str, low: Tensor, wide: Tensor, known: _Beside | None, module: str | None, own: Callable[[], Any]
    ) -> None:
        """Keep what FP32 makes of a result where that differs so; `own` computes it in FP32 from the same operands."""
        numbers, other = low.detach().float(), wide.float()
        ended = ~numbers.isfinite() & other.isfinite()
        vanished = ((numbers == 0) | (numbers.abs() == 1)) & (numbers != other) & other.isfinite()
        if not bool((ended | vanished).any()):
            self._beside.forget(low)
            return
        here = _Beside(wide, name, "overflow" if bool(ended.any()) else "zero", dtype_name(low.dtype), module, _line())
        if known is not None and here.kind == "overflow" and known.kind == "zero" and low.dtype in SHORT_DTYPES:
            again = own()
            known = None if isinstance(again, Tensor) and bool(again.isfinite()[ended].all()) else known
        self._beside[low] = here if known is None else replace(known, wide=wide)
        if known is not None and known.kind == "overflow" and not bool(ended.any()):
            lost = (numbers == 0) & (other.abs() >= _NORMAL) & other.isfinite()
            if float(lost.sum()) > _MOSTLY * low.numel():
                self._note(("hidden", known.module), known, name, float(other.abs().max()), module)
        if low.numel() == 1 and bool(ended.all()):
            self._note(("loss", self._step), known or here, name, float(other), module)

    def _note(self, key: tuple[Any, ...], known: _Beside, operation: str, value: float, module: str | None) -> None:
        if key not in self._rows and self._has_room(key):
            self._rows[key] = {
                "use": key[0], "kind": known.kind, "made_by": known.operation.removeprefix("_"),
                "made_in": known.module, "operation": operation, "format": known.format, "value": value,
                "module": module, "line": known.line, "step": self._step,
            }  # fmt: skip

    def _note_cast(self, cast: dict[str, Any], module: str | None) -> None:
        """Keep the first cast of a forward and of a backward pass that overflows."""
        key = "cast", graph_task() != -1
        if key not in self._rows and self._has_room(key):
            self._rows[key] = {
                "use": "cast", "kind": "overflow", "made_by": "to_copy", "made_in": module, "operation": "to_copy",
                "module": module, "line": _line(), "step": self._step, "backward": key[1], **cast,
            }  # fmt: skip

    def _bound(self, operand: Any, low: Tensor, wide: Tensor, known: _Beside) -> None:
        """Follow a lower bound that takes the place of sums of exponentials which are 0, and more than it in FP32."""
        is_sum = known.kind == "zero" and known.operation in _EXPONENTIALS and isinstance(operand, Tensor)
        if not is_sum or operand.shape != low.shape or wide.shape != low.shape:
            return
        floor = low.detach().float()
        share = float(((operand == 0) & (floor > 0) & (wide.float() > 2 * floor)).float().mean())
        if share > _BOUNDED:
            self._bounds[low] = known, share

    def _read_bound(self, func: Any, name: str, args: Any, out: Any, module: str | None) -> None:
        operand = args[1] if name == "div" and len(args) > 1 else args[0] if args else None
        if not self._bounds or (bound := self._bounds.get(operand)) is None:
            return
        known, share = bound
        if isinstance(out, Tensor) and keeps_numbers(func, name):
            self._bounds[out] = bound
        if name != "div" and name not in OF_SMALL:
            return
        key = known.format, known.operation, module
        before = self._bounded.get(key)
        if before is None and len(self._bounded) >= self.most_rows:
            return
        count = 1 if before is None else before["count"] + (before["step"] != self._step)
        self._bounded[key] = {
            "operation": "bounded_sum", "format": known.format, "share": share, "made_by": known.operation,
            "largest": 0.0, "module": known.module, "step": self._step, "count": count,
        }  # fmt: skip

    def facts(self) -> Facts:
        return super().facts() | {"lost_values": list(self._bounded.values())}

    def _gradient(self, func: Any, name: str, args: Any, kwargs: Any, out: Any) -> None:
        """Note a gradient that FP16 made Inf out of finite numbers: of the passes seen, that with the least in FP32."""
        if type(out) not in _PLAIN or out.dtype is not torch.float16 or out.numel() > _MOST or out.is_meta:
            return
        if not _may_repeat(func, name) or bool(out.isfinite().all()):
            return
        wide = func(*tree_map(_own, args), **tree_map(self._widened, kwargs))
        if not bool(wide.isfinite().all()):
            return
        value, known = float(wide.abs().max()), self._rows.get(("gradient",))
        if known is None or (value < known["value"] and known["step"] != self._step):
            self._rows.pop(("gradient",), None)
            here = _Beside(wide, name, "overflow", "fp16", None)
            self._note(("gradient",), here, name, value, None)

    def _epsilon(self, func: Any, name: str, args: Any, out: Any, module: str | None) -> None:
        epsilon = self._epsilons.observe(func, name, args, out)
        if epsilon is not None:
            known = _Beside(out, "epsilon", "zero", "fp16", module, _line())
            self._note(("epsilon", name, module), known, name, epsilon, module)


def _line() -> str:
    """That of the user's which runs; '' where none is known."""
    line = line_of_user()
    return line.label if line.number else ""


def _may_repeat(func: Any, name: str) -> bool:
    """Whether an operation only computes: it draws no random numbers, and changes no statistics."""
    if func._schema.is_mutable or torch.Tag.nondeterministic_seeded in func.tags:
        return False
    return bool(func.is_view or is_elementwise(func) or name in _REPEATED)


def _own(value: Any) -> Any:
    return value.detach().float() if isinstance(value, Tensor) and value.dtype in _NARROW else value
