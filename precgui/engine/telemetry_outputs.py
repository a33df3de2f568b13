"""Watching what modules put out, and the gradients that come back, by hooks that change nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from precgui.engine.hook import Hook
from precgui.engine.telemetry_sentinel import Guard, Sentinel
from precgui.engine.telemetry_tensors import floats

MODEL = "(model)"
_CALLS = 50
_COLD = 1.5  # times what a hook takes when nothing else runs between its calls
_WRAPPERS = ("_orig_mod.", "module.")
Look = Callable[[str, str, Tensor], None]  # kind, name, tensor


class Outputs:
    """Hooks on the modules that compute (those without parts, or with weights of their own).

    What `guard` asks for is done with outputs of modules with weights and of the model, see `telemetry_sentinel`. What
    else is wanted, `activation` and `activation_gradient`, is handed to `look`. Modules have hooks only in steps that
    need them, since torch calls a module with hooks more slowly. A forward pass that only repeats what a checkpoint
    forgot is not looked at, nor one that is traced or transformed by torch.func.
    """

    def __init__(self, model: nn.Module, look: Look) -> None:
        self._model, self._look = model, look
        self._wanted: Set[str] = frozenset()
        self._guard, self._inside, self._everywhere = Guard.OFF, False, False
        self.watching = False
        self.sentinel = Sentinel()
        self.calls = 0  # of hooks, in this step
        self._weighty: list[tuple[nn.Module, Hook]] = []
        self._weightless: list[tuple[nn.Module, Hook]] = []
        self._handles: dict[bool, list[RemovableHandle]] = {True: [], False: []}  # of those with weights, and without
        self._entering: list[RemovableHandle] = []
        for name, module in model.named_modules():
            name = plain_name(name)
            if isinstance(module, torch.jit.ScriptModule):
                continue  # takes no hooks
            if not name or any(True for _ in module.parameters(recurse=False)):
                self._weighty.append((module, _OutputHook(self, name or MODEL, weighty=True)))
            elif not any(True for _ in module.children()):
                self._weightless.append((module, _OutputHook(self, name, weighty=False)))

    def begin(self, wanted: Set[str], guard: Guard, *, everywhere: bool = False) -> None:
        """A step begins. `everywhere` shows the sentinel what modules without weights put out, too."""
        self._wanted, self._guard, self._everywhere = wanted, guard, everywhere
        self.watching, self._inside, self.calls = guard is not Guard.OFF or bool(wanted), False, 0
        self._have_hooks(self._weighty, self._handles[True], wanted=self.watching)
        self._have_hooks(self._weightless, self._handles[False], wanted=bool(wanted) or everywhere)
        if self.watching and not self._entering:
            self._entering.append(self._model.register_forward_pre_hook(_EntranceHook(self)))
        self.sentinel.begin()

    def end(self) -> None:
        """The forward and backward passes of the step are over."""
        self.watching = False

    def close(self) -> None:
        self.end()
        for handles in (*self._handles.values(), self._entering):
            self._remove(handles)

    def _have_hooks(self, hooks: list[tuple[nn.Module, Hook]], handles: list[RemovableHandle], *, wanted: bool) -> None:
        if wanted and not handles:
            handles += [module.register_forward_hook(hook) for module, hook in hooks]
        elif handles and not wanted:
            self._remove(handles)

    @staticmethod
    def _remove(handles: list[RemovableHandle]) -> None:
        for handle in handles:
            handle.remove()
        handles.clear()

    def entered(self) -> None:
        """The model's own forward pass begins."""
        self._inside = torch.is_grad_enabled()

    def seen(self, name: str, outputs: Any, *, weighty: bool) -> None:
        """A module has returned."""
        if not self._is_training():
            return
        self.calls += 1
        if self._guard is not Guard.OFF and (weighty or self._everywhere):
            if self._guard is Guard.LOOK:
                self.sentinel.look(name, outputs)
            elif name == MODEL:
                self.sentinel.look_back(name, outputs)
            else:
                self.sentinel.keep(name, outputs)
        if self._wanted:
            self._watch(name, outputs)
        if name == MODEL:
            self._inside = False

    def gradient_seen(self, name: str, gradient: Tensor) -> None:
        """What came back to an output."""
        if self.watching:
            self._look("activation_gradient", name, gradient)

    def _is_training(self) -> bool:
        """Neither evaluation nor the second forward pass of a checkpoint, and with tensors that have numbers.

        What the model computes without a graph inside its forward pass belongs to it, as a frozen part.
        """
        return (
            self._model.training
            and (self._inside or torch.is_grad_enabled())
            and torch._C._current_graph_task_id() == -1
            and torch._C._functorch.maybe_current_level() is None
            and torch._C._get_tracing_state() is None
        )

    def _watch(self, name: str, outputs: Any) -> None:
        for path, tensor in floats(outputs):
            if "activation" in self._wanted:
                self._look("activation", name + path, tensor)
            if "activation_gradient" in self._wanted and tensor.requires_grad:
                self.calls += 1
                tensor.register_hook(_GradientHook(self, name + path))


class _EntranceHook(Hook):
    """Called by the model when its forward pass begins."""

    __slots__ = ("_outputs",)

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs

    def __call__(self, _module: nn.Module, _inputs: Any) -> None:
        if self._outputs.watching and not torch.compiler.is_compiling():
            self._outputs.entered()


class _OutputHook(Hook):
    """Called by a module with its inputs and outputs, in every pass: it asks for as little as it can."""

    __slots__ = ("_name", "_outputs", "_weighty")

    def __init__(self, outputs: Outputs, name: str, *, weighty: bool) -> None:
        self._outputs, self._name, self._weighty = outputs, name, weighty

    def __call__(self, _module: nn.Module, _inputs: Any, outputs: Any) -> None:
        if self._outputs.watching and not torch.compiler.is_compiling():
            self._outputs.seen(self._name, outputs, weighty=self._weighty)


class _GradientHook(Hook):
    """Called by a tensor with its gradient."""

    __slots__ = ("_name", "_outputs")

    def __init__(self, outputs: Outputs, name: str) -> None:
        self._outputs, self._name = outputs, name

    def __call__(self, gradient: Tensor) -> None:
        self._outputs.gradient_seen(self._name, gradient)


@cache
def hook_s() -> float:
    """CPU time that a hook takes of a step beside what is done with the output, tried once with a module of no work."""
    module = nn.Identity()
    outputs, sample = Outputs(module, lambda *_: None), torch.ones(1)

    def called_s(guard: Guard) -> float:
        outputs.begin(frozenset(), guard)
        begin = time.thread_time()
        for _ in range(_CALLS):
            module(sample)
        return (time.thread_time() - begin - outputs.sentinel.spent_s) / _CALLS

    taken = min(called_s(Guard.LOOK) for _ in range(5)) - min(called_s(Guard.OFF) for _ in range(5))
    return max(_COLD * taken, 0.0)


def plain_name(name: str) -> str:
    """A name without what torch.compile and DistributedDataParallel put before it."""
    for wrapper in _WRAPPERS:
        name = "" if name == wrapper[:-1] else name.removeprefix(wrapper)
    return name
