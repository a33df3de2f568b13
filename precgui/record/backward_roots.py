"""Losses that no scaler has multiplied, beside or in place of those that it has, and penalties of scaled gradients."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from precgui.engine.telemetry.guard import Guard
from precgui.engine.telemetry.hook import Hook
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import graph_task, packet_name, tree_leaves

_PRODUCTS = ("aten.mul", "aten.mul_", "aten._foreach_mul")
_QUOTIENTS = ("aten.div", "aten.div_", "aten._foreach_div")
_ALIKE = 1e-5  # relative deviation of a factor from 1 / S, which may be rounded to FP32
_LEAST_SCALE = 4.0


class BackwardRoots:
    """Sees the operations of the first step: which losses are multiplied by the scale, and where backward passes begin.

    A loss counts as scaled where it is computed from a product with the scale. A backward pass begins with ones of the
    shape of its root, or with a gradient that the loop gives: such a pass decides nothing.

    Gradients with a graph of their own (`create_graph=True`) of a scaled loss are followed, until they are divided by
    the scale: a loss that is computed of them must not be multiplied by it again.
    """

    def __init__(self, scaler: Any, guard: Guard) -> None:
        self._scaler, self._guard = scaler, guard
        self._scaled = TensorMarks[bool]()
        self._root: bool | None = None  # whether that of the pass that begins is scaled; None: not known
        self._passes: dict[int, bool | None] = {}  # by the number of the pass
        self._arrived: weakref.WeakKeyDictionary[Optimizer, set[bool]] = weakref.WeakKeyDictionary()
        self._handles: list[RemovableHandle] = []
        self._gradients = TensorMarks[bool]()  # still scaled, or computed from such ones
        self._through: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # optimizers that stepped inside scaler.step
        self._are_mixed: bool | None = None
        self._are_unscaled: bool | None = None
        self._are_penalised: bool | None = None
        self._is_over = False

    def watch(self, optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
        """Note the passes that reach these parameters of an optimizer."""
        if self._is_over:
            return
        self._handles += [
            p.register_post_accumulate_grad_hook(_ReachedHook(self._guard, self, optimizer)) for p in parameters
        ]

    def on_operation(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """An operation has run, in a dispatch mode."""
        if (task := graph_task()) != -1:
            self._in_backward(task, out)
            return
        name, operands = packet_name(func), [each for each in tree_leaves(args) if isinstance(each, Tensor)]
        if name == "aten.ones_like" and operands:
            self._root = self._is_scaled(operands[0])
        elif (name in _PRODUCTS and self._has_scale(args)) or (self._scaled and any(map(self._is_scaled, operands))):
            self._are_penalised = self._are_penalised or any(self._gradients.get(each) for each in operands)
            for tensor in tree_leaves(out):
                if isinstance(tensor, Tensor):
                    self._scaled[tensor] = True
        if self._gradients and any(self._gradients.get(each) for each in operands):
            self._follow(name, args, out)

    def _in_backward(self, task: int, out: Any) -> None:
        """An operation of a backward pass has run; one that makes a graph of its own makes gradients to penalise."""
        if not torch.is_grad_enabled():
            return
        if task not in self._passes:
            self._passes[task], self._root = self._root, None
        for tensor in tree_leaves(out) if self._passes[task] else ():
            if isinstance(tensor, Tensor):
                self._gradients[tensor] = True

    def _follow(self, name: str, args: Any, out: Any) -> None:
        """Follow gradients that are still scaled through an operation outside of a backward pass."""
        divided = (name in _QUOTIENTS and self._has_scale(args)) or (name in _PRODUCTS and self._has_scale(args, -1))
        for tensor in tree_leaves(out):
            if not isinstance(tensor, Tensor):
                continue
            if divided:
                self._gradients.forget(tensor)
            elif tensor.is_floating_point():
                self._gradients[tensor] = True

    def _is_scaled(self, tensor: Tensor) -> bool:
        return bool(self._scaled.get(tensor))

    def _has_scale(self, args: Any, power: int = 1) -> bool:
        """Whether one factor is the scale, or its inverse with `power` -1: a tensor of one element, or a number."""
        scale = getattr(self._scaler, "_scale", None)
        if not isinstance(scale, Tensor):
            return False
        value = float(scale) ** power if float(scale) else 0.0
        numbers = (float(a.detach()) if isinstance(a, Tensor) and a.numel() == 1 else a for a in tree_leaves(args))
        return any(isinstance(number, float) and abs(number - value) <= _ALIKE * value for number in numbers)

    def reached(self, optimizer: Optimizer) -> None:
        """A pass has delivered a gradient to a parameter of this optimizer."""
        task = graph_task()
        if task not in self._passes:
            self._passes[task], self._root = self._root, None
        scaled = self._passes[task]
        if scaled is not None and (scaled or not self._is_divided(optimizer)):
            self._arrived.setdefault(optimizer, set()).add(scaled)

    def _is_divided(self, optimizer: Optimizer) -> bool:
        """Whether the gradients of an optimizer have been divided by the scale in this step, and perhaps used."""
        own = (getattr(self._scaler, "_per_optimizer_states", None) or {}).get(id(optimizer))
        return own is not None and getattr(own.get("stage"), "name", "") in ("UNSCALED", "STEPPED")

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step with gradients that the scaler has divided."""
        if self._is_over:  # to read the scale waits for the device
            return
        scale = getattr(self._scaler, "_scale", None)
        if isinstance(scale, Tensor) and optimizer in self._arrived and float(scale) >= _LEAST_SCALE:
            self._through.add(optimizer)

    def end(self) -> None:
        """The first step is over."""
        if self._arrived:
            self._are_mixed = any(len(each) > 1 for each in self._arrived.values())
            self._are_unscaled = any(self._arrived[each] == {False} for each in self._through)
            self._are_penalised = bool(self._are_penalised)
        self.close()

    def facts(self) -> dict[str, bool | None]:
        """None while undecided. `mixed_roots`: an optimizer got gradients of scaled and of unscaled losses;
        `unscaled_root`: one got those of unscaled losses only, and stepped inside scaler.step; `scaled_penalty`: a loss
        that is computed from gradients of a scaled loss was multiplied by the scale, too."""
        return {
            "mixed_roots": self._are_mixed, "unscaled_root": self._are_unscaled, "scaled_penalty": self._are_penalised
        }  # fmt: skip

    def close(self) -> None:
        self._is_over = True
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._scaled.clear()
        self._gradients.clear()


class _ReachedHook(Hook):
    """Called by a parameter whose gradient is complete."""

    __slots__ = ("_optimizer", "_roots")

    def __init__(self, guard: Guard, roots: BackwardRoots, optimizer: Optimizer) -> None:
        super().__init__(guard)
        self._roots, self._optimizer = roots, weakref.ref(optimizer)

    def __call__(self, *_: Any) -> None:
        if (optimizer := self._optimizer()) is not None:
            self._roots.reached(optimizer)
