"""Parameters that a model computes with and does not hold, as those of layers in a plain list: nothing trains them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.torch_private import as_list, graph_task

_SAMPLE = 64  # elements that tell whether a parameter has changed
_MOST = 4096  # parameters that are remembered


@dataclass
class _Met:
    parameter: weakref.ref[Tensor]
    module: str
    sample: Tensor
    step: int


class HiddenParameters:
    """Told of each operation in the forward pass of a model: parameters that require a gradient, are neither the
    model's nor an optimizer's, get gradients, and are as they were in the step seen before."""

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self._known: set[int] = set()
        self._met: dict[int, _Met] = {}
        self._still: dict[int, tuple[int, str]] = {}  # elements and module of those that stayed as they were
        self._trained = self._step = 0

    def begin(self, step: int, trained: Iterable[Tensor]) -> None:
        """A step begins, which will update `trained`."""
        model, weights = self._model(), list(trained)
        own = list(model.parameters()) if model is not None else []
        self._known = {id(each) for each in (*own, *weights)}
        self._trained, self._step = sum(each.numel() for each in weights), step

    def observe(self, args: Any, module: str) -> None:
        """An operation in the forward pass of a module of the model has run."""
        if graph_task() != -1 or not torch.is_grad_enabled():
            return
        for part in (part for each in args for part in as_list(each)):
            if isinstance(part, nn.Parameter) and part.requires_grad and id(part) not in self._known:
                self._meet(part, module)

    def _meet(self, parameter: Tensor, module: str) -> None:
        known = self._met.get(id(parameter))
        if known is None or known.parameter() is not parameter:
            if len(self._met) < _MOST and parameter.is_leaf:
                self._met[id(parameter)] = _Met(weakref.ref(parameter), module, _sample(parameter), self._step)
        elif known.step < self._step:
            is_still = parameter.grad is not None and torch.equal(_sample(parameter), known.sample)
            known.step = self._step
            if is_still:
                self._still[id(parameter)] = parameter.numel(), known.module
            else:
                self._still.pop(id(parameter), None)
                known.sample = _sample(parameter)

    def facts(self) -> list[dict[str, Any]]:
        """One row where there are such parameters, see `hidden_parameters` in docs/run-file.md."""
        if not self._still:
            return []
        elements = sum(count for count, _ in self._still.values())
        modules = sorted({module for _, module in self._still.values()})
        return [{"parameters": len(self._still), "elements": elements, "trained": self._trained,
                 "modules": modules[:8], "step": self._step}]  # fmt: skip


def _sample(parameter: Tensor) -> Tensor:
    return parameter.detach().reshape(-1)[:_SAMPLE].clone()
