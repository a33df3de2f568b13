"""How many backward passes a step has, counted by the first and the last parameter of each optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from precgui.engine.telemetry.guard import Guard
from precgui.engine.telemetry.hook import Hook
from precgui.engine.telemetry.parameters import parameters_of
from precgui.engine.torch_private import graph_task


class BackwardCount:
    """Counts backward passes in which one of these parameters got a gradient."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._passes: set[int] = set()  # the numbers that autograd gives them
        self._handles: list[RemovableHandle] = []

    def watch(self, optimizers: Sequence[Optimizer]) -> None:
        """Count for these optimizers from now on, and for no others."""
        self.close()
        chosen: dict[int, Tensor] = {}
        for optimizer in optimizers:
            own = [each for each in parameters_of(optimizer) if each.requires_grad and each.is_leaf]
            chosen |= {id(parameter): parameter for parameter in own[:1] + own[-1:]}
        hook = _PassedHook(self._guard, self._passes)
        self._handles = [parameter.register_post_accumulate_grad_hook(hook) for parameter in chosen.values()]

    def begin(self) -> None:
        self._passes.clear()

    def count(self, *, gradients: bool) -> float:
        """Passes since `begin`; NaN where there are `gradients` but no pass was recorded."""
        return math.nan if gradients and not self._passes else float(len(self._passes))

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


class _PassedHook(Hook):
    """Called by a parameter whose gradient is complete."""

    __slots__ = ("_passes",)

    def __init__(self, guard: Guard, passes: set[int]) -> None:
        super().__init__(guard)
        self._passes = passes

    def __call__(self, *_: Any) -> None:
        self._passes.add(graph_task())
