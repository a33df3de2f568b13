"""The share of each operation in the error of a result, to first order.

One adjoint pass of phi = <v, result>, v the unit vector of the error that was measured, gives for each operation i with
local error d_i its contribution <d_i, d phi / d out_i>; they add up to |error| where the step is smooth around the low
run (the idea of ADAPT, Menon et al. 2018, with the errors that were really made, for tensors, backward pass included).
"""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from precgui.engine.shadow.replay import F64, replay_graph
from precgui.engine.shadow.semantics import NARROW, aten, real_view, widened
from precgui.engine.shadow.tape import Tape, TapeOp
from precgui.sentences import Sentence, first_line

_DERIVATIVES_GIVEN_UP = 8  # kinds of operations
_BITS_LOST = 2.0**3  # how far below the normal numbers a number counts as flushed


@dataclass
class ErrorShares:
    """Signed shares of operations in one error, by the place of the operation on the tape; `explained` is their sum.

    `flush`: the part of numbers so far below the normal ones of the format that three bits or more are gone.
    `saturated`: the part of numbers above its largest.
    """

    error: float
    by_operation: dict[int, float] = field(default_factory=dict)
    flush: dict[int, float] = field(default_factory=dict)
    saturated: dict[int, float] = field(default_factory=dict)
    spread: dict[int, float] = field(default_factory=dict)  # of a share, if the errors of all elements were independent

    @property
    def explained(self) -> float:
        return math.fsum(self.by_operation.values())


class ShareCollector:
    """Takes the contributions of operations as their adjoints come by, through a graph that subclasses build."""

    def __init__(self, tape: Tape, wide: torch.dtype) -> None:
        self._tape, self._wide = tape, wide
        self._collected: ErrorShares | None = None
        self._spreads = False

    def shares(
        self, errors: Mapping[int, Tensor], size: float | None = None, *, again: bool = False, spreads: bool = False
    ) -> ErrorShares:
        """The shares in the error of values, taken together; `errors` are the low values minus the exact ones.

        `size` is the L2 norm of all of them, where it is known. The graph is freed on the way, unless shares are asked
        for `again`. `spreads`: compute `ErrorShares.spread`, too.
        """
        self._spreads = spreads
        size = norm(list(errors.values())) if size is None else size
        if size == 0.0:
            return ErrorShares(0.0)
        for _ in range(_DERIVATIVES_GIVEN_UP):
            self._collected = ErrorShares(size)
            try:
                self._differentiate({id: widened(error / size, self._wide) for id, error in errors.items()}, again)
                break
            except RuntimeError as fault:
                if "second time" in str(fault):  # the caller's mistake: the graph was not asked for again
                    raise
                if not self._give_up_derivative_of(fault):
                    break
        collected, self._collected = self._collected, None
        return collected or ErrorShares(size)

    def _differentiate(self, directions: Mapping[int, Tensor], again: bool) -> None:
        """Compute the adjoints of the sum of <direction, value>; the hooks call `take`.

        The graph has to serve `again`, or may be freed.
        """
        raise NotImplementedError

    def _hook(self, operation: TapeOp, outputs: Sequence[object]) -> list[Tensor]:
        """Let the adjoints of the outputs with an error be taken; returns those that begin the graph."""
        begins: list[Tensor] = []
        for output, place in zip(outputs, range(len(operation.local_errors)), strict=False):
            if isinstance(output, Tensor) and output.requires_grad and operation.local_errors[place] is not None:
                id = operation.outputs[place]
                is_searched = id is not None and (self._reaches_below(id) or self._reaches_above(id))
                exact = output.detach() if is_searched else None  # else its memory is freed with the graph
                output.register_hook(_Collect(weakref.ref(self), operation, place, exact))
                if output.is_leaf:
                    begins.append(output)
        return begins

    def _give_up_derivative_of(self, fault: RuntimeError) -> bool:
        """Mark what torch cannot differentiate, so that a replay passes it by; False for none.

        That is an operation, or only one of its arguments, which is a constant then.
        """
        match = re.search(r"derivative for '?(?:aten::)?(\w+)(?: (\w+))?'? is not implemented", str(fault))
        matching = [] if match is None else [o for o in self._tape.operations if o.name.partition(".")[0] == match[1]]
        if match is None or not matching:
            self._tape.note(
                Sentence("the shares of the lines are not known: torch says {error}", error=first_line(fault, 160))
            )
            self._collected = None
            return False
        for operation in matching:
            if match[2] in operation.argument_names and match[2] not in operation.constants:
                operation.constants.add(match[2])
            else:
                operation.undifferentiable = True
        self._tape.note(_without_derivative(match[1], match[2]))
        return True

    def take(self, operation: TapeOp, place: int, exact: Tensor | None, adjoint: Tensor) -> None:
        """Add the contribution of one output; called by its hook. `exact` is None where no number is out of range."""
        shares, error = self._collected, operation.local_errors[place]
        if shares is None or error is None:
            return
        adjoint = real_view(adjoint)
        total = _inner(error, adjoint)
        if not math.isfinite(total):  # an adjoint of NaN or Inf says nothing where the operation made no error
            adjoint = adjoint.where(error != 0, torch.zeros((), dtype=adjoint.dtype, device=adjoint.device))
            total = _inner(error, adjoint)
        if total == 0.0:
            return
        index = operation.index
        if self._spreads:
            shares.spread[index] = float(torch.linalg.vector_norm(error.to(adjoint.dtype) * adjoint)) / shares.error
        shares.by_operation[index] = shares.by_operation.get(index, 0.0) + total / shares.error
        id = operation.outputs[place]
        if exact is None or id is None:
            return
        limits = torch.finfo(self._tape.dtypes[id])
        if self._reaches_below(id):
            small = exact.abs() < limits.tiny / _BITS_LOST
            shares.flush[index] = shares.flush.get(index, 0.0) + _of(small, error, adjoint) / shares.error
        if self._reaches_above(id):
            large = exact.abs() > limits.max
            shares.saturated[index] = shares.saturated.get(index, 0.0) + _of(large, error, adjoint) / shares.error

    def _reaches_below(self, id: int) -> bool:
        """Whether subnormal numbers are searched for, which takes a pass: those of FP32 and BF16 lie at 1e-38."""
        dtype = self._tape.dtypes[id]
        few_exponents = dtype is torch.float16 or dtype.itemsize == 1
        return dtype in NARROW and (few_exponents or self._tape.magnitudes.get(id, 1.0) < 1e-30)

    def _reaches_above(self, id: int) -> bool:
        """Whether a value holds the largest number of its format or Inf."""
        dtype = self._tape.dtypes[id]
        return dtype in NARROW and self._tape.magnitudes.get(id, 0.0) >= torch.finfo(dtype).max


