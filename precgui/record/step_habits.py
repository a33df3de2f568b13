"""Habits of the steps of a loop: parameters of two optimizers, passes in evaluation mode."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from precgui.engine.telemetry.parameters import parameters_of
from precgui.engine.telemetry.readable import readable, unseen

_MOST_SHARED = 4  # parameters in two optimizers whose gradients are looked at
_STEPS = 3  # in which two optimizers used the same gradients
_IN_EVALUATION = 10  # steps in a row
_MOST_MODULES = 4  # with a mode, that are asked
_EVALUATIONS = 8  # that are counted
_DROPOUTS = nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout
_BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm


class SharedGradients:
    """Whether two optimizers step with the same gradients of the same parameters, with no backward pass in between."""

    def __init__(self) -> None:
        self._shared: list[weakref.ref[Tensor]] = []
        self._used: dict[int, tuple[weakref.ref[Optimizer], weakref.ref[Tensor], int]] = {}
        self._count = 0

    def watch(self, optimizers: Sequence[Optimizer]) -> None:
        """Watch the parameters that two of these optimizers have."""
        own = [list({id(p): p for p in parameters_of(each)}.values()) for each in optimizers]
        counts = Counter(id(parameter) for each in own for parameter in each)
        every = {id(parameter): parameter for each in own for parameter in each if counts[id(parameter)] > 1}
        self._shared = [weakref.ref(each) for each in list(every.values())[:_MOST_SHARED]]

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        again = False
        for reference in self._shared:
            parameter = reference()
            gradient = parameter.grad if parameter is not None else None
            if gradient is None or all(each is not parameter for each in parameters_of(optimizer)):
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


class OpposedGradients:
    """Whether the gradients of one optimizer point against those of another one that holds all its parameters, too.

    Compared in rounds 1, 2, 4, 8 and so on: a loss of its own is behind each of both steps.
    """

    def __init__(self) -> None:
        self._pair: tuple[weakref.ref[Optimizer], weakref.ref[Optimizer]] | None = None
        self._shared: list[weakref.ref[Tensor]] = []
        self._held: list[tuple[weakref.ref[Tensor], int, Tensor]] = []  # of the optimizer with fewer parameters
        self._rounds = self._compared = self._opposed = 0

    def watch(self, optimizers: Sequence[Optimizer]) -> None:
        """Watch the first two of these optimizers of which one holds all parameters of the other, and more."""
        own = [{id(p): p for p in parameters_of(each)} for each in optimizers]
        pairs = [(a, b) for a in range(len(own)) for b in range(len(own)) if own[a] and own[a].keys() < own[b].keys()]
        if pairs and self._pair is None:
            few, more = pairs[0]
            self._pair = weakref.ref(optimizers[few]), weakref.ref(optimizers[more])
            self._shared = [weakref.ref(each) for each in list(own[few].values())[:_MOST_SHARED]]

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        if self._pair is None:
            return
        if self._pair[0]() is optimizer:
            self._rounds += 1
            power_of_2 = not self._rounds & (self._rounds - 1)
            self._held = self._gradients() if power_of_2 else []
        elif self._held and self._pair[1]() is optimizer:
            self._compare()
            self._held = []

    def _gradients(self) -> list[tuple[weakref.ref[Tensor], int, Tensor]]:
        every = []
        with unseen():
            for reference in self._shared:
                parameter = reference()
                gradient = parameter.grad if parameter is not None else None
                values = readable(gradient) if gradient is not None else None
                if gradient is None or values is None:
                    return []
                every.append((weakref.ref(gradient), gradient._version, values.detach().clone()))
        return every

    def _compare(self) -> None:
        others = self._gradients()
        if len(others) != len(self._held):
            return
        again = any(a() is b() and v == w for (a, v, _), (b, w, _) in zip(self._held, others, strict=True))
        if again or any(a.shape != b.shape for (*_, a), (*_, b) in zip(self._held, others, strict=True)):
            return
        with unseen():
            product = sum(float((a * b).sum()) for (*_, a), (*_, b) in zip(self._held, others, strict=True))
        self._compared += 1
        self._opposed += product < 0

    def fact(self) -> dict[str, int] | None:
        """How many rounds were compared, and in how many the gradients had a negative product; None of none."""
        return {"compared": self._compared, "opposed": self._opposed} if self._compared else None


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


class Evaluations:
    """Whether the passes without gradients before each evaluation that the loop reports were in training mode.

    Of the modules that know a mode: dropout, and batch norm that keeps statistics. Only passes after the last step of
    an optimizer count: others, as of a teacher or a policy, come before it.
    """

    def __init__(self, model: nn.Module) -> None:
        own = [each for each in model.modules() if _has_mode(each)]
        self._kinds = sorted({type(each).__name__ for each in own})
        self._modules = [weakref.ref(each) for each in own[:_MOST_MODULES]]
        self._passes = self._in_training = 0
        self._evaluations, self._all_in_training = 0, True

    def pass_begins(self) -> None:
        """A pass of the model without gradients begins."""
        if self._modules:
            modes = [each.training for reference in self._modules if (each := reference()) is not None]
            self._passes += 1
            self._in_training += bool(modes) and all(modes)

    def stepped(self) -> None:
        """An optimizer has stepped."""
        self._passes = self._in_training = 0

    def evaluated(self) -> None:
        """The loop reports an evaluation."""
        if self._passes:
            self._evaluations = min(self._evaluations + 1, _EVALUATIONS)
            self._all_in_training &= self._in_training == self._passes
        self._passes = self._in_training = 0

    def fact(self) -> dict[str, object] | None:
        """How many evaluations came after passes of the model, up to 8, and whether all these were in training mode."""
        if not self._evaluations:
            return None
        return {"evaluations": self._evaluations, "in_training": self._all_in_training, "modules": self._kinds}


def _has_mode(module: nn.Module) -> bool:
    if isinstance(module, _DROPOUTS):
        return module.p > 0
    return isinstance(module, _BATCH_NORMS) and module.track_running_stats
