"""Whether a loop clears its gradients, takes its steps through the loss scaler, and leaves autocast between them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from precgui.engine.census import Observer
from precgui.engine.telemetry.guard import Guard
from precgui.engine.telemetry.hook import Hook
from precgui.engine.telemetry.parameters import parameters_of
from precgui.engine.telemetry.readable import readable, unseen
from precgui.engine.torch_private import function_modes
from precgui.record import arguments
from precgui.record.backward_roots import BackwardRoots
from precgui.record.later_numbers import LaterNumbers
from precgui.record.master_weights import MasterCopies
from precgui.record.step_habits import EvaluationMode, Evaluations, OpposedGradients, SharedGradients
from precgui.record.unscaling import DoubleUnscaling, HandUnscaling

_INTERVALS = 3  # between steps of an optimizer that are observed until it counts as one that never clears
_STALE, _FRESH = 2, 3  # observations of casts that decide
_MOST_PASSES = 200  # in which autocast was not seen with its cache, then nobody looks any more


class _Watched:
    """One optimizer: whether a backward pass met cleared gradients since its last step."""

    def __init__(self) -> None:
        self.steps = 0
        self.uncleared = 0  # intervals between two steps in which no pass met cleared gradients
        self.arrived = self.was_cleared = False
        self.meets: bool | None = None  # whether the gradient on its way meets cleared ones; None where unknown
        self.has_closure = False  # its gradients are made inside of its steps


class LoopOrder:
    """Notes for each optimizer whether gradients are None or zero when the first pass after its step arrives.

    It hooks up to three parameters of each optimizer until that is decided: one interval with cleared gradients, or
    three without.
    """

    def __init__(self, scaler: Any, model: nn.Module, device: torch.device, guard: Guard, later: LaterNumbers, *,
                 active: bool, masters: MasterCopies | None = None) -> None:  # fmt: skip
        """`scaler` is a GradScaler or None, `device` that of the weights. Without `active` gradients are not hooked."""
        self._scaler, self._guard, self._active = scaler, guard, active
        self._watched: weakref.WeakKeyDictionary[Optimizer, _Watched] = weakref.WeakKeyDictionary()
        self._handles: weakref.WeakKeyDictionary[Optimizer, list[RemovableHandle]] = weakref.WeakKeyDictionary()
        self._cleared: bool | None = None
        self._through = self._past = 0
        scaled = active and scaler is not None
        self._by_hand = HandUnscaling(guard, later) if scaled else None
        self._double = DoubleUnscaling(guard, later) if scaled else None
        self._roots = BackwardRoots(scaler, guard) if scaled else None
        self._casts = StaleCasts(device, later) if active else None
        self._shared, self._opposed, self._mode = SharedGradients(), OpposedGradients(), EvaluationMode()
        self._evaluations = Evaluations(model)
        self._reported: dict[str, Any] = {}
        self._masters = masters

    def watch(self, optimizers: Sequence[Optimizer]) -> None:
        """Watch those of the optimizers that are not watched yet."""
        self._shared.watch(optimizers)
        self._opposed.watch(optimizers)
        for optimizer in optimizers if self._active and self._cleared is None else ():
            if optimizer not in self._watched:
                state = self._watched[optimizer] = _Watched()
                hooked = _hooked(optimizer)
                self._handles[optimizer] = [
                    *(p.register_hook(_ArrivingHook(self._guard, p, state)) for p in hooked),
                    *(p.register_post_accumulate_grad_hook(_AddedHook(self._guard, state)) for p in hooked),
                ]
                for each in (self._by_hand, self._double, self._roots) if hooked else ():
                    if each is not None:
                        each.watch(optimizer, hooked)

    @property
    def observers(self) -> list[Observer]:
        """Functions to be told of each operation of the first step."""
        return [self._roots.on_operation] if self._roots is not None else []

    def pass_with_gradients(self, *, training: bool) -> None:
        """The model is about to be called with gradients, in training mode or not."""
        self._mode.pass_begins(training=training)

    def pass_without_gradients(self) -> None:
        """The model is about to be called without gradients."""
        self._evaluations.pass_begins()

    def evaluated(self) -> None:
        """The loop reports an evaluation."""
        self._evaluations.evaluated()

    def pass_begins(self) -> None:
        """The model is about to be called for training."""
        if self._casts is not None:
            self._casts.pass_begins()

    def first_step_over(self) -> None:
        """No more operations are told to the observers."""
        if self._roots is not None:
            self._roots.end()

    def stepped(self) -> None:
        """An optimizer has changed its weights."""
        self._evaluations.stepped()
        if self._casts is not None:
            self._casts.stepped()

    def steps(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Note a step that an optimizer is about to make; with a `closure` the passes follow, not precede it."""
        self._note_scaler(optimizer)
        if self._masters is not None:
            self._masters.steps()
        if not closure:  # inside of which gradients and passes follow
            self._shared.stepped(optimizer)
            self._opposed.stepped(optimizer)
            self._mode.stepped(optimizer)
        state = self._watched.get(optimizer)
        if state is None or self._cleared is not None:
            return
        if closure and not state.has_closure:  # in the first step nothing is there to be cleared
            state.has_closure = True
            return
        if state.steps and state.arrived:
            state.uncleared = 0 if state.was_cleared else state.uncleared + 1
            if state.was_cleared or state.uncleared >= _INTERVALS:
                self._decide(optimizer, cleared=state.was_cleared)
        state.steps += 1
        state.arrived = state.was_cleared = False

    def _decide(self, optimizer: Optimizer, *, cleared: bool) -> None:
        """One optimizer that never clears decides for all; that it does counts once all of them are decided."""
        for handle in self._handles.pop(optimizer, []):
            handle.remove()
        del self._watched[optimizer]
        if not cleared or not self._handles:
            self._cleared = cleared
            self._drop_handles()

    def _note_scaler(self, optimizer: Optimizer) -> None:
        scaler = self._scaler
        if scaler is None or arguments.is_idle(scaler):
            return
        if getattr(optimizer, "grad_scale", None) is not None:  # a fused optimizer unscales by itself
            self._through += 1
            return
        states = getattr(scaler, "_per_optimizer_states", None)
        own = states.get(id(optimizer)) if states is not None else None
        stage = getattr(own.get("stage"), "name", "") if own is not None else ""
        if stage == "UNSCALED":
            self._through += 1
            if self._roots is not None:
                self._roots.stepped(optimizer)
            if self._by_hand is not None:
                self._by_hand.close()
            if self._double is not None and self._double.answer is None:
                self._double.stepped(optimizer, arguments.copied_scale(scaler))
        elif states is not None and not states and self._through == 0:
            self._past += 1
            if self._by_hand is not None:
                self._by_hand.stepped(optimizer, arguments.copied_scale(scaler))

    def news(self) -> dict[str, Any]:
        """The facts as far as they have changed since the last call; {} for none.

        `gradients_cleared` is None while undecided, `stepped_twice` (see `SharedGradients`), `evaluation_mode_since`
        and `always_in_evaluation` (see `EvaluationMode`) where it is not so, `opposed_gradients` is
        `OpposedGradients.fact`, `evaluations` `Evaluations.fact`, `master_weights` and `masters_copied_back` are those
        of `MasterCopies`. `past_scaler` counts nothing but says whether steps took gradients that were still scaled
        and none went through a scaler in use; of such a loop, `still_scaled` is the answer of `HandUnscaling`.
        `unscaled_twice` and `stale_casts` are those of `DoubleUnscaling` and `StaleCasts`, None while undecided; see
        `BackwardRoots.facts` for others.
        """
        masters = self._masters
        facts: dict[str, Any] = {
            "gradients_cleared": self._cleared, "stepped_twice": self._shared.are_used_twice or None,
            "evaluation_mode_since": self._mode.since, "always_in_evaluation": self._mode.is_constant or None,
            "opposed_gradients": self._opposed.fact(), "evaluations": self._evaluations.fact(),
            "master_weights": masters.count if masters is not None else None,
            "masters_copied_back": masters.are_copied_back if masters is not None else None,
        }  # fmt: skip
        if self._casts is not None:
            facts["stale_casts"] = self._casts.are_used
        if self._scaler is not None:
            facts["past_scaler"] = self._past > 0 and not self._through
            facts["still_scaled"] = self._by_hand.answer if facts["past_scaler"] and self._by_hand else None
            facts["unscaled_twice"] = self._double.answer if self._double is not None else None
            facts |= self._roots.facts() if self._roots is not None else {}
        if facts == self._reported or all(value is None for value in facts.values()):
            return {}
        self._reported = facts
        return dict(facts)

    def close(self) -> None:
        """Take all hooks from the parameters."""
        for each in (self._by_hand, self._double, self._roots):
            if each is not None:
                each.close()
        self._drop_handles()

    def _drop_handles(self) -> None:
        for handles in self._handles.values():
            for handle in handles:
                handle.remove()
        self._handles.clear()
        self._watched.clear()


