"""Numbers that a loop rounds to 8 bits or to integers by itself, and how many of its activations that clips."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.dtype_names import FLOAT8_DTYPES, dtype_name
from precgui.engine.operation_names import CASTS, CLAMPS, EXTREMES, ROUNDINGS, SAME_NUMBERS, cast_operand
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.watcher import OperationCall, Watcher

_EIGHT_BITS = {torch.int8, torch.uint8, *FLOAT8_DTYPES, torch.float8_e8m0fnu}
_ACTIVATIONS = {
    "tanh", "sigmoid", "gelu", "silu", "elu", "leaky_relu", "softplus", "mish", "relu", "_softmax",
}  # fmt: skip
_SCALING = {"div", "mul", *SAME_NUMBERS}
_CLIPPING = {*CLAMPS, *EXTREMES, "hardtanh"}
_CODING = {"bucketize", "searchsorted", "argmin"}  # to the places of a table
_SHORT = 2  # bytes
_FEWEST = 64  # numbers of a tensor, that a share means something


@dataclass(frozen=True)
class _Scaled:
    """Results of an activation function, or inputs of the model, times a scale: which of them made them, whether they
    were rounded to integers, and what clipping did to them."""

    of_relu: bool = False
    of_input: bool = False
    is_rounded: bool = False
    clipped: tuple[float, float, float, float, float] | None = None  # share, lost, largest, lowest and highest kept


class QuantisedValues(Watcher):
    """Told of each operation, those of optimizers, too.

    Sums and products are not followed: a clamp of theirs is an activation function, as ReLU6 is. Nor is that of a ReLU
    which is rounded to integers (a learned limit, PACT), nor one of the data that leaves out negative ones.
    """

    fact = "quantised_values"

    def __init__(self) -> None:
        super().__init__()
        self._made = TensorMarks[_Scaled | bool]()  # True: made in the model of what learns, False: of else

    @torch.no_grad()
    def observe(self, call: OperationCall) -> None:
        name, args, out, module = call.base, call.args, call.out, call.module
        first, in_optimizer = args[0], call.in_optimizer
        if not isinstance(first, Tensor) or not first.is_floating_point():
            return
        if "fake_quant" in name and module is not None and not in_optimizer:
            self._note_fake(first, out[0] if isinstance(out, tuple) else out, module)
            return
        if not isinstance(out, Tensor):
            return
        is_cast = call.name in CASTS and out.dtype in _EIGHT_BITS
        known = self._of(first) if module is not None and not in_optimizer else None
        is_learned = first.requires_grad or self._made.get(first) is True  # autograd functions hide that a result is
        learns = is_learned or (known is not None and known.clipped is not None)
        if is_cast or (name in ROUNDINGS and learns and module is not None):
            to_float = is_cast and out.is_floating_point()
            counts = known if known is not None and (to_float or not known.of_relu) else None
            self._note(module, in_optimizer, dtype_name(out.dtype) if is_cast else name, counts)
        if module is None or in_optimizer:
            return
        self._made[out] = self._next(name, call.func, args, out, known) or (is_learned and name != "detach")
        after = self._made.get(out)
        if name in _CLIPPING and isinstance(after, _Scaled) and after.is_rounded and not after.of_relu:
            self._note(module, in_optimizer, "round", after)

    def _note_fake(self, first: Tensor, out: Any, module: str) -> None:
        """Note an operation of torch that clips and rounds at once, to the range that its results reach."""
        known = self._of(first)
        if not isinstance(out, Tensor) or known is None or out.shape != first.shape or not len(out):
            return
        lost = _lost(first, first.clamp(out.min(), out.max()))
        after = replace(known, is_rounded=True, clipped=max(lost, known.clipped or (0.0,) * 5))
        self._made[out] = after
        if not known.of_relu:
            self._note(module, False, "fake_quantize", after)

    def _of(self, value: Tensor) -> _Scaled | None:
        """Of inputs of the model nothing is known; what has a gradient was made by something else."""
        made = self._made.get(value)
        if made is None and not value.requires_grad and not isinstance(value, nn.Parameter):
            return _Scaled(of_input=True) if value.numel() >= _FEWEST else None
        return made if isinstance(made, _Scaled) else None

    def _next(self, name: str, func: Any, args: Any, out: Tensor, known: _Scaled | None) -> _Scaled | bool:
        if name in _ACTIVATIONS:
            return _Scaled(of_relu=name == "relu") if out.numel() >= _FEWEST else False
        if known is None:
            return False
        if name in ROUNDINGS:
            return replace(known, is_rounded=True)
        if name in _CLIPPING and out.shape == args[0].shape:
            return replace(known, clipped=max(_lost(args[0], out), known.clipped or (0.0,) * 5))
        factor = args[1] if len(args) > 1 else None
        is_scale = not isinstance(factor, Tensor) or factor.numel() < out.numel()
        return known if func.is_view or (name in _SCALING and is_scale) else False

    def _note(self, module: str | None, in_optimizer: bool, operation: str, known: _Scaled | None) -> None:
        place = (None if in_optimizer else module), in_optimizer
        share, lost, largest, lowest, highest = (known.clipped if known else None) or (0.0,) * 5
        if known is not None and known.of_input and lowest >= 0:  # data that are made positive, as by a ReLU
            share, lost = 0.0, 0.0
        before = self._rows.get(place)
        if not self._has_room(place):
            return
        if before is not None and before["step"] == self._step and before["share"] >= share:
            return
        self._rows[place] = {
            "module": place[0], "optimizer": in_optimizer, "operation": operation, "step": self._step, "share": share,
            "lost": lost, "largest": largest, "lowest": lowest, "highest": highest,
        }  # fmt: skip


class RoundingSteps(Watcher):
    """Told of each operation of optimizers: which round numbers to whole ones, to a table, to 16 bits or fewer, or by
    their bits, whatever they keep."""

    fact = "narrow_state"

    def observe(self, call: OperationCall) -> None:
        name, out = call.base, call.out
        operand = cast_operand(call.name, call.args) if call.name in CASTS else call.args[0]
        if not (call.in_optimizer and isinstance(operand, Tensor) and isinstance(out, Tensor)):
            return
        is_number = operand.is_floating_point() and operand.numel() >= _FEWEST and out.dtype is not torch.bool
        is_short = call.name in CASTS and out.dtype.itemsize < operand.dtype.itemsize and (
            out.dtype.itemsize <= _SHORT or not out.is_floating_point()
        )  # fmt: skip
        is_bits = (call.func is torch.ops.aten.view.dtype or name == "_to_copy") and not out.is_floating_point()
        key = name, out.dtype
        if is_number and (is_short or is_bits or name in ROUNDINGS or name in _CODING) and self._has_room(key):
            self._rows.setdefault(key, {"operation": name, "format": dtype_name(out.dtype), "step": self._step})


def _lost(before: Tensor, after: Tensor) -> tuple[float, float, float, float, float]:
    """The share of the numbers other than zero that lose more than half of their size, the norm of all that is lost
    over their norm, the largest magnitude before, and the least and the largest number after."""
    own, kept = before.detach().float(), after.detach().float()
    there, off = own != 0, (kept - own).abs()
    share = ((off > 0.5 * own.abs()) & there).sum() / there.sum().clamp(min=1)
    norm = off.norm() / own.norm().clamp(min=1e-30)
    numbers = torch.stack([share, norm, own.abs().max(), kept.min(), kept.max()])
    part, lost, largest, lowest, highest = numbers.tolist()
    return part, lost, largest, lowest, highest
