"""Parameters that a model computes with and nothing trains: of layers that it does not hold, as those in a plain
list, or of layers that its optimizers do not have."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.torch_private import as_list
from precgui.engine.watcher import Facts, OperationCall, Watcher

_SAMPLE = 64  # elements that tell whether a parameter has changed
_MOST = 4096  # parameters that are remembered
_MOST_NAMES = 64  # that are told


@dataclass
class _Met:
    parameter: weakref.ref[Tensor]
    module: str
    sample: Tensor
    step: int


class HiddenParameters(Watcher):
    """Told of each operation in the forward pass of a model: parameters that require a gradient, are no optimizer's,
    and are as they were in the step seen before. Those that are not the model's must have a gradient."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = weakref.ref(model)
        self._known: set[int] = set()  # an optimizer has them
        self._own: dict[int, str] = {}  # names of the model's
        self._met: dict[int, _Met] = {}
        self._still: dict[int, tuple[int, str]] = {}  # elements and module of those that stayed as they were
        self._trained = 0
        self._has_told = False

    def follow(self, trained: Iterable[Tensor]) -> None:
        """The step will update `trained`."""
        model, weights = self._model(), list(trained)
        self._own = {id(own): name for name, own in model.named_parameters()} if model is not None else {}
        self._known = {id(each) for each in weights}
        self._trained = sum(each.numel() for each in weights)

    def observe(self, call: OperationCall) -> None:
        if not torch.is_grad_enabled():
            return
        for part in (part for each in call.args for part in as_list(each)):
            if isinstance(part, nn.Parameter) and part.requires_grad and id(part) not in self._known:
                self._meet(part, call.module or "")

    def _meet(self, parameter: Tensor, module: str) -> None:
        known = self._met.get(id(parameter))
        if known is None or known.parameter() is not parameter:
            if len(self._met) < _MOST and parameter.is_leaf:
                self._met[id(parameter)] = _Met(weakref.ref(parameter), module, _sample(parameter), self._step)
        elif known.step < self._step:
            may_learn = parameter.grad is not None or id(parameter) in self._own  # may be cleared by now
            is_still = may_learn and torch.equal(_sample(parameter), known.sample)
            known.step = self._step
            if is_still:
                self._still[id(parameter)] = parameter.numel(), known.module
            else:
                self._still.pop(id(parameter), None)
                known.sample = _sample(parameter)

    def facts(self) -> Facts:
        return {"hidden_parameters": self._hidden(), "untrained_parameters": self._left_out()}

    def _hidden(self) -> list[dict[str, Any]]:
        """One row where there are such parameters that the model does not hold."""
        hidden = [each for place, each in self._still.items() if place not in self._own]
        if not hidden:
            return []
        modules = sorted({module for _, module in hidden})
        return [{"parameters": len(hidden), "elements": sum(count for count, _ in hidden), "trained": self._trained,
                 "modules": modules[:8], "step": self._step}]  # fmt: skip

    def _left_out(self) -> list[dict[str, Any]]:
        """One row with the names of such parameters that the model holds; once there were some, also where there are
        none any more."""
        names = [name for place, name in self._own.items() if place in self._still]
        self._has_told |= bool(names)
        return [{"names": names[:_MOST_NAMES], "parameters": len(names), "step": self._step}] if self._has_told else []


def _sample(parameter: Tensor) -> Tensor:
    return parameter.detach().reshape(-1)[:_SAMPLE].clone()
