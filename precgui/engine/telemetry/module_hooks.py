"""Hooks that read the outputs of modules and the gradients of these outputs without changing them."""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from precgui.engine.module_calls import plain_name
from precgui.engine.telemetry.broken_operations import PassWatch
from precgui.engine.telemetry.fp32_repetition import Repetition, Repetitions, is_in_16_bits, repeated_in_fp32
from precgui.engine.telemetry.guard import LET_THROUGH, Guard
from precgui.engine.telemetry.hook import Hook
from precgui.engine.telemetry.kept_state import KeptState
from precgui.engine.telemetry.nonfinite import NonFiniteDetector
from precgui.engine.telemetry.readable import floats
from precgui.engine.telemetry.second_pass import CannotRepeat, second_pass
from precgui.engine.torch_private import graph_task, is_anything_compiled, tracing_state, transform_level
from precgui.sentences import L_, message_of

MODEL = "(model)"
_CALLS = 50
_COLD = 1.5  # times what a hook takes when nothing else runs between its calls
_PAUSE_STEPS = 16  # a run that stays broken is not slowed down by a second pass in each step
_AWAITED_STEPS = 16  # after a loss that is not finite, on a GPU: outputs are waited for
_WATCH_STEPS = 1000  # with hooks on all modules after a bad step whose module is not known
Measure = Callable[[str, str, Tensor], None]  # kind, name, tensor


