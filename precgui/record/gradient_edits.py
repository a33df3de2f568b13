"""Gradients that a loop rounds so coarsely between the backward pass and the step that some parameters lose theirs."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from precgui.engine.samples import evenly_spaced, readable_sample
from precgui.engine.telemetry.guard import Guard
from precgui.engine.telemetry.hook import Hook
from precgui.engine.telemetry.parameters import parameters_of
from precgui.engine.telemetry.readable import unseen
from precgui.engine.telemetry.recorder import Weight

_MOST_PARAMETERS, _SAMPLE = 64, 1024  # elements of each, spread over it
_MOST_LEVELS = 300  # magnitudes of numbers of 8 bits, with some for a scale that is computed anew
_FINER = 4  # times as many magnitudes has what the backward pass delivered
_LOST = 0.5  # of the L2 norm of a parameter's gradient
_MIXED = 1.02  # a number that is rounded to 0 may be this much larger than one that is not
_PROPORTIONAL, _CLIPPED = 1e-4, 0.99  # squared relative deviation from a common factor, which is less than that
_MOST_ROWS, _MOST_NAMES = 12, 8


class GradientEdits:
    """Compares, in steps that are watched, a sample of each gradient as autograd left it with what an optimizer gets.

    A factor of all elements makes no difference, as of unscaling and clipping. Noted is a gradient with few magnitudes
    (a code of 8 bits, or FP16) of which some parameters lose half their norm to zeros, and that by a threshold:
    rounding that carries its errors over, or is stochastic, keeps small numbers that it would else make zero.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard, self._step = guard, 0
        self._handles: list[RemovableHandle] = []
        self._names: dict[int, str] = {}
        self._arrived: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}
        self._rows: list[dict[str, Any]] = []
        self._used: list[tuple[weakref.ref[Tensor], Tensor]] = []  # gradients an optimizer has used, with a sample
        self._late: list[dict[str, Any]] = []
        self._cleared: list[dict[str, Any]] = []
        self._places: dict[str, int] = {}  # where each parameter begins in all gradients one after another
        self._whole = 0  # elements of all
        self._messages: dict[str, tuple[Tensor, Tensor, int]] = {}  # delivered, rounded, elements of the whole

    def begin(self, step: int, weights: Iterable[Weight]) -> None:
        """A step that is watched begins."""
        self._step = step
        own = [each for each in weights if each.own.is_leaf and each.own.requires_grad]
        chosen = evenly_spaced(own, _MOST_PARAMETERS)
        self._places, self._whole = {}, 0
        for each in own:
            self._places[each.name] = self._whole
            self._whole += each.own.numel()
        hook = _DeliveredHook(self._guard, self._arrived)
        self._names = {id(each.own): each.name for each in chosen}
        self._handles = [each.own.register_post_accumulate_grad_hook(hook) for each in chosen]

    def rounded(self, operand: Tensor, result: Tensor) -> None:
        """The loop has rounded numbers to integers: noted where they are a multiple of one gradient, or of all.

        So a rounding is seen whose results are averaged with those of other passes before the step.
        """
        if not self._arrived or len(self._messages) >= _MOST_PARAMETERS:
            return
        with unseen():
            for id_, (reference, delivered) in list(self._arrived.items()):
                parameter, name = reference(), self._names.get(id_, "")
                if parameter is None or name in self._messages:
                    continue
                count = parameter.numel()
                if operand.numel() not in (count, self._whole):
                    continue
                at = self._places[name] if operand.numel() == self._whole else 0
                before, after = (_sample(each.reshape(-1)[at : at + count]) for each in (operand, result))
                if before is None or after is None or (factor := _factor(delivered, before)) is None:
                    continue
                self._messages[name] = _wide(delivered), _wide(after) / factor, count

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        if not self._arrived or len(self._rows) >= _MOST_ROWS:
            return
        with unseen():
            pairs, gone = {}, {}
            for parameter in parameters_of(optimizer):
                known = self._arrived.get(id(parameter))
                if known is None or id(known[0]()) != id(parameter):
                    continue
                if parameter.grad is None:
                    gone[self._names[id(parameter)]] = _wide(known[1])
                    continue
                held = _sample(parameter.grad)
                if held is not None:
                    self._used.append((weakref.ref(parameter.grad), held))
                if held is not None and held.shape == known[1].shape:
                    pairs[self._names[id(parameter)]] = _wide(known[1]), _wide(held), parameter.numel()
            if pairs and (row := _compared(pairs)):
                self._rows.append({"step": self._step} | row)
            if row := _of_cleared(pairs, gone):
                self._cleared.append({"step": self._step} | row)

    def end(self) -> None:
        """The step is over."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._arrived.clear()
        messages, self._messages = self._messages, {}
        is_known = bool(self._rows) and self._rows[-1]["step"] == self._step
        if messages and not is_known and len(self._rows) < _MOST_ROWS and (row := _compared(messages)):
            self._rows.append({"step": self._step} | row)
        used, self._used = self._used, []
        if used and len(self._late) < _MOST_ROWS:
            with unseen():
                factor = _common_factor(used)
            if factor is not None:
                self._late.append({"step": self._step, "factor": factor})

    def late(self) -> list[dict[str, Any]]:
        """A row for each step in which gradients were scaled after an optimizer had used them, see `late_edits`."""
        return self._late

    def cleared(self) -> list[dict[str, Any]]:
        """A row for each step in which gradients were cleared before it, see `cleared_gradients`."""
        return self._cleared

    def facts(self) -> list[dict[str, Any]]:
        """A row for each step in which gradients were lost, see `gradient_edits` in docs/run-file.md."""
        return self._rows


def _common_factor(used: list[tuple[weakref.ref[Tensor], Tensor]]) -> float | None:
    """The factor below 1 by which all of these gradients were multiplied since; None for none, or another change."""
    factors = []
    for reference, before in used:
        now = _sample(reference())
        if now is None or now.shape != before.shape:
            return None  # cleared, or freed
        one, other = _wide(before), _wide(now)
        size = float(one.square().sum())
        if size > 0:
            factor = float((one * other).sum()) / size
            if float((other - factor * one).square().sum()) > _PROPORTIONAL * size * factor**2:
                return None
            factors.append(factor)
    least, most = min(factors, default=1.0), max(factors, default=1.0)
    return least if 0 < least <= most < _CLIPPED and most - least <= _PROPORTIONAL**0.5 * most else None


def _factor(delivered: Tensor, operand: Tensor) -> float | None:
    """By which the gradient was multiplied to get these numbers; None where they are no multiple of it."""
    if operand.shape != delivered.shape:
        return None
    one, other = _wide(delivered), _wide(operand)
    size = float(one.square().sum())
    factor = float((one * other).sum()) / size if size > 0 else 0.0
    is_multiple = factor > 0 and float((other - factor * one).square().sum()) <= _PROPORTIONAL * size * factor**2
    return factor if is_multiple else None


def _sample(gradient: Tensor | None) -> Tensor | None:
    """At most _SAMPLE elements, copied; None where there are none to read."""
    values = readable_sample(gradient, _SAMPLE)
    return values.clone() if values is not None else None


def _wide(sample: Tensor) -> Tensor:
    """In main memory and FP64, which some devices lack; a model may be on several ones."""
    return sample.cpu().double()


def _compared(pairs: dict[str, tuple[Tensor, Tensor, int]]) -> dict[str, Any] | None:
    """The losses of these gradients (delivered, at the step, elements of the whole), None for nothing."""
    before = torch.cat([each for each, _, _ in pairs.values()]).abs()
    after = torch.cat([each for _, each, _ in pairs.values()]).abs()
    if not bool((before.isfinite() & after.isfinite()).all()) or bool((before == after).all()):
        return None
    zeroed = (after == 0) & (before != 0)
    if not bool(zeroed.any()) or not bool((after != 0).any()):
        return None
    levels, finer = (len(torch.unique(each)) for each in (after, before))
    narrow = bool((after == after.half()).all()) and not bool((before == before.half()).all())
    is_coarse = levels <= _MOST_LEVELS and finer >= _FINER * levels
    if not (is_coarse or narrow) or float(before[zeroed].max()) > _MIXED * float(before[after != 0].min()):
        return None
    shares = {}
    for name, (delivered, held, _) in pairs.items():
        norm = float(delivered.norm())
        shares[name] = float(delivered[held == 0].norm()) / norm if norm > 0 else 0.0
    lost = [name for name, share in shares.items() if share > _LOST]
    sizes = {name: count for name, (_, _, count) in pairs.items()}
    return {
        "format": "levels" if is_coarse else "fp16", "levels": levels,
        "share": sum(sizes[name] for name in lost) / sum(sizes.values()),
        "lost": max(shares[name] for name in lost), "tensors": lost[:_MOST_NAMES], "parameters": len(lost),
        "of": len(pairs), "largest": float(before.max()), "threshold": float(before[zeroed].max()),
    } if lost else None  # fmt: skip


def _of_cleared(pairs: dict[str, tuple[Tensor, Tensor, int]], gone: dict[str, Tensor]) -> dict[str, Any] | None:
    """Sizes of gradients that were delivered, where an optimizer gets none of them: None, or zeros without a sign.

    A factor of zero leaves the sign of what it multiplies.
    """
    if any(bool(held.any()) or bool(held.signbit().any()) for _, held, _ in pairs.values()):
        return None
    delivered = [*(each for each, _, _ in pairs.values()), *gone.values()]
    largest = max((float(each.abs().max()) for each in delivered), default=0.0)
    has_sign = any(bool((each < 0).any()) for each in delivered)
    if not (0 < largest < float("inf") and has_sign):
        return None
    return {"largest": largest, "of": len(delivered), "removed": len(gone)}


class _DeliveredHook(Hook):
    """Called by a parameter whose gradient a backward pass has completed."""

    __slots__ = ("_arrived",)

    def __init__(self, guard: Guard, arrived: dict[int, tuple[weakref.ref[Tensor], Tensor]]) -> None:
        super().__init__(guard)
        self._arrived = arrived

    def __call__(self, parameter: Tensor, *_: Any) -> None:
        with unseen():
            values = _sample(parameter.grad)
            if values is not None:
                self._arrived[id(parameter)] = weakref.ref(parameter), values