def _hooked(optimizer: Optimizer) -> list[Tensor]:
    """The smallest, the first and the last of its parameters that take hooks."""
    own = [each for each in parameters_of(optimizer) if each.requires_grad and each.is_leaf]
    chosen = [min(own, key=lambda p: p.numel()), own[0], own[-1]] if own else []
    return list({id(parameter): parameter for parameter in chosen}.values())


class _ArrivingHook(Hook):
    """Called by a parameter with a gradient that may be added to what it holds; `autograd.grad` adds nothing."""

    __slots__ = ("_parameter", "_state")

    def __init__(self, guard: Guard, parameter: Tensor, state: _Watched) -> None:
        super().__init__(guard)
        self._parameter, self._state = weakref.ref(parameter), state

    def __call__(self, gradient: Tensor | None, *_: Any) -> None:
        state, parameter = self._state, self._parameter()
        state.meets = None
        if gradient is None or parameter is None or state.was_cleared or not state.steps:
            return
        held = parameter.grad
        with unseen():
            if held is None:
                state.meets = True
            elif (values := readable(held)) is not None:
                state.meets = not bool(values.any())


class _AddedHook(Hook):
    """Called by a parameter once the gradient on its way was added to what it holds."""

    __slots__ = ("_state",)

    def __init__(self, guard: Guard, state: _Watched) -> None:
        super().__init__(guard)
        self._state = state

    def __call__(self, *_: Any) -> None:
        state = self._state
        if state.meets is not None:
            state.arrived = True
            state.was_cleared = state.was_cleared or state.meets
            state.meets = None


