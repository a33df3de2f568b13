"""Numbers that single operations of a step lose in 16 bits: terms that vanish in a sum, results below the range."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from precgui.engine.dtype_names import SHORT_DTYPES, dtype_name
from precgui.engine.operation_names import CASTS, SUMS, UPDATES, base_of, cast_operand
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import graph_task, operation_name, tree_leaves, tree_map

_SUMS = SUMS - {"rsub"}
_OF_OPTIMIZERS = UPDATES | {"sqrt", "pow"}  # of tensors or of lists of them
_SCATTERED = {"index_add", "scatter_add", "index_put", "scatter_reduce"}
LOOP = "(loop)"  # stands for a module where an operation ran outside of the model
_DAMAGED = 1 / 64  # relative error of an element that rounding in range stays far below, in either format
_Reference = weakref.ref[Tensor]
After = Callable[[Any], None]  # called with the result of the operation


@dataclass
class _Additions:
    calls: int = 0
    elements: int = 0
    swallowed: int = 0
    format: str = ""


@dataclass
class _Scattered:
    """Of terms that are added at places of an index: sums of magnitudes, and the element that lost most."""

    operation: str
    format: str
    elements: int = 0
    total: float = 0.0
    lost: float = 0.0
    exact: float = 0.0
    value: float = 0.0


class LostDigits:
    """Asked before each operation; what it returns is called with the result. Counts, and changes nothing."""

    def __init__(self) -> None:
        # By numbers in FP32 those in 16 bits that they were, while `FiniteInFp32` has FP32 by numbers in 16 bits: of
        # what was cast from there, and of sums in FP32 of a term that is in 16 bits, or was: that one, not kept alive.
        self._widened, self._wide_sums = TensorMarks[_Reference](), TensorMarks[_Reference]()
        self._additions: dict[str, _Additions] = {}  # by module
        self._scattered: dict[str, _Scattered] = {}  # by module
        self._passes: dict[str, int] = {}  # calls of each module
        self._optimizer = {"elements": 0, "damaged": 0}
        self._worst: tuple[float, str, str] = (0.0, "", "")  # share of one operation, its name, its format

    def called(self, module: str) -> None:
        """A forward pass of this module begins."""
        self._passes[module] = self._passes.get(module, 0) + 1

    def before(self, func: Any, args: Any, kwargs: Any, module: str | None, *, in_optimizer: bool) -> After | None:
        """An operation is about to run, in the forward pass of `module`, None outside, or in an optimizer."""
        name = operation_name(func)
        base = base_of(name)
        if in_optimizer:
            is_known = name in CASTS or base.removeprefix("_foreach_") in _OF_OPTIMIZERS
            return self._in_optimizer(func, name, args, kwargs) if is_known else None
        if base in _SCATTERED:
            return self._scatters(func, name, args, kwargs, module)
        if graph_task() != -1 or not (module is None or torch.is_grad_enabled()):
            return None
        place = LOOP if module is None else module
        if name in CASTS:  # without a gradient, weights are written back, perhaps with a compensation
            return self._casts(name, args, kwargs, place) if torch.is_grad_enabled() else None
        if base not in _SUMS or len(args) < 2 or not (isinstance(args[0], Tensor) and isinstance(args[1], Tensor)):
            return None
        a, b = args[:2]
        if module is not None and min(a.numel(), b.numel()) < 2:
            return None
        if not (a.dtype in SHORT_DTYPES and b.dtype == a.dtype):
            return self._adds_in_fp32(a, b) if not name.endswith("_") else None
        return self._count(place, a.clone() if name.endswith("_") else a, b)

    def _count(self, place: str, a: Tensor, b: Tensor) -> After:
        """Counts the elements of a sum in the format of `a` that are those of one of its terms."""

        def after(out: Tensor) -> None:
            counts = self._additions.setdefault(place, _Additions(format=dtype_name(a.dtype)))
            both = (a != 0) & (b != 0) & out.isfinite()  # Inf plus a number is no rounding
            counts.calls += 1
            counts.elements += int(both.sum())
            counts.swallowed += int((both & ((out == a) | (out.abs() == b.abs()))).sum())

        return after

    def _adds_in_fp32(self, a: Tensor, b: Tensor) -> After | None:
        """Remembers a sum in FP32 of a term that is in 16 bits, or was: it may be cast back, which rounds it."""
        short = next((own for each in (a, b) if (own := self._short(each)) is not None), None)
        if short is None or a is b:
            return None
        shape, reference = short.shape, weakref.ref(short)

        def after(out: Tensor) -> None:
            if out.shape == shape and out.dtype not in SHORT_DTYPES:
                self._wide_sums[out] = reference

        return after

    def _short(self, tensor: Tensor) -> Tensor | None:
        """The numbers of a tensor in 16 bits, where it has them from there."""
        if tensor.dtype in SHORT_DTYPES:
            return tensor
        reference = self._widened.get(tensor)
        return reference() if reference is not None else None

    def _casts(self, name: str, args: Any, kwargs: Any, place: str) -> After | None:
        """Follows what is widened, and counts what is lost where a sum goes back to the format of its term."""
        source, is_written = cast_operand(name, args), name == "copy_"
        target = args[0].dtype if is_written else kwargs.get("dtype")
        if not isinstance(source, Tensor):
            return None
        known = self._wide_sums.get(source)
        short = known() if known is not None else None
        if short is not None and target == short.dtype:
            return self._count(place, short.clone() if is_written else short, source - short.float())
        if is_written or source.dtype not in SHORT_DTYPES or target in SHORT_DTYPES:
            return None
        reference = weakref.ref(source)

        def after(out: Tensor) -> None:
            self._widened[out] = reference

        return after

    def _scatters(self, func: Any, name: str, args: Any, kwargs: Any, module: str | None) -> After | None:
        """Compares a sum at places of an index in 16 bits with that of the same terms in FP32."""
        terms = _terms(name, args, kwargs)
        if graph_task() != -1 or terms is None or not (module is None or torch.is_grad_enabled()):
            return None
        wide_args, wide_kwargs = tree_map(_wide, (args, kwargs))
        exact = func(*wide_args, **wide_kwargs)
        begin = wide_args[0] if not name.endswith("_") else args[0].float()

        def after(out: Tensor) -> None:
            known = out.isfinite() & exact.isfinite()
            lost = torch.where(known, (out.float() - exact).abs(), 0.0)
            counts = self._scattered.setdefault(
                LOOP if module is None else module, _Scattered(name, dtype_name(out.dtype))
            )
            counts.elements += terms.numel()
            counts.total += sum(float(each.float().abs().nan_to_num(0.0, 0.0, 0.0).sum()) for each in (terms, begin))
            counts.lost += float(lost.sum())
            place = int(lost.argmax()) if lost.numel() else -1
            if place >= 0 and float(lost.reshape(-1)[place]) > abs(counts.exact - counts.value):
                counts.exact, counts.value = float(exact.reshape(-1)[place]), float(out.reshape(-1)[place])

        return after

    def _in_optimizer(self, func: Any, name: str, args: Any, kwargs: Any) -> After | None:
        """Compares a result of an optimizer in FP16 with that of the same operation on the same operands in FP32."""
        written = kwargs.get("dtype") if name == "_to_copy" else None
        operands = [each for each in tree_leaves(args) if isinstance(each, Tensor)]
        if written is not torch.float16 and not (operands and operands[0].dtype is torch.float16):
            return None
        wide_args, wide_kwargs = tree_map(_wide, (args, kwargs))
        wide = func(*wide_args, **wide_kwargs)
        wide = wide_args[0] if wide is None else wide  # lists in place

        def after(out: Any) -> None:
            results = args[0] if out is None else out
            pairs = zip(tree_leaves(results), tree_leaves(wide), strict=True)
            self._compare(name, [(own, exact) for own, exact in pairs if own.dtype is torch.float16])

        return after

    def _compare(self, name: str, pairs: list[tuple[Tensor, Tensor]]) -> None:
        elements = damaged = 0
        for own, exact in pairs:
            known = (exact != 0) & exact.isfinite()
            elements += int(known.sum())
            damaged += int((known & ~((own.float() - exact).abs() <= _DAMAGED * exact.abs())).sum())
        self._optimizer["elements"] += elements
        self._optimizer["damaged"] += damaged
        if elements:
            self._worst = max(self._worst, (damaged / elements, name, "fp16"))

    def facts(self) -> dict[str, Any]:
        """`additions` and `scattered`: by module, in 16 bits; `optimizer`: elements of its FP16 results. Keys without a
        count are left out; see docs/run-file.md."""
        rows = {
            module or "(model)": {
                "format": each.format, "per_pass": each.calls / max(self._passes.get(module, 1), 1),
                "elements": each.elements, "swallowed": each.swallowed / each.elements,
            }
            for module, each in self._additions.items() if each.elements
        }  # fmt: skip
        scattered = {
            module or "(model)": {
                "format": each.format, "operation": each.operation, "per_pass": 1.0, "elements": each.elements,
                "swallowed": each.lost / each.total, "exact": each.exact, "value": each.value,
            }
            for module, each in self._scattered.items() if each.lost and each.total
        }  # fmt: skip
        share, operation, fmt = self._worst
        count = self._optimizer["elements"]
        lost = {"share": self._optimizer["damaged"] / max(count, 1), "elements": count, "format": fmt,
                "operation": operation, "operation_share": share}  # fmt: skip
        told = {"additions": rows, "scattered": scattered, "optimizer_loss": lost if count else {}}
        return {name: each for name, each in told.items() if each}


def _terms(name: str, args: Any, kwargs: Any) -> Tensor | None:
    """The terms that an operation adds up in 16 bits, None where it does something else."""
    if not args or not isinstance(args[0], Tensor) or args[0].dtype not in SHORT_DTYPES:
        return None
    if "index_put" in name:
        result, is_sum = args[2], (args[3] if len(args) > 3 else kwargs.get("accumulate", False))
    else:
        result, is_sum = args[3] if len(args) > 3 else None, "reduce" not in name or "sum" in args[4:]
    return result if is_sum and isinstance(result, Tensor) and result.numel() > 1 else None


def _wide(value: Any) -> Any:
    """16-bit tensors and their type as FP32; other tensors as copies, since an operation may write to them."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in SHORT_DTYPES else value.clone()
    return torch.float32 if value in SHORT_DTYPES else value
