"""A step beside its FP64 form, measured: the errors of loss and gradient, and whose they are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from precgui.engine.errors import EngineError
from precgui.engine.shadow.attribution import ErrorShares, distance, norm
from precgui.engine.shadow.blockwise import WideReplay
from precgui.engine.shadow.nonfinite import NonFiniteOrigin, first_origin, producers
from precgui.engine.shadow.record import RecordedStep
from precgui.engine.shadow.replay import F64, Counterfactual
from precgui.engine.shadow.semantics import widened
from precgui.engine.shadow.tape import SourceLine, TapeOp
from precgui.engine.shadow.unavoidable_error import ConsumerMap, casts_of_gradients, is_avoidable, unavoidable

LOSS_ROUNDINGS = 3 * 2**-9  # three roundings to BF16: what a loss may be off without a word
SMOOTH = (0.7, 1.3)  # explained, where first order can be trusted
_CLOSED = 0.05
_NEARER = 0.5  # of the error beside FP64 with the decisions of the step: FP64 with its own is nearer by far


class StepMeasures:
    """One step beside its FP64 form: errors, their shares, and the error that is left with some of it in FP64."""

    def __init__(self, step: RecordedStep) -> None:
        self.step = step
        self.loss = step.low_loss
        self.is_finite = step.is_finite
        self._left: dict[frozenset[int], float] = {}  # by the operations that ran in FP64
        self._balance()

    def _balance(self) -> None:
        step = self.step
        requested = [*step.gradients, step.loss]
        self.origin: NonFiniteOrigin | None = None
        self.shares, self.loss_shares, self.flow = ErrorShares(0.0), ErrorShares(0.0), ConsumerMap(step.tape)
        self.unavoidable: dict[int, float] = {}
        self._wide = WideReplay.fitting(step.tape)
        table = self._wide.exact(requested)
        self.exact_gradients = [table[id] for id in step.gradients]
        self.loss_fp64 = float(table[step.loss])
        size = norm(self.exact_gradients)
        if self.is_finite:
            pairs = zip(step.gradients, step.low_gradients, self.exact_gradients, strict=True)
            errors = {id: widened(low, F64) - exact for id, low, exact in pairs}
            gap = norm(list(errors.values()))
            self.gradient_error = gap / size if size else (math.inf if gap else 0.0)
            self._share_out(requested, errors, gap)
            if not SMOOTH[0] <= self.explained <= SMOOTH[1]:
                self._take_own_decisions()
            self.unavoidable = unavoidable(step.tape, self.shares, self.gradient_error, self.flow)
        else:
            self.gradient_error = math.nan
            self.origin = first_origin(step, self._wide.blocks)
        self._wide.forget()
        self.exact_is_finite = math.isfinite(self.loss_fp64) and (
            math.isfinite(size) or all(bool(g.isfinite().all()) for g in self.exact_gradients)
        )

    def _take_own_decisions(self) -> None:
        """Measure the error from FP64 with its own decisions where those of the low run lead it away from the step.

        They may be none that FP64 can bear: a difference that was rounded up from 0, and whose root is taken.
        """
        free = self._free_gradients if self._has_decisions else None
        if free is None or not all(bool(gradient.isfinite().all()) for gradient in free):
            return
        error = distance(self.step.low_gradients, free)
        if not error > _NEARER * self.gradient_error:  # as well where this is NaN
            self.exact_gradients, self.gradient_error = free, error

    def _share_out(self, requested: Sequence[int], errors: Mapping[int, Tensor], gap: float) -> None:
        """Compute the shares in FP32, and again in FP64 where they do not add up.

        Errors and their sum are known to more digits, FP64 apart; only the derivatives between them are FP32, so that
        a share is off by about as much as a derivative is. `gap` is the L2 norm of all `errors`.
        """
        loss_error = self.step.low_loss - self.loss_fp64
        loss_is_off = abs(loss_error) > LOSS_ROUNDINGS * abs(self.loss_fp64)
        for wide in (torch.float32, F64) if gap or loss_is_off else ():
            balance = self._wide.balance(requested, wide)
            self.shares = balance.shares(errors, gap, again=loss_is_off)
            if abs(self.shares.explained - 1) < _CLOSED or wide is F64:
                break
        if loss_is_off:
            self.loss_shares = balance.shares({self.step.loss: torch.full((), loss_error, dtype=F64)}, spreads=True)

    @property
    def loss_error(self) -> float:
        """The relative error of the loss."""
        gap = abs(self.loss - self.loss_fp64)
        return gap / abs(self.loss_fp64) if self.loss_fp64 else (math.inf if gap else 0.0)

    @property
    def explained(self) -> float:
        """The sum of all shares: 1 where the step is smooth around itself, nan where it is not finite."""
        return self.shares.explained if self.is_finite else math.nan

    @property
    def ideal_error(self) -> float:
        """The relative error of the gradient that the products and casts of this precision cost alone."""
        return self._cost_of(self.unavoidable.values())

    @property
    def product_error(self) -> float:
        """The part of the ideal error without the casts of gradients to the format of a value."""
        casts = casts_of_gradients(self.step.tape)
        return self._cost_of([share for index, share in self.unavoidable.items() if index not in casts])

    def _cost_of(self, shares: Iterable[float]) -> float:
        if not self.is_finite:
            return math.nan
        part = math.fsum(shares) / (self.explained or 1.0)
        is_smooth = SMOOTH[0] <= self.explained <= SMOOTH[1]
        if self.gradient_error and (not is_smooth or part < 0):  # the shares do not tell: those of products may be
            return self.gradient_error * min(1.0, self._left_by_products)  # opposed to the rest of the error
        return self.gradient_error * math.sqrt(min(1.0, part))

    @cached_property
    def _left_by_products(self) -> float:
        """The error left when all that is no product and could be avoided runs in FP64."""
        return self.left_without_products({o.origin.line for o in self.step.tape.operations})

    @cached_property
    def flips(self) -> float | None:
        """How far other decisions (units of a ReLU on or off) move the gradient, relative to it.

        None where they change the shape of a value (`h[h > 0]`): then the step cannot be made with them.
        """
        if not self._has_decisions:
            return 0.0
        free = self._free_gradients
        return None if free is None else distance(free, self.exact_gradients)

    @property
    def _has_decisions(self) -> bool:
        return any(o.decision is not None and not o.is_random for o in self.step.tape.operations)

    @cached_property
    def _free_gradients(self) -> list[Tensor] | None:
        """The exact gradients with the decisions of exact values; None where these change the shape of a value."""
        try:
            table = self._wide.exact(self.step.gradients, free=True)
        except EngineError:
            return None
        free = [table[id] for id in self.step.gradients]
        shapes_agree = all(a.shape == b.shape for a, b in zip(free, self.exact_gradients, strict=True))
        return free if shapes_agree else None

    def left_with_own_decisions(self, lines: Iterable[SourceLine]) -> float:
        """As `left_without_products`, with the decisions of the values that this leaves, and beside the exact gradient
        with its own: decisions that flip count as error here. 1 where that cannot be made."""
        operations, free = self.step.tape.operations, self._free_gradients
        promoted = {i for i in self.operations_of(lines) if is_avoidable(operations[i])}
        if free is None:
            return 1.0
        try:
            table = Counterfactual(self.step.tape, promoted, free=True).run(self.step.gradients)
        except EngineError:
            return 1.0
        own = [table[id] for id in self.step.gradients]
        if any(a.shape != b.shape for a, b in zip(own, free, strict=True)):
            return 1.0
        before = distance(self.step.low_gradients, free)
        return distance(own, free) / before if before else 1.0

    def operations_of(self, lines: Iterable[SourceLine]) -> set[int]:
        """The operations of lines, forward and backward."""
        chosen = set(lines)
        return {o.index for o in self.step.tape.operations if o.origin.line in chosen}

    def predicted(self, lines: Sequence[SourceLine]) -> float | None:
        """The error left, 0 to 1, when lines run in FP64, from the shares: errors are taken as independent.

        A result that other lines take in the low format is rounded once all the same. None where the shares do not add
        up to the error.
        """
        if not SMOOTH[0] <= self.explained <= SMOOTH[1]:
            return None
        chosen = self.operations_of(lines)
        saved = 0.0
        for index in chosen & self.shares.by_operation.keys():
            operation, share = self.step.tape.operations[index], self.shares.by_operation[index]
            once = (operation.rounding_error / operation.local_error) ** 2 if operation.local_error else 0.0
            stays = min(1.0, once) if self.flow.leaves_set(operation, chosen) else 0.0
            saved += share * (1 - stays)
        return math.sqrt(max(0.0, 1.0 - saved / (self.explained or 1.0)))

    def errors_of(self, ids: Sequence[int]) -> dict[int, float]:
        """The relative errors of values of the step beside FP64, L2; those that were overwritten are left out."""
        exact = self._wide.exact(ids)
        low = {id: self.step.tape.value(id) for id in ids}
        return {id: distance([value], [exact[id]]) for id, value in low.items() if value is not None}

    def measured(self, lines: Iterable[SourceLine]) -> float:
        """As `with_fp64`."""
        return self.error_left(self.operations_of(lines))

    def left_without_products(self, lines: Iterable[SourceLine]) -> float:
        """As `with_fp64`, but matrix products and the casts around them stay as they are."""
        operations = self.step.tape.operations
        return self.error_left({i for i in self.operations_of(lines) if is_avoidable(operations[i])})

    def error_left(self, promoted: Iterable[int]) -> float:
        """The error left when operations run in FP64, remembered; see `with_fp64`."""
        key = frozenset(promoted)
        if key not in self._left:
            error = self._relative_error(key)
            self._left[key] = error / self.gradient_error if self.is_finite and self.gradient_error else error
        return self._left[key]

    def _relative_error(self, promoted: frozenset[int]) -> float:
        table = Counterfactual(self.step.tape, promoted).run(self.step.gradients)
        return distance([table[id] for id in self.step.gradients], self.exact_gradients)

    def loss_left(self, lines: Iterable[SourceLine]) -> float:
        """The error of the loss that is left when lines run in FP64, relative to it."""
        table = Counterfactual(self.step.tape, self.operations_of(lines)).run([self.step.loss])
        return abs((float(table[self.step.loss]) - self.loss_fp64) / (self.loss - self.loss_fp64))

    @property
    def hidden_producers(self) -> list[TapeOp]:
        """Operations that made NaN or Inf which never reached the loss or a gradient."""
        return producers(self.step.tape) if self.is_finite else []
