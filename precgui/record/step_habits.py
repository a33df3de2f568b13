"""Habits of the steps of a loop: one gradient used by two optimizers, passes in evaluation mode."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

_MOST_SHARED = 4  # parameters in two optimizers whose gradients are looked at
_STEPS = 3  # in which two optimizers used the same gradients
_IN_EVALUATION = 10  # steps in a row


class SharedGradients:
    """Whether two optimizers step with the same gradients of the same parameters, with no backward pass in between."""

    def __init__(self) -> None:
        self._shared: list[weakref.ref[Tensor]] = []
        self._used: dict[int, tuple[weakref.ref[Optimizer], weakref.ref[Tensor], int]] = {}
        self._count = 0

    def watch(self, optimizers: Sequence[Optimizer]) -> None:
        """Watch the parameters that two of these optimizers have."""
        own = [list({id(p): p for group in each.param_groups for p in group["params"]}.values()) for each in optimizers]
        counts = Counter(id(parameter) for each in own for parameter in each)
        every = {id(parameter): parameter for each in own for parameter in each if counts[id(parameter)] > 1}
        self._shared = [weakref.ref(each) for each in list(every.values())[:_MOST_SHARED]]

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        again = False
        for reference in self._shared:
            parameter = reference()
            gradient = parameter.grad if parameter is not None else None
            if gradient is None or all(p is not parameter for group in optimizer.param_groups for p in group["params"]):
                continue
            known = self._used.get(id(parameter))
            again |= known is not None and _is_same(known, optimizer, gradient)
            self._used[id(parameter)] = weakref.ref(optimizer), weakref.ref(gradient), gradient._version
        self._count += again

    @property
    def are_used_twice(self) -> bool | None:
        """None where no two optimizers have a parameter in common."""
        return self._count >= _STEPS if self._shared else None


def _is_same(
    known: tuple[weakref.ref[Optimizer], weakref.ref[Tensor], int], optimizer: Optimizer, gradient: Tensor
) -> bool:
    """Whether another optimizer stepped with this very gradient, which nothing has changed since."""
    other, before, version = known
    return other() is not optimizer and before() is gradient and version == gradient._version


class EvaluationMode:
    """Whether steps are made after passes in evaluation mode, from some step on or always."""

    def __init__(self) -> None:
        self._first: weakref.ref[Optimizer] | None = None
        self._steps = self._in_a_row = 0
        self._has_trained = False
        self._is_training = True  # the last pass with gradients

    def pass_begins(self, *, training: bool) -> None:
        """A forward pass with gradients begins."""
        self._is_training = training

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step; the first one counts."""
        self._first = self._first or weakref.ref(optimizer)
        if self._first() is not optimizer:
            return
        self._steps += 1
        self._has_trained |= self._is_training
        self._in_a_row = 0 if self._is_training else self._in_a_row + 1

    @property
    def is_constant(self) -> bool:
        """Whether no step up to now was in training mode, of 10 or more."""
        return not self._has_trained and self._in_a_row >= _IN_EVALUATION

    @property
    def since(self) -> int | None:
        """The first of the steps in evaluation mode up to now; None of few, and where no step was in training mode."""
        return self._steps - self._in_a_row + 1 if self._has_trained and self._in_a_row >= _IN_EVALUATION else None