class Outputs:
    """Hooks on the modules that compute (those without children, or with weights of their own).

    Checks the output of the model for NaN and Inf in every step. After a hit, the forward pass runs again with hooks on
    all modules, which finds the first bad one. A `guarded` step checks the outputs of all modules with weights, so that
    NaN and Inf that reach neither the loss nor the gradients are detected, too. The kinds `activation` and
    `activation_gradient` go to `measure` where requested. Modules have hooks only in the steps that need them, since
    torch calls a module with hooks more slowly. The recomputation of a checkpoint is not measured, nor is a forward
    pass that is traced, transformed by torch.func or captured in a CUDA graph.
    """

    OF_STEP: ClassVar[tuple[str, ...]] = (
        "_requested", "_guarded", "_everywhere", "_located", "_inside", "cannot_repeat", "calls", "watching",
        "_kept_s",
    )  # fmt: skip

    def __init__(
        self, model: nn.Module, measure: Measure, guard: Guard = LET_THROUGH, *, repeats_in_fp32: bool = True
    ) -> None:
        """`repeats_in_fp32`: a forward pass in 16 bits that is not finite is repeated in FP32, too."""
        self._model, self._measure, self.guard = model, measure, guard
        self.repetitions = Repetitions()
        self._repeats_in_fp32 = repeats_in_fp32
        self._requested: Set[str] = frozenset()
        self._guarded = self._everywhere = self._inside = self.watching = False
        self._on_cpu = all(parameter.is_cpu for parameter in model.parameters())
        self._pause = 0  # steps until a forward pass may be repeated
        self._watch_on = 0  # steps in which all modules are checked, because the first bad one was not identified
        self._awaited = 0  # steps of a model on a GPU whose outputs are waited for
        self._located = False  # the first bad module of this step is known
        self.cannot_repeat = ""  # why the forward pass of this step was not repeated, though it was bad
        self.detector = NonFiniteDetector()
        self.calls, self._kept_s = 0, 0.0  # hooks of this step, and what it took to keep state
        self._weighty: list[tuple[nn.Module, Hook]] = []
        self._weightless: list[tuple[nn.Module, Hook]] = []
        for path, module in model.named_modules():
            name = plain_name(path)
            if module is model or not name or isinstance(module, torch.jit.ScriptModule):  # which takes no hooks
                continue
            if any(True for _ in module.parameters(recurse=False)):
                self._weighty.append((module, _OutputHook(self, name, weighty=True)))
            elif not any(True for _ in module.children()):
                self._weightless.append((module, _OutputHook(self, name, weighty=False)))
        self._handles: dict[str, list[RemovableHandle]] = {"weighty": [], "weightless": [], "entrance": []}
        self._hooked_now = (False, False)
        self._exit = model.register_forward_hook(_ReturnHook(self), with_kwargs=True)
        self._state = KeptState(model)
        self._begin: RemovableHandle | None = None
        if not self._state.is_empty:
            self._begin = model.register_forward_pre_hook(_StateHook(self))

    def begin(self, requested: Set[str], *, guarded: bool, everywhere: bool = False) -> None:
        """A step begins. `everywhere` checks the outputs of modules without weights, too."""
        self._watch_on = max(self._watch_on - 1, 0)
        self._awaited = max(self._awaited - 1, 0)
        everywhere, guarded = everywhere or self._watch_on > 0, guarded or self._watch_on > 0 or self._awaited > 0
        self._requested, self._guarded = requested, guarded
        self._everywhere = everywhere or "activation" in requested  # so that the name and the recorded rows agree
        self.cannot_repeat, self._located = "", False
        self.watching, self._inside, self.calls, self._kept_s = True, False, 0, 0.0
        self._pause = max(self._pause - 1, 0)
        self._have_hooks(modules=guarded or bool(requested), all_modules=everywhere or bool(requested))
        self.detector.begin()
        self.repetitions.begin()

    def await_next(self) -> None:
        """On a GPU, outputs of the next steps are read at once, so that a pass that is not finite can be repeated."""
        self._awaited = 0 if self._on_cpu or not self._repeats_in_fp32 else _AWAITED_STEPS

    def end(self) -> float:
        """The forward and backward passes of the step are over. Returns the CPU seconds of hooks and checks."""
        self.watching = False
        return self.detector.spent_s + self._kept_s + self.calls * hook_s()

    def close(self) -> None:
        self.end()
        self._have_hooks(modules=False, all_modules=False)
        self._exit.remove()
        if self._begin is not None:
            self._begin.remove()

    def why_not_all(self) -> str:
        """Why the module named in this step may not be the first bad one; '' where all were checked."""
        if self._everywhere or self._located:
            return ""
        return self.cannot_repeat or L_("modules without weights were not checked in this step")

    def _have_hooks(self, *, modules: bool, all_modules: bool) -> None:
        """Hooks on those with weights, or on all."""
        if (modules, all_modules) == self._hooked_now:
            return
        self._hooked_now = modules, all_modules
        requested = {"weighty": modules, "weightless": all_modules, "entrance": modules}
        for name, handles in self._handles.items():
            if handles and not requested[name]:
                for handle in handles:
                    handle.remove()
                handles.clear()
            elif requested[name] and not handles:
                handles += self._hooked(name)

    def _hooked(self, name: str) -> list[RemovableHandle]:
        if name == "entrance":
            return [self._model.register_forward_pre_hook(_EntranceHook(self))]
        hooks = self._weighty if name == "weighty" else self._weightless
        return [module.register_forward_hook(hook) for module, hook in hooks]

    def entered(self) -> None:
        """The model's own forward pass begins."""
        self._inside = torch.is_grad_enabled()

    def keep_state(self) -> None:
        """The model's own forward pass begins: remember what it may change, where there is anything."""
        self.calls += 1
        if not (self._on_cpu or self._awaited):
            return
        is_training = self._model.training and torch.is_grad_enabled() and graph_task() == -1
        if is_training and not self._state.is_empty and tracing_state() is None and transform_level() is None:
            begin = time.thread_time()
            self._state.keep()
            self._kept_s += time.thread_time() - begin

    def on_output(self, name: str, outputs: Any, *, weighty: bool) -> None:
        """A module has returned."""
        if self._is_training():
            self.calls += 1
            if self._everywhere or (weighty and self._guarded):
                self.detector.check(name, outputs)
            if self._requested:
                self._watch(name, outputs)

    def returned(self, args: Any, kwargs: Any, outputs: Any) -> None:
        """The model has returned."""
        if not self._is_training():
            return
        self.calls += 1
        self._inside = False
        if self._requested:
            self._watch(MODEL, outputs)
        if not (self._on_cpu or self._guarded):
            return
        is_bad = self._is_bad(outputs)
        known = self._everywhere and not self.detector.first_of_cpu().startswith(MODEL)
        in_fp32 = (self._on_cpu or self._awaited > 0) and self._repeats_in_fp32 and self.repetitions.are_due
        if is_bad and not (known and not in_fp32) and not self._pause:
            self._pause = _PAUSE_STEPS
            self._repeat(args, kwargs, find_first=not known, in_fp32=in_fp32)

    def _is_bad(self, outputs: Any) -> bool:
        """Whether the outputs of the model are known to be not finite; on a GPU in awaited steps alone."""
        return self.detector.check(MODEL, outputs) or (self._awaited > 0 and self.detector.first_nonfinite() != "")

    def _repeat(self, args: Any, kwargs: Any, *, find_first: bool, in_fp32: bool) -> None:
        """Find the first bad module, and the operation, by a second pass; if that is not possible, check all modules in
        the next steps.

        With `in_fp32` a third pass tells whether it is finite in FP32.
        """
        module, repetition, operation = "", None, None
        try:
            watch = PassWatch() if not is_anything_compiled() else None
            low = second_pass(self._model, args, kwargs, watch, self._state)
            module, operation = low.module, watch.made(low.outputs) if watch is not None else None
            repetition = repeated_in_fp32(self._model, args, kwargs, low, self._state) if in_fp32 else None
            if repetition is not None and watch is not None:
                repetition = replace(repetition, cast=watch.cast)
        except CannotRepeat as reason:
            self.cannot_repeat = message_of(reason)
            if in_fp32 and is_in_16_bits(self._model):
                repetition = Repetition(None, why=self.cannot_repeat)
        self.repetitions.add(repetition, operation)
        if module and find_first:
            self.detector.correct(plain_name(module))
            self._located = True
        elif find_first and not self._everywhere:
            self._watch_on = _WATCH_STEPS

    def on_gradient(self, name: str, gradient: Tensor) -> None:
        """Handles the gradient of an output."""
        if self.watching:
            self._measure("activation_gradient", name, gradient)

    def _is_training(self) -> bool:
        """Neither evaluation nor the second forward pass of a checkpoint, and with tensors that have numbers.

        What the model computes without a graph inside its forward pass belongs to it, as a frozen part.
        """
        return (
            self._model.training
            and (self._inside or torch.is_grad_enabled())
            and graph_task() == -1
            and transform_level() is None
            and tracing_state() is None
            and (self._on_cpu or not torch.cuda.is_current_stream_capturing())
        )

    def _watch(self, name: str, outputs: Any) -> None:
        for path, tensor in floats(outputs):
            if "activation" in self._requested:
                self._measure("activation", name + path, tensor)
            if "activation_gradient" in self._requested and tensor.requires_grad:
                self.calls += 1
                tensor.register_hook(_GradientHook(self, name + path))


