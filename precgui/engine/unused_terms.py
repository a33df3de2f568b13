"""Terms of a loss whose gradients no optimizer uses: they reach only parameters that are cleared before their step."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from precgui.engine.graph_leaves import leaves_of
from precgui.engine.telemetry.parameters import parameters_of
from precgui.engine.watcher import OperationCall, Watcher

# Nodes of the graph by which terms, numbers each, are added up: operands get the gradient, but for a factor.
_SUMS = ("AddBackward", "SubBackward", "RsubBackward", "MulBackward", "DivBackward", "NegBackward", "StackBackward",
         "SqueezeBackward", "ViewBackward", "ToCopyBackward")  # fmt: skip
_OF_LISTS = ("SumBackward", "MeanBackward")  # of terms only where these were stacked
_PRODUCTS = ("MulBackward", "DivBackward")  # of terms only where one operand has no gradient
_MOST_TERMS, _MOST_NAMES = 64, 4


@dataclass
class _Term:
    leaves: dict[int, weakref.ref[Tensor]]
    has_layers: bool
    is_used: bool = False
    is_cleared: bool = False
    has_arrived: bool = False


@dataclass
class _Pass:
    terms: list[_Term]
    cleared: set[int]  # leaves that had no gradient when it began
    steppers: list[str] = field(default_factory=list)

    @property
    def reached(self) -> set[frozenset[int]]:
        """The parameters that each of the terms reaches."""
        return {frozenset(term.leaves) for term in self.terms}


class UnusedTerms(Watcher):
    """Told of each operation, and of steps of optimizers; of loops with two optimizers or more.

    A backward pass begins with ones of the shape of its loss, whose graph is read then, not its numbers. Noted is a
    loss of several terms, some of which an optimizer steps with, while another term reaches only parameters of other
    optimizers that step in the same step of the loop with gradients of other passes, made after these were None. A
    penalty of weights, and a loss that is computed for each of the optimizers anew, are left alone.
    """

    fact, most_rows = "unused_terms", 12

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = weakref.ref(model)
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._passes: list[_Pass] = []
        self._held: set[int] = set()  # parameters of optimizers that stepped in this step with gradients made anew

    def begin(self, step: int) -> None:
        super().begin(step)
        self._passes, self._held = [], set()

    def observe(self, call: OperationCall) -> None:
        loss = call.args[0]
        if call.name != "ones_like" or len(self._known) < 2 or not isinstance(loss, Tensor) or loss.numel() != 1:
            return
        if loss.grad_fn is None or not self._has_room(self._step):
            return
        for term in self._terms():
            term.is_cleared |= any(parameter.grad is None for parameter in _alive(term))
        terms = _terms_of(loss.grad_fn)
        if terms is not None:
            leaves = [parameter for term in terms for parameter in _alive(term)]
            self._passes.append(_Pass(terms, {id(each) for each in leaves if each.grad is None}))

    def stepping(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        self._known.add(optimizer)
        own = {id(parameter) for parameter in parameters_of(optimizer)} if self._passes else set()
        for each in self._passes:
            for term in each.terms:
                term.has_arrived |= any(parameter.grad is not None for parameter in _alive(term))
                if not term.is_cleared and own & term.leaves.keys():
                    term.is_used = True
                    each.steppers.append(type(optimizer).__name__)
                    self._held |= own & each.cleared

    def end(self) -> None:
        for each in self._passes:
            unused = [
                term for term in each.terms
                if not term.is_used and term.has_arrived and term.has_layers and term.leaves.keys() <= self._held
            ]  # fmt: skip
            others = [other for other in self._passes if other is not each and each.reached <= other.reached]
            if unused and each.steppers and not others and self._step not in self._rows:
                self._rows[self._step] = {
                    "step": self._step, "terms": len(each.terms), "unused": len(unused),
                    "optimizer": each.steppers[0], "reaches": self._names(unused[0]),
                }  # fmt: skip
        self._passes, self._held = [], set()

    def _terms(self) -> Iterator[_Term]:
        return (term for each in self._passes for term in each.terms if not term.is_used)

    def _names(self, term: _Term) -> list[str]:
        model = self._model()
        named = model.named_parameters() if model is not None else ()
        return [name for name, parameter in named if id(parameter) in term.leaves][:_MOST_NAMES]


def _alive(term: _Term) -> Iterator[Tensor]:
    return (parameter for each in term.leaves.values() if (parameter := each()) is not None)


def _terms_of(root: Any) -> list[_Term] | None:
    """The terms of a loss that reach parameters; None where the graph is too large or hides some."""
    found = [_term_of(each) for each in _summands(root)]
    return None if None in found else [each for each in found if each is not None and each.leaves]


def _summands(root: Any) -> list[Any]:
    found, waiting = list[Any](), [root]
    while waiting:
        node = waiting.pop()
        name = node.name()
        operands = [each for each, _ in node.next_functions if each is not None]
        is_sum = name.startswith(_SUMS) and not (name.startswith(_PRODUCTS) and len(operands) > 1)
        is_sum |= name.startswith(_OF_LISTS) and any(each.name().startswith("StackBackward") for each in operands)
        if is_sum and operands and len(found) + len(waiting) < _MOST_TERMS:
            waiting += operands
        else:
            found.append(node)
    return found


def _term_of(node: Any) -> _Term | None:
    """The parameters that a node hands gradients to; None where they are not known."""
    found = leaves_of(node)
    return None if found is None else _Term(found.tensors, has_layers=found.has_layers)
