"""Whether a step adds gradients of a loss that no scaler has multiplied to those of one that it has."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from precgui.engine.telemetry.guard import Guard
from precgui.engine.telemetry.hook import Hook
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import graph_task, tree_leaves

_PRODUCTS = ("aten.mul", "aten.mul_", "aten._foreach_mul")


class BackwardRoots:
    """Sees the operations of the first step: which losses are multiplied by the scale, and where backward passes begin.

    A loss counts as scaled where it is computed from a product with the scale. A backward pass begins with ones of the
    shape of its root, or with a gradient that the loop gives: such a pass decides nothing.
    """

    def __init__(self, scaler: Any, guard: Guard) -> None:
        self._scaler, self._guard = scaler, guard
        self._scaled = TensorMarks[bool]()
        self._root: bool | None = None  # whether that of the pass that begins is scaled; None: not known
        self._passes: dict[int, bool | None] = {}  # by the number of the pass
        self._arrived: weakref.WeakKeyDictionary[Optimizer, set[bool]] = weakref.WeakKeyDictionary()
        self._handles: list[RemovableHandle] = []
        self.are_mixed: bool | None = None

    def watch(self, optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
        """Note the passes that reach these parameters of an optimizer."""
        self._handles += [
            p.register_post_accumulate_grad_hook(_ReachedHook(self._guard, self, optimizer)) for p in parameters
        ]

    def on_operation(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """An operation has run, in a dispatch mode."""
        if graph_task() != -1:
            return
        name, operands = str(func.overloadpacket), [each for each in tree_leaves(args) if isinstance(each, Tensor)]
        if name == "aten.ones_like" and operands:
            self._root = self._is_scaled(operands[0])
        elif (name in _PRODUCTS and self._has_scale(args)) or (self._scaled and any(map(self._is_scaled, operands))):
            for tensor in tree_leaves(out):
                if isinstance(tensor, Tensor):
                    self._scaled[tensor] = True

    def _is_scaled(self, tensor: Tensor) -> bool:
        return bool(self._scaled.get(tensor))

    def _has_scale(self, args: Any) -> bool:
        """Whether one factor is the scale: the scaler's own tensor, a copy on another device, or a plain number."""
        scale = getattr(self._scaler, "_scale", None)
        if not isinstance(scale, Tensor):
            return False
        value = float(scale)
        numbers = (float(a.detach()) if isinstance(a, Tensor) and a.numel() == 1 else a for a in tree_leaves(args))
        return any(isinstance(number, float) and number == value for number in numbers)

    def reached(self, optimizer: Optimizer) -> None:
        """A pass has delivered a gradient to a parameter of this optimizer."""
        task = graph_task()
        if task not in self._passes:
            self._passes[task], self._root = self._root, None
        scaled = self._passes[task]
        if scaled is not None and (scaled or not self._is_unscaled(optimizer)):
            self._arrived.setdefault(optimizer, set()).add(scaled)

    def _is_unscaled(self, optimizer: Optimizer) -> bool:
        """Whether the gradients of an optimizer have been divided by the scale in this step."""
        own = (getattr(self._scaler, "_per_optimizer_states", None) or {}).get(id(optimizer))
        return own is not None and getattr(own.get("stage"), "name", "") == "UNSCALED"

    def end(self) -> None:
        """The first step is over."""
        if self._arrived:
            self.are_mixed = any(len(each) > 1 for each in self._arrived.values())
        self.close()

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._scaled.clear()


class _ReachedHook(Hook):
    """Called by a parameter whose gradient is complete."""

    __slots__ = ("_optimizer", "_roots")

    def __init__(self, guard: Guard, roots: BackwardRoots, optimizer: Optimizer) -> None:
        super().__init__(guard)
        self._roots, self._optimizer = roots, weakref.ref(optimizer)

    def __call__(self, *_: Any) -> None:
        if (optimizer := self._optimizer()) is not None:
            self._roots.reached(optimizer)
