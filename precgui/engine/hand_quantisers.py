"""Weights that a loop rounds to few integers by itself: how many of them remain, and how far off the result is."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.operation_names import AFFINE, CLAMPS, EXTREMES, ROUNDINGS
from precgui.engine.telemetry.readable import address_of
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.watcher import Facts, OperationCall, Watcher

_ELEMENTWISE = {*AFFINE, *CLAMPS, *EXTREMES, "neg", "where", "nan_to_num", "reciprocal"}
_FEWEST = 64  # weights of a tensor, that a share means something
_MOST_STEPS = 8


@dataclass(frozen=True)
class _Weights:
    """A tensor computed from a parameter, elementwise. `there`: where it was not zero when it was rounded to integers,
    as pruned weights are; None before."""

    name: str
    source: Tensor
    there: Tensor | None


class HandQuantisers(Watcher):
    """Told of each operation outside of the optimizer.

    What follows from rounded weights is compared with them as long as it has their shape: the closest result counts,
    which is that in units of the weights.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = weakref.ref(model)
        self._stored: dict[int, tuple[str, Tensor]] = {}  # by address
        self._marks = TensorMarks[_Weights]()
        self._best: dict[str, tuple[float, float]] = {}  # relative error, share that is not zero
        self._found: dict[str, list[dict[str, Any]]] = {}
        self._flat: dict[str, dict[str, Any]] = {}  # by module

    def begin(self, step: int) -> None:
        super().begin(step)
        model = self._model()
        named = model.named_parameters() if model is not None else ()
        self._stored = {
            address_of(own): (name, own.detach())
            for name, own in named if own.is_floating_point() and own.numel() >= _FEWEST and own.requires_grad
        }  # fmt: skip

    def end(self) -> None:
        super().end()
        for name, (error, kept) in self._best.items():
            rows = self._found.setdefault(name, [])
            if len(rows) < _MOST_STEPS:
                rows.append({"step": self._step, "error": error, "kept": kept})
        self._best.clear()
        self._stored.clear()

    @torch.no_grad()
    def observe(self, call: OperationCall) -> None:
        name, args, out = call.base, call.args, call.out
        if not isinstance(out, Tensor) or not out.is_floating_point():
            return
        if name in (*ROUNDINGS, "sign") and call.module is not None and isinstance(args[0], Tensor):
            self._note_activation(name, args[0], call.module)
        fake = name.startswith("fake_quantize") or name == "quantize"
        if not (call.keeps_numbers or name in _ELEMENTWISE or name in ROUNDINGS or fake):
            return
        marks = [mark for each in args if (mark := self._of(each)) is not None]
        known = next((mark for mark in marks if mark.there is not None), marks[0] if marks else None)
        if known is None or out.numel() != known.source.numel():
            return
        if known.there is None and (name in ROUNDINGS or fake):
            there = (known.source != 0) & (args[0].detach().reshape(known.source.shape) != 0)
            known = replace(known, there=there)
        self._marks[out] = known
        if known.there is not None:
            self._compare(known.name, known.source.float() * known.there, out, known.there)

    def _note_activation(self, name: str, operand: Tensor, module: str) -> None:
        """Note a rounding through which a gradient is asked for, outside of weights: its derivative is zero."""
        if operand.requires_grad and self._of(operand) is None and len(self._flat) < _MOST_STEPS:
            self._flat.setdefault(module, {"module": module, "operation": name, "step": self._step})

    def _of(self, value: Any) -> _Weights | None:
        if not isinstance(value, Tensor):
            return None
        if (known := self._marks.get(value)) is not None:
            return known
        stored = self._stored.get(address_of(value))
        return _Weights(*stored, None) if stored is not None and value.numel() == stored[1].numel() else None

    def _compare(self, name: str, own: Tensor, out: Tensor, there: Tensor) -> None:
        result = out.detach().float().reshape(own.shape) * there
        count, size = float(there.sum()), float(own.norm())
        if not count or not size > 0:
            return
        error, kept = float((result - own).norm()) / size, float((result != 0).sum()) / count
        if error < self._best.get(name, (float("inf"), 0.0))[0]:
            self._best[name] = error, kept

    def facts(self) -> Facts:
        """A row for each tensor, and one for each module that rounds what has a gradient."""
        rows: list[dict[str, Any]] = [{"tensor": name, "steps": steps} for name, steps in self._found.items()]
        rows.sort(key=lambda row: float(row["steps"][-1]["kept"]))
        return {"rounded_weights": rows[:_MOST_STEPS], "rounded_activations": list(self._flat.values())}
