"""Weights that a loop replaces between two steps by their rounding to 16 bits, as by a cast of the model and back."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from precgui.engine.telemetry.readable import readable, unseen
from precgui.engine.telemetry.recorder import Weight

_STEPS = frozenset(2 * 4**power + more for power in range(12) for more in (0, 1))  # 2, 3, 8, 9, 32, 33 ...
_FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16}
_MOST_TENSORS, _SAMPLE, _FEWEST = 8, 512, 16  # elements of each tensor
_MOST_ROWS, _MOST_NAMES = 12, 8
_MOST_INTERVALS = 2000  # between two steps, in which a sample is kept because weights were written before
_MOST_SOUND = 3  # times that they were written and not rounded, then writing is no reason any more

_Mark = tuple[int, int]  # address of a tensor's memory, and how often it was written


@dataclass
class _Watched:
    """One optimizer: parameters that are compared, and what was noted of them around its last step."""

    chosen: list[weakref.ref[Tensor]]
    marks: list[_Mark] | None = None  # after the step
    before: list[Tensor] = field(default_factory=list)  # samples
    after: list[Tensor] = field(default_factory=list)

    def present(self) -> list[_Mark]:
        held = [reference() for reference in self.chosen]
        return [(each.data_ptr(), each._version) for each in held if each is not None]


class RewrittenWeights:
    """Compares a sample of the weights in FP32 as an optimizer has left them with what it finds in its next step.

    It does so after steps of fixed numbers, and, once somebody else has written weights, up to the next such time.
    """

    def __init__(self) -> None:
        self._step = 0
        self._names: dict[int, str] = {}
        self._watched: weakref.WeakKeyDictionary[Optimizer, _Watched] = weakref.WeakKeyDictionary()
        self._is_expected, self._left, self._sound = False, _MOST_INTERVALS, _MOST_SOUND
        self._rows: list[dict[str, Any]] = []

    def begin(self, step: int, weights: Iterable[Weight]) -> None:
        """A step begins."""
        self._step = step
        if step in _STEPS:
            self._names = {id(each.own): each.name for each in weights}

    def stepping(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        if len(self._rows) >= _MOST_ROWS:
            return
        state = self._watched.get(optimizer)
        if state is not None:
            is_written = state.marks is not None and state.marks != state.present()
            if state.after:
                with unseen():
                    self._compare(state, is_written=is_written)
            elif is_written and self._sound > 0:
                self._is_expected = True
            state.marks, state.before, state.after = None, [], []
        wanted = self._is_expected and self._left > 0
        if self._step in _STEPS or wanted:
            self._left -= wanted
            if state is None:
                state = self._watched[optimizer] = _Watched(_chosen(optimizer))
            with unseen():
                state.before = _samples(state.chosen)

    def stepped(self, optimizer: Optimizer) -> None:
        """It has stepped."""
        state = self._watched.get(optimizer)
        if state is None or len(self._rows) >= _MOST_ROWS:
            return
        if state.before:
            with unseen():
                state.after = _samples(state.chosen)
        state.marks = state.present()

    def facts(self) -> list[dict[str, Any]]:
        """A row for each step that found its weights rounded, see `rewritten_weights` in docs/run-file.md."""
        return self._rows

    def _compare(self, state: _Watched, *, is_written: bool) -> None:
        found = _samples(state.chosen)
        if not len(found) == len(state.after) == len(state.before):
            return
        before, after, now = _on_cpu(state.before, state.after, found)
        name, rounded = "", [False]
        for each, dtype in _FORMATS.items():
            own = [_is_rounded(old, new, dtype) for old, new in zip(after, now, strict=True)]
            name, rounded = (each, own) if sum(own) > sum(rounded) else (name, rounded)
        if 2 * sum(rounded) < len(now):  # some tensors may be rounded by chance, such as weights near 1
            self._sound -= is_written
            self._is_expected &= self._sound > 0
            return
        parts = [[each for each, is_own in zip(samples, rounded, strict=True) if is_own]
                 for samples in (before, after, now)]  # fmt: skip
        held = [reference() for reference, is_own in zip(state.chosen, rounded, strict=True) if is_own]
        names = [self._names.get(id(each), "") for each in held]
        row = {"step": self._step, "format": name, "parameters": len(held), "of": len(rounded)}
        self._rows.append(row | {"tensors": [each for each in names if each][:_MOST_NAMES]} | _sizes(*parts))
        self._is_expected = True


def _sizes(before: list[Tensor], after: list[Tensor], now: list[Tensor]) -> dict[str, float]:
    """Norms of the update and of what the rounding changed, and the part of the update that is left in the end."""
    old, updated, new = (torch.cat(samples).double() for samples in (before, after, now))
    update = updated - old
    size = float(update.square().sum())
    made = float(((new - old) * update).sum()) / size if size else 0.0
    return {"error": float((new - updated).norm()), "update": size**0.5, "made": made}


def _chosen(optimizer: Optimizer) -> list[weakref.ref[Tensor]]:
    """Parameters in FP32, spread over all that have enough elements."""
    every: list[Tensor] = [each for group in optimizer.param_groups for each in group["params"]]
    own = [each for each in every if each.dtype == torch.float32 and each.numel() >= _FEWEST]
    own = list({id(each): each for each in own if type(each) in (Tensor, torch.nn.Parameter)}.values())
    return [weakref.ref(each) for each in own[:: max(-(-len(own) // _MOST_TENSORS), 1)]]


def _samples(chosen: list[weakref.ref[Tensor]]) -> list[Tensor]:
    """Copies of at most _SAMPLE elements of each; [] where one cannot be read any more."""
    samples = []
    for reference in chosen:
        own = reference()
        values = readable(own) if own is not None and own.dtype == torch.float32 else None
        if values is None:
            return []
        flat = values.detach().reshape(-1)
        samples.append(flat[:: -(-flat.numel() // _SAMPLE)].clone())
    return samples


def _on_cpu(*groups: list[Tensor]) -> list[list[Tensor]]:
    """The samples in main memory; one transfer from each device, for which the host waits."""
    every = [each for group in groups for each in group]
    moved: dict[int, Tensor] = {}
    for device in {each.device for each in every}:
        own = [index for index, each in enumerate(every) if each.device == device]
        joined = torch.cat([every[index] for index in own]).cpu()
        moved |= zip(own, joined.split([every[index].numel() for index in own]), strict=True)
    values = iter(range(len(every)))
    return [[moved[next(values)] for _ in group] for group in groups]


def _is_rounded(old: Tensor, new: Tensor, dtype: torch.dtype) -> bool:
    """Whether these numbers are the rounding of the old ones, which have more digits."""
    if old.shape != new.shape or not bool(new.isfinite().all()):
        return False
    return bool((old.to(dtype).float() == new).all()) and int((old != new).sum()) >= _FEWEST // 2
