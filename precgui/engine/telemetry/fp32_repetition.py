"""A forward pass in 16 bits that was not finite, repeated in FP32: it tells whether precision is to blame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine import census
from precgui.engine.telemetry.kept_state import KeptState
from precgui.engine.telemetry.readable import floats, readable, unseen
from precgui.engine.telemetry.second_pass import CannotRepeat, SecondPass, is_short, second_pass
from precgui.engine.torch_private import BatchNormNd, TorchDispatchMode, tree_map
from precgui.sentences import L_, Sentence, message_of

_MOST = 8  # repetitions that are kept of a run
_PAUSE_STEPS = 16  # after a repetition in a step whose loss was finite; twice as many after each further one


@dataclass(frozen=True)
class Repetition:
    """One repeated pass. `finite`: whether it is finite in FP32, with the same weights, inputs and random numbers.

    None where that is not decided; `why` then says why not. `module` is the first whose output was not finite in 16
    bits, `part` what was repeated, `largest` the largest finite magnitude of the outputs in FP32; `cast` the first cast
    to FP8 that made finite numbers NaN or Inf, see `OverflowingCasts`.
    """

    finite: bool | None
    module: str = ""
    largest: float = 0.0
    why: str = ""
    part: str = "forward"
    step: int = 0
    cast: dict[str, Any] | None = None


class Repetitions:
    """The repetitions of a run: those in steps whose loss or gradients were not finite, and the operations that made it
    so in the precision of the run, as `PassWatch.made` gives them."""

    def __init__(self) -> None:
        self._kept: list[Repetition] = []
        self._operations: list[dict[str, Any]] = []
        self._new: Repetition | None = None
        self._operation: dict[str, Any] | None = None
        self._pause, self._next_pause = 0, _PAUSE_STEPS

    @property
    def are_due(self) -> bool:
        return len(self._kept) < _MOST and not self._pause and self._new is None

    @property
    def operation(self) -> dict[str, Any] | None:
        """The operation that made the outputs of this step not finite; None where it is not known."""
        return self._operation

    def begin(self) -> None:
        """A step begins."""
        self._pause, self._new, self._operation = max(self._pause - 1, 0), None, None

    def add(self, repetition: Repetition | None, operation: dict[str, Any] | None = None) -> None:
        """Add that of this step, None where there is nothing to tell."""
        self._new, self._operation = repetition, operation

    def end(self, step: int, *, alarm: bool) -> dict[str, Any]:
        """The facts that this step adds to. `alarm`: its loss or gradients were not finite."""
        new, self._new = self._new, None
        if not alarm:
            if new is not None:
                self._pause, self._next_pause = self._next_pause, 2 * self._next_pause
            return {}
        facts: dict[str, Any] = {}
        if new is not None:
            self._kept.append(replace(new, step=step))
            every = [asdict(each) for each in self._kept]
            facts["fp32_repetition"] = {**every[0], "all": every}
        if self._operation is not None and len(self._operations) < _MOST:
            self._operations.append({**self._operation, "step": step})
            facts["nonfinite_operations"] = {"all": list(self._operations)}
        return facts


class Fp32Arithmetic(TorchDispatchMode):
    """Inside, operations below 32 bits run in FP32, those of autocast included: operands and results are widened.

    `widened`: there were such operations. `rounds`: a result was put into a tensor below 32 bits, or numbers were
    changed as bits, as roundings by hand do.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.widened = self.rounds = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.rounds |= func is torch.ops.aten.view.dtype
        if func.is_view:  # of the memory that others may write to
            return func(*args, **kwargs)
        wide: dict[int, Tensor] = {}
        wide_args, wide_kwargs = tree_map(lambda value: self._widened(value, wide), (args, kwargs))
        results = func(*wide_args, **wide_kwargs)
        owners: dict[int, Tensor] = {}
        for tensor in filter(is_short, _written(func, args, kwargs) if func._schema.is_mutable else ()):
            tensor.copy_(wide[id(tensor)])
            owners[id(wide[id(tensor)])] = tensor
            self.rounds = True
        return tree_map(lambda value: owners[id(value)] if id(value) in owners else self._widened(value, {}), results)

    def _widened(self, value: Any, wide: dict[int, Tensor]) -> Any:
        """The value, a tensor or a dtype below 32 bits as FP32; `wide` holds those of this operation by identity."""
        if is_short(value):
            self.widened = True
            return wide.setdefault(id(value), value.float())
        if isinstance(value, torch.dtype) and value.is_floating_point and value.itemsize < 4:
            self.widened = True
            return torch.float32
        return value


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterable[Any]:
    """The arguments that an operation writes to."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from value if isinstance(value, list | tuple) else [value]


def is_in_16_bits(model: nn.Module) -> bool:
    """Whether a pass of this model that runs now has operations below 32 bits, as far as that can be told from outside:
    by autocast, or by the type of a weight."""
    return census.autocast_now().dtype in ("bf16", "fp16") or any(map(is_short, model.parameters()))


def repeated_in_fp32(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], low: SecondPass, state: KeptState | None = None
) -> Repetition | None:
    """Repeat the forward pass of `low`, which was in the precision of the run, in FP32, from the same `state`.

    None where no operation of it ran below 32 bits, or where nothing but -Inf, as a mask puts it, was not finite.
    """
    module, mode = low.module or "(model)", Fp32Arithmetic()
    try:
        wide = second_pass(model, args, kwargs, mode, state, widened=True)
    except CannotRepeat as reason:
        return Repetition(None, module, why=message_of(reason))
    if not (mode.widened or any(map(is_short, model.parameters()))):
        return None
    if wide.error or low.error:
        why: str = Sentence("the repeated pass raised an exception: {error}", error=wide.error or low.error)
        return Repetition(None, module, why=why)
    with unseen():
        differs, remains = compared(low.outputs, wide.outputs)
        if not differs and not remains:
            return None
        why = _UNDECIDED if differs and remains else _doubt(model, [args, kwargs], mode) if remains else ""
        return Repetition(None if why else differs, module, _largest(wide.outputs), why)


_UNDECIDED = L_("some elements of the outputs are finite in FP32 and others are not")


def compared(low: Any, wide: Any) -> tuple[bool, bool]:
    """Whether elements are finite in one of two results and not in the other, and whether others are not in both.

    An element that is -Inf in FP32 and not finite in the other is left out: a mask puts it there.
    """
    differs = remains = False
    for (_, one), (_, other) in zip(floats(low), floats(wide), strict=False):
        a, b = readable(one), readable(other)
        if a is not None and b is not None and a.shape == b.shape:
            bad, still = ~a.isfinite(), ~b.isfinite()
            differs = differs or bool((bad ^ still).any())
            remains = remains or bool((still & ~(bad & b.isneginf())).any())
    return differs, remains


def _doubt(model: nn.Module, inputs: Any, mode: Fp32Arithmetic) -> str:
    """Why a pass that is not finite in FP32 may still have been broken by 16 bits, before it or inside; '' if not."""
    if not all(_is_finite(parameter) for parameter in model.parameters()):
        return L_("the weights were not finite before the pass")
    if not all(_is_finite(tensor) for _, tensor in floats(inputs)):
        return L_("the inputs of the model were not finite")
    if any(bool((buffer.isnan() | buffer.isposinf()).any()) for buffer in _state(model)):
        return L_("buffers of the model were not finite after the pass")
    return L_("numbers were rounded inside the pass by other means than their type") if mode.rounds else ""


def _state(model: nn.Module) -> Iterable[Tensor]:
    """Buffers that a forward pass for training reads; the statistics of batch norm are not among them."""
    for module in model.modules():
        if not isinstance(module, BatchNormNd):
            yield from (buffer for buffer in module.buffers(recurse=False) if buffer.is_floating_point())


def _is_finite(tensor: Tensor) -> bool:
    values = readable(tensor)
    return values is None or bool(values.isfinite().all())


def _largest(outputs: Any) -> float:
    """The largest finite magnitude."""
    values = (readable(tensor) for _, tensor in floats(outputs))
    finite = (each[each.isfinite()] for each in values if each is not None)
    return max((float(each.abs().max()) for each in finite if each.numel()), default=0.0)
