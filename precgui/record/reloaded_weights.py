"""Weights that `load_state_dict` copies onto themselves: kept without a copy, or those of the same module."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from precgui.engine.module_calls import plain_name
from precgui.engine.samples import readable_sample
from precgui.engine.telemetry.guard import Guard
from precgui.engine.telemetry.hook import Hook
from precgui.engine.telemetry.parameters import parameters_of
from precgui.engine.telemetry.readable import unseen

_MOST_MODULES, _MOST_TAKEN, _MOST_ROWS = 16, 64, 8
_SAMPLE = 512  # elements of a parameter
_OWN = 3  # steps in which a module is given its own weights, with nothing new in between
_PLAIN = (Tensor, nn.Parameter)


@dataclass
class _Taken:
    """A tensor that `state_dict` gave for a parameter, and when."""

    tensor: weakref.ref[Tensor]
    parameter: weakref.ref[nn.Parameter]
    step: int
    updates: int  # steps up to then of the optimizers that hold the parameter
    written: int  # how often the parameter was written, up to the last step of an optimizer


@dataclass
class _Own:
    """A module that was given its own weights: the last step, how often its parameter will have been written then."""

    step: int
    written: int
    sample: Tensor
    count: int = 1


class ReloadedWeights:
    """Watches `state_dict` and `load_state_dict` of the model and of its parts.

    A row is made of each module whose parameters are all copied onto themselves. Its kind is `kept` where the tensors
    are those that `state_dict` had given, optimizers have stepped since, and nobody has written the weights after the
    last step. It is `own` where no optimizer steps and it came after three steps, with weights that nobody had written
    in between. A state that is edited in place and then loaded was written.
    """

    def __init__(self, model: nn.Module, guard: Guard, *, active: bool) -> None:
        self._step = self._reported = 0  # the last step that is over
        self._updates: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._taken: list[_Taken] = []
        self._own: weakref.WeakKeyDictionary[nn.Module, _Own] = weakref.WeakKeyDictionary()
        self._rows: dict[tuple[str, str], dict[str, Any]] = {}
        self._handles: list[RemovableHandle] = []
        for name, module in _watched(model) if active else ():
            self._handles += [
                module.register_state_dict_post_hook(_TakenHook(guard, self)),
                module.register_load_state_dict_pre_hook(_LoadedHook(guard, self, name)),
            ]

    def watch(self, optimizer: Optimizer) -> None:
        """Count the steps of this optimizer, too."""
        self._updates.setdefault(optimizer, 0)

    def begin(self, step: int) -> None:
        """A step begins."""
        self._step = step - 1

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped."""
        self._updates[optimizer] = self._updates.get(optimizer, 0) + 1
        for each in self._taken:
            parameter = each.parameter()
            if parameter is not None:
                each.written = parameter._version

    def taken(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        """`state_dict` of a module returns this."""
        name, parameter = self._parameter(module)
        tensor = state.get(name)
        if parameter is None or not isinstance(tensor, Tensor) or not _are_same(tensor, parameter):
            return
        alive = [each for each in self._taken if (own := each.tensor()) is not None and own is not tensor]
        new = _Taken(
            weakref.ref(tensor), weakref.ref(parameter), self._step, self._steps_of(parameter), parameter._version
        )
        self._taken = [*alive, new][-_MOST_TAKEN:]

    def loaded(self, name: str, module: nn.Module, state: Mapping[str, Any]) -> None:
        """`load_state_dict` of a module, which the model calls `name`, is about to copy this."""
        place, parameter = self._parameter(module)
        pairs = [(state[own], each) for own, each in module.named_parameters() if own in state]
        if parameter is None or place not in state or not all(_are_same(*pair) for pair in pairs):
            self._own.pop(module, None)
            return
        if not self._steps_of(parameter):
            self._is_given_its_own(name, module, parameter, len(pairs))
            return
        known = next((each for each in self._taken if each.tensor() is state[place]), None)
        if known is not None and self._steps_of(parameter) > known.updates and known.written == parameter._version:
            self._note("kept", name, known.step, len(pairs))

    def _is_given_its_own(self, name: str, module: nn.Module, parameter: nn.Parameter, parameters: int) -> None:
        """A module in which nothing learns gets the weights that it has."""
        with unseen():
            values = readable_sample(parameter, _SAMPLE)
            if values is None:
                return
            before, written = self._own.get(module), parameter._version
            if before is None or before.written != written or not torch.equal(before.sample, values):
                self._own[module] = _Own(self._step, written + 1, values.clone())
                return
        before.written = written + 1  # it is copied onto itself
        if before.step == self._step:
            return
        before.step, before.count = self._step, before.count + 1
        if before.count >= _OWN:
            self._note("own", name, self._step, parameters)

    def _note(self, kind: str, name: str, since: int, parameters: int) -> None:
        known = self._rows.get((kind, name))
        if known is not None or len(self._rows) < _MOST_ROWS:
            self._rows[kind, name] = {
                "kind": kind, "module": name, "step": self._step, "since": since, "parameters": parameters,
                "count": 1 if known is None else known["count"] + 1,
            }  # fmt: skip

    def _parameter(self, module: nn.Module) -> tuple[str, nn.Parameter | None]:
        """The first parameter that an optimizer holds, or the first one; None where there is none to read."""
        own = list(module.named_parameters())
        held = {id(each) for optimizer in self._updates for each in parameters_of(optimizer)}
        name, parameter = next((pair for pair in own if id(pair[1]) in held), own[0] if own else ("", None))
        return name, parameter if type(parameter) in _PLAIN else None

    def _steps_of(self, parameter: nn.Parameter) -> int:
        """How often optimizers that hold a parameter have stepped."""
        every = list(self._updates.items())
        return sum(count for optimizer, count in every if any(each is parameter for each in parameters_of(optimizer)))

    def news(self) -> dict[str, Any]:
        """The fact where it has changed since the last call, else {}."""
        told = sum(row["count"] for row in self._rows.values())
        if told == self._reported:
            return {}
        self._reported = told
        return {"reloaded_weights": {"all": list(self._rows.values())}}

    def close(self) -> None:
        """Remove the hooks."""
        for each in self._handles:
            each.remove()
        self._handles = []


class _TakenHook(Hook):
    """Called by a module whose `state_dict` is complete."""

    __slots__ = ("_from_public_api", "_watch")

    def __init__(self, guard: Guard, watch: ReloadedWeights) -> None:
        super().__init__(guard)
        self._watch = watch

    def __call__(self, module: nn.Module, state: Mapping[str, Any], prefix: str, *_: Any) -> None:
        if not prefix:  # not as a part of another one
            self._watch.taken(module, state)


class _LoadedHook(Hook):
    """Called by a module that is about to load a state."""

    __slots__ = ("_name", "_watch")

    def __init__(self, guard: Guard, watch: ReloadedWeights, name: str) -> None:
        super().__init__(guard)
        self._watch, self._name = watch, name

    def __call__(self, module: nn.Module, state: Mapping[str, Any], prefix: str, *_: Any) -> None:
        if not prefix:
            self._watch.loaded(self._name, module, state)


def _watched(model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """The model and its direct parts, with their names; a scripted module takes no hooks."""
    named = [("", model), *((plain_name(name), each) for name, each in model.named_children())]
    every = [(name, each) for name, each in named if not isinstance(each, torch.jit.ScriptModule)]
    return [(name, each) for name, each in every if next(each.parameters(), None) is not None][:_MOST_MODULES]


def _are_same(tensor: Any, parameter: nn.Parameter) -> bool:
    """Whether two tensors are the same numbers in the same memory."""
    if type(tensor) not in _PLAIN or type(parameter) not in _PLAIN or tensor.is_meta or parameter.is_meta:
        return False
    if tensor.layout is not torch.strided or tensor.shape != parameter.shape or not tensor.numel():
        return False
    return bool(tensor.dtype == parameter.dtype and tensor.data_ptr() == parameter.data_ptr() != 0)