class _ModelHook(Hook):
    """Called by the model itself, as its forward pass begins or ends."""

    __slots__ = ("_outputs",)

    def __init__(self, outputs: Outputs) -> None:
        super().__init__(outputs.guard)
        self._outputs = outputs


class _EntranceHook(_ModelHook):
    """Called by the model when its forward pass begins."""

    __slots__ = ()

    def __call__(self, _module: nn.Module, _inputs: Any) -> None:
        if self._outputs.watching and not torch.compiler.is_compiling():
            self._outputs.entered()


class _StateHook(_ModelHook):
    """Called by a model with classes of one's own when its forward pass begins.

    It stays where there is nothing to keep: a compiled model would be compiled anew without it.
    """

    __slots__ = ()

    def __call__(self, _module: nn.Module, _inputs: Any) -> None:
        if self._outputs.watching and not torch.compiler.is_compiling():
            self._outputs.keep_state()


class _ReturnHook(_ModelHook):
    """Called by the model with what it was given and what it returns."""

    __slots__ = ()

    def __call__(self, _module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
        if self._outputs.watching and not torch.compiler.is_compiling():
            self._outputs.returned(args, kwargs, outputs)


class _OutputHook(Hook):
    """Called by a module with its inputs and outputs, in every pass: it asks for as little as it can."""

    __slots__ = ("_name", "_outputs", "_weighty")

    def __init__(self, outputs: Outputs, name: str, *, weighty: bool) -> None:
        super().__init__(outputs.guard)
        self._outputs, self._name, self._weighty = outputs, name, weighty

    def __call__(self, _module: nn.Module, _inputs: Any, outputs: Any) -> None:
        if self._outputs.watching and not torch.compiler.is_compiling():
            self._outputs.on_output(self._name, outputs, weighty=self._weighty)


class _GradientHook(Hook):
    """Called by a tensor with its gradient: None for an output that nothing has used, of a node that has several, as
    the states of an LSTM of cuDNN."""

    __slots__ = ("_name", "_outputs")

    def __init__(self, outputs: Outputs, name: str) -> None:
        super().__init__(outputs.guard)
        self._outputs, self._name = outputs, name

    def __call__(self, gradient: Tensor | None) -> None:
        if gradient is not None:
            self._outputs.on_gradient(self._name, gradient)


@cache
def hook_s() -> float:
    """CPU seconds of one call of a hook without its work; measured once with a module that computes nothing."""
    module = nn.Identity()
    outputs, sample = Outputs(nn.Sequential(module), lambda *_: None), torch.ones(1, dtype=torch.float32, device="cpu")

    def called_s(*, hooked: bool) -> float:
        outputs.begin(frozenset(), guarded=hooked, everywhere=hooked)
        begin = time.thread_time()
        for _ in range(_CALLS):
            module(sample)
        return (time.thread_time() - begin - outputs.detector.spent_s) / _CALLS

    taken = min(called_s(hooked=True) for _ in range(5)) - min(called_s(hooked=False) for _ in range(5))
    return max(_COLD * taken, 0.0)