class AdjointReplay(ShareCollector):
    """The wide replay of a tape as a graph, and what the operations add to the errors of the values `requested`.

    In FP32 it takes half the time and memory of FP64. The derivatives are then off by a few roundings of FP32.
    """

    def __init__(self, tape: Tape, requested: Sequence[int], wide: torch.dtype = F64) -> None:
        super().__init__(tape, wide)
        self._requested = list(requested)
        self._replay()

    def _replay(self) -> None:
        self._begins: list[Tensor] = []
        table = replay_graph(
            self._tape,
            self._requested,
            self._wide,
            lambda operation, outputs: self._begins.extend(self._hook(operation, outputs)),
        )
        self._values = {id: table[id] for id in self._requested}

    def _differentiate(self, directions: Mapping[int, Tensor], again: bool) -> None:
        ends = [(self._values[id], direction) for id, direction in directions.items() if self._values[id].requires_grad]
        if ends and self._begins:
            values, adjoints = zip(*ends, strict=True)
            torch.autograd.grad(values, self._begins, adjoints, allow_unused=True, retain_graph=again)

    def _give_up_derivative_of(self, fault: RuntimeError) -> bool:
        given_up = super()._give_up_derivative_of(fault)
        if given_up:
            self._replay()
        return given_up


def _inner(error: Tensor, adjoint: Tensor) -> float:
    """The inner product of two tensors, in the type of the second."""
    return float(torch.linalg.vecdot(error.to(adjoint.dtype).reshape(-1), adjoint.reshape(-1)))


def _of(chosen: Tensor, error: Tensor, adjoint: Tensor) -> float:
    """The contribution of some elements."""
    return float((error[chosen].to(F64) * adjoint[chosen]).sum())


@dataclass(frozen=True)
class _Collect:
    """The hook of one output. A balance owns its graph and that its hooks: a strong reference back would free none."""

    balance: weakref.ref[ShareCollector]
    operation: TapeOp
    place: int
    exact: Tensor | None

    def __call__(self, adjoint: Tensor | None) -> None:
        balance = self.balance()
        if adjoint is not None and balance is not None:
            balance.take(self.operation, self.place, self.exact, adjoint)


def is_cast(operation: TapeOp) -> bool:
    return operation.function is aten._to_copy.default


def norm(tensors: Sequence[Tensor]) -> float:
    """The L2 norm of all elements of all tensors together."""
    return math.sqrt(math.fsum(float(torch.linalg.vector_norm(real_view(t.detach()), dtype=F64)) ** 2 for t in tensors))


def distance(low: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The relative L2 distance of tensors from exact ones; 0 when both are zero."""
    size = norm(exact)
    gap = norm([widened(a, F64) - b for a, b in zip(low, exact, strict=True)])
    return gap / size if size else (math.inf if gap else 0.0)


def _without_derivative(operation: str, argument: str | None) -> Sentence:
    if argument is None:
        return Sentence(
            "torch has no derivative of {operation}; errors that pass through it have no share", operation=operation
        )
    return Sentence(
        "torch has no derivative of {operation} by {argument}; errors that pass through it have no share",
        operation=operation,
        argument=argument,
    )
