"""Backward passes whose gradients are cleared before an optimizer steps, and which nothing has read."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from precgui.engine.graph_leaves import leaves_of
from precgui.engine.telemetry.guard import Guard
from precgui.engine.telemetry.hook import Hook
from precgui.engine.telemetry.parameters import parameters_of
from precgui.engine.telemetry.readable import address_of, readable, unseen
from precgui.engine.torch_private import graph_task
from precgui.engine.watcher import OperationCall, Watcher

_FEWEST = 4  # passes between two steps
_MOST_ROOTS = 8  # passes of a step whose graph is searched
_CLEARING = {"zero", "fill", "_foreach_zero", "detach"}  # in place, as zero_grad does


@dataclass
class _Passes:
    """Of one parameter of an optimizer, since the last step of any: its passes, and the gradient that the last left."""

    handles: list[RemovableHandle] = field(default_factory=list)
    parameter: weakref.ref[Tensor] | None = None
    count: int = 0
    is_void: bool = False  # a gradient was read, kept, or added to another one
    is_clear: bool = False  # that which the pass under way meets
    task: int = -1
    left: weakref.ref[Tensor] | None = None
    address: int = 0
    memory: dict[int, StorageWeakRef] = field(default_factory=dict)  # of all gradients that were left, by address
    is_read: bool = False

    def restart(self) -> None:
        self.count, self.is_void, self.is_clear, self.task = 0, False, False, -1
        self.left, self.address, self.is_read = None, 0, False
        self.memory.clear()

    def read(self, address: int) -> None:
        """An operation reads this memory."""
        known = self.memory.get(address)
        if known is not None and not known.expired():
            self.is_read |= address == self.address
            self.is_void |= address != self.address  # somebody has kept it


class DiscardedPasses(Watcher):
    """Told of each operation, and of steps of optimizers, of each of which it watches the smallest parameter.

    A row is made of a step for which all gradients but those of the last of four backward passes or more were cleared,
    unread, before the next pass. Left alone are intervals in which an operation reads a gradient (its norm, a sum of
    one's own) or somebody keeps it, another optimizer steps, a hook of the loop sees gradients, or a pass reaches
    leaves beside the parameters, as inputs that an attack changes.
    """

    fact, most_rows = "discarded_passes", 12

    def __init__(self, model: nn.Module, guard: Guard) -> None:
        super().__init__()
        self._model, self._guard = weakref.ref(model), guard
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._passes: weakref.WeakKeyDictionary[Optimizer, _Passes] = weakref.WeakKeyDictionary()
        self._roots, self._has_other_leaves = 0, False

    def begin(self, step: int) -> None:
        super().begin(step)
        self.release()
        self._restart()
        for optimizer in list(self._known) if len(self._rows) < self.most_rows else ():
            own = [each for each in parameters_of(optimizer) if each.requires_grad and each.is_leaf]
            smallest = min(own, key=lambda each: each.numel(), default=None)
            if smallest is not None and smallest.numel() and readable(smallest) is smallest:
                state = self._passes[optimizer] = _Passes(parameter=weakref.ref(smallest))
                state.handles = [
                    smallest.register_hook(_ArrivingHook(self._guard, state)),
                    smallest.register_post_accumulate_grad_hook(_LeftHook(self._guard, state)),
                ]

    def observe(self, call: OperationCall) -> None:
        states = [each for each in self._passes.values() if each.memory and not each.is_void]
        if call.name == "ones_like" and self._passes:
            self._begins(call.args[0])
        if not states or (call.base in _CLEARING and call.name.endswith("_")):
            return
        for tensor in (*call.tensors, *(each for each in call.kwargs.values() if isinstance(each, Tensor))):
            address = address_of(tensor)
            for each in states:
                each.read(address)

    def _begins(self, loss: Any) -> None:
        """A backward pass begins with ones of the shape of its loss."""
        if not isinstance(loss, Tensor) or loss.grad_fn is None or self._roots >= _MOST_ROOTS:
            return
        self._roots += 1
        found, model = leaves_of(loss.grad_fn), self._model()
        known = {id(each) for each in (model.parameters() if model is not None else ())}
        known |= {id(each) for optimizer in self._known for each in parameters_of(optimizer)}
        self._has_other_leaves |= found is None or not found.tensors.keys() <= known

    def stepping(self, optimizer: Optimizer, *, closure: bool) -> None:
        """An optimizer is about to step; with a `closure` its passes are inside of the step."""
        self._known.add(optimizer)
        state = self._passes.get(optimizer)
        if state is None or closure or state.count < _FEWEST or state.is_void or self._has_other_leaves:
            return
        parameter = state.parameter() if state.parameter is not None else None
        is_last = parameter is not None and state.left is not None and state.left() is parameter.grad is not None
        if is_last and self._roots >= min(state.count, _MOST_ROOTS) and not _has_other_hooks(parameter):
            key = self._step
            if self._has_room(key):
                self._rows[key] = {"step": key, "passes": state.count, "optimizer": type(optimizer).__name__}

    def stepped(self) -> None:
        """An optimizer, known or not, has stepped."""
        if self._passes:
            self._restart()

    def end(self) -> None:
        self.release()

    def release(self) -> None:
        """Take the hooks from the parameters."""
        for each in self._passes.values():
            for handle in each.handles:
                handle.remove()
        self._passes.clear()

    def _restart(self) -> None:
        self._roots, self._has_other_leaves = 0, False
        for each in self._passes.values():
            each.restart()


class _ArrivingHook(Hook):
    """Called by a parameter with a gradient that may be added to what it holds."""

    __slots__ = ("_state",)

    def __init__(self, guard: Guard, state: _Passes) -> None:
        super().__init__(guard)
        self._state = state

    def __call__(self, *_: Any) -> None:
        state = self._state
        parameter = state.parameter() if state.parameter is not None else None
        held = parameter.grad if parameter is not None else None
        with unseen():
            values = readable(held) if held is not None else None
            state.is_clear = held is None or (values is not None and not bool(values.any()))
        state.is_void |= held is None and state.left is not None and state.left() is not None  # somebody has kept it


class _LeftHook(Hook):
    """Called by a parameter once the gradient on its way was added to what it holds."""

    __slots__ = ("_state",)

    def __init__(self, guard: Guard, state: _Passes) -> None:
        super().__init__(guard)
        self._state = state

    def __call__(self, parameter: Tensor, *_: Any) -> None:
        state, gradient = self._state, parameter.grad
        if gradient is None or (values := readable(gradient)) is None or values is not gradient:
            state.is_void = True
            return
        state.is_void |= state.count > 0 and (state.is_read or not state.is_clear or state.task == graph_task())
        state.count, state.task, state.is_read = state.count + 1, graph_task(), False
        state.left, state.address = weakref.ref(gradient), address_of(gradient)
        state.memory[state.address] = StorageWeakRef(gradient.untyped_storage())


def _has_other_hooks(parameter: Tensor | None) -> bool:
    """Whether the loop itself has hooks on a parameter: these may use each gradient."""
    held = [getattr(parameter, name, None) or {} for name in ("_backward_hooks", "_post_accumulate_grad_hooks")]
    return any(not isinstance(each, Hook) for hooks in held for each in hooks.values())