class StaleCasts:
    """Whether autocast keeps its copies of the weights beyond a step of the optimizer, so that passes use old weights.

    Sends a number of its own the way of the weights: cast in a forward pass, changed with the step of an optimizer.

    Autocast keeps casts of weights until its outermost region is left. Where the next forward pass still meets the old
    cast of the number, the region was not left in between, and it meets the old casts of the weights, too.
    """

    def __init__(self, device: torch.device, later: LaterNumbers) -> None:
        self.are_used: bool | None = None  # None: undecided
        self._device, self._later = device, later
        self._number: Tensor | None = None
        self._value = 1.0  # of the number
        self._passes = self._stale = self._fresh = 0
        self._was_cast = self._was_changed = False

    def pass_begins(self) -> None:
        """The model is about to be called for training, in the state of autocast at this moment."""
        if self.are_used is not None or self._passes > _MOST_PASSES:
            return
        self._passes += 1
        if not torch.is_autocast_enabled(self._device.type) or not torch.is_autocast_cache_enabled() or _captured():
            return
        cast = self._product()
        if self._was_cast and self._was_changed:
            self._later.ask([cast], partial(self._compare, self._value))
        self._was_cast, self._was_changed = True, False

    def _compare(self, present: float, values: list[float]) -> None:
        """Judge by the number as autocast gave it to a product, and as it was."""
        if self.are_used is not None:
            return
        stale = values[0] != present
        self._stale, self._fresh = self._stale + stale, self._fresh + (not stale)
        if self._stale >= _STALE or self._fresh >= _FRESH:
            self.are_used, self._number = self._stale >= _STALE, None

    def stepped(self) -> None:
        """An optimizer has changed the weights."""
        if self._number is not None and self._was_cast:
            with unseen():
                self._number.add_(1)
            self._value += 1
            self._was_changed = True

    def _product(self) -> Tensor:
        """The number as autocast gives it to a product: small whole numbers are exact in 16 bits."""
        if self._number is None:
            self._number = torch.ones(1, 1, dtype=torch.float32, device=self._device, requires_grad=True)
        with unseen(), torch.enable_grad():
            return torch.mm(self._number, torch.ones(1, 1, dtype=torch.float32, device=self._device)).detach()


def _captured() -> bool:
    """Whether a number cannot be read now: a CUDA graph is captured, or a mode of others sees each operation."""
    return bool(function_modes()) or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
