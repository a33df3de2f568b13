"""Numbers that single operations of a step lose in 16 bits: terms that vanish in a sum, results below the range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from precgui.engine.dtype_names import SHORT_DTYPES, dtype_name
from precgui.engine.torch_private import graph_task, packet_name, tree_leaves, tree_map

_SUMS = ("aten.add", "aten.add_", "aten.sub", "aten.sub_")
_ELEMENTWISE = {
    f"aten.{prefix}{name}{suffix}"
    for name in ("add", "sub", "mul", "div", "addcmul", "addcdiv", "lerp", "sqrt", "pow")
    for prefix in ("", "_foreach_")
    for suffix in ("", "_")
} | {"aten._to_copy", "aten.copy_"}
LOOP = "(loop)"  # stands for a module where an operation ran outside of the model
_DAMAGED = 1 / 64  # relative error of an element that rounding in range stays far below, in either format
After = Callable[[Any], None]  # called with the result of the operation


@dataclass
class _Additions:
    calls: int = 0
    elements: int = 0
    swallowed: int = 0
    format: str = ""


class LostDigits:
    """Asked before each operation; what it returns is called with the result. Counts, and changes nothing."""

    def __init__(self) -> None:
        self._additions: dict[str, _Additions] = {}  # by module
        self._passes: dict[str, int] = {}  # calls of each module
        self._optimizer = {"elements": 0, "damaged": 0}
        self._worst: tuple[float, str, str] = (0.0, "", "")  # share of one operation, its name, its format

    def called(self, module: str) -> None:
        """A forward pass of this module begins."""
        self._passes[module] = self._passes.get(module, 0) + 1

    def before(self, func: Any, args: Any, kwargs: Any, module: str | None, *, in_optimizer: bool) -> After | None:
        """An operation is about to run, in the forward pass of `module`, None outside, or in an optimizer."""
        name = packet_name(func)
        if in_optimizer:
            return self._in_optimizer(func, name, args, kwargs) if name in _ELEMENTWISE else None
        if name not in _SUMS or graph_task() != -1 or not (module is None or torch.is_grad_enabled()):
            return None
        if len(args) < 2 or not isinstance(args[0], Tensor):
            return None
        a, b = args[:2]
        if not (isinstance(b, Tensor) and a.dtype in SHORT_DTYPES and b.dtype == a.dtype):
            return None
        if module is not None and min(a.numel(), b.numel()) < 2:
            return None
        a = a.clone() if name.endswith("_") else a

        def after(out: Tensor) -> None:
            counts = self._additions.setdefault(
                LOOP if module is None else module, _Additions(format=dtype_name(a.dtype))
            )
            both = (a != 0) & (b != 0) & out.isfinite()  # Inf plus a number is no rounding
            counts.calls += 1
            counts.elements += int(both.sum())
            counts.swallowed += int((both & ((out == a) | (out.abs() == b.abs()))).sum())

        return after

    def _in_optimizer(self, func: Any, name: str, args: Any, kwargs: Any) -> After | None:
        """Compares a result of an optimizer in FP16 with that of the same operation on the same operands in FP32."""
        written = kwargs.get("dtype") if name == "aten._to_copy" else None
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
            self._worst = max(self._worst, (damaged / elements, name.removeprefix("aten."), "fp16"))

    def facts(self) -> dict[str, Any]:
        """`additions`: by module, in 16 bits; `optimizer`: elements of its FP16 results. Keys without a count are left
        out; see docs/run-file.md."""
        rows = {
            module or "(model)": {
                "format": each.format, "per_pass": each.calls / max(self._passes.get(module, 1), 1),
                "elements": each.elements, "swallowed": each.swallowed / each.elements,
            }
            for module, each in self._additions.items() if each.elements
        }  # fmt: skip
        share, operation, fmt = self._worst
        count = self._optimizer["elements"]
        lost = {"share": self._optimizer["damaged"] / max(count, 1), "elements": count, "format": fmt,
                "operation": operation, "operation_share": share}  # fmt: skip
        return ({"additions": rows} if rows else {}) | ({"optimizer_loss": lost} if count else {})


def _wide(value: Any) -> Any:
    """16-bit tensors and their type as FP32; other tensors as copies, since an operation may write to them."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in SHORT_DTYPES else value.clone()
    return torch.float32 if value in SHORT_DTYPES else value
