"""The tape of a whole step of somebody's loop, from the batch to the update of the weights; computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from precgui.engine.errors import EngineError
from precgui.engine.shadow.semantics import aten
from precgui.engine.shadow.tape import Tape, TapeOp
from precgui.engine.shadow.writer import BegunOp, TapeWriter
from precgui.engine.telemetry.parameters import parameters_of
from precgui.engine.torch_private import graph_task
from precgui.sentences import L_, Sentence, first_line

_MOST_OPERATIONS = 20_000
_ASK_EVERY = 1 << 25  # bytes that are held more, before it is asked again what is free
_WITHOUT_NUMBERS = frozenset({"profiler", "_c10d_functional", "c10d"})
_KNOWN = frozenset({"aten", "prims", "prim", "precgui"})


@dataclass(frozen=True)
class MemoryBound:
    """Memory that the values of a step may take: they may hold `most_bytes` longer than they would, as long as `free`
    tells of `left_bytes` that nobody has."""

    most_bytes: int
    left_bytes: int
    free: Callable[[], int]


@dataclass(frozen=True)
class Used:
    """The gradient of a weight as an optimizer got it: its number on the tape, and its numbers."""

    name: str
    id: int
    gradient: Tensor


@dataclass
class Stage:
    """The operations of one update, `begin` to `end`, and the weights that it changes: names, values before, after."""

    begin: int
    end: int
    gradients: list[Used] = field(default_factory=list)
    weights: list[tuple[str, int, int]] = field(default_factory=list)


class LoopTape:
    """Told of each operation of a step by a mode; to be thrown away where `why_not` is not empty."""

    def __init__(
        self,
        named: Iterable[tuple[str, Tensor]],
        module: Callable[[], str | None],
        room: MemoryBound,
        most_s: float,
        clock: Callable[[], float],
    ) -> None:
        """`named` are the weights that the step may change; `module` returns the one whose forward pass is running.

        The step may take `most_s` longer by `clock` than it would.
        """
        self.tape = Tape()
        self._writer = TapeWriter(self.tape, lends=True)
        self._writer.origins.module = module
        self._named = list(named)
        self._room, self._kept_bytes, self._asked_bytes = room, 0, 0
        self.clock, self._most_s, self.spent_s = clock, most_s, 0.0
        self.why_not = ""
        self._is_closed = False
        self.stages: list[Stage] = []
        self.roots: list[int] = []  # the losses from which backward passes began
        self._ones: int | None = None
        self._own: Stage | None = None  # of a loop that updates its weights by itself
        self._is_backward = False

    def before(self, func: Any, args: Any, kwargs: Any) -> BegunOp | None:
        """An operation is about to run."""
        if self.why_not or func.namespace in _WITHOUT_NUMBERS:
            return None
        started = self.clock()
        try:
            if self._is_backward and graph_task() == -1:
                self._is_backward, self._own = False, self._stage(self._named)
            begun = self._writer.begin(func, args, kwargs)
            self.spent_s += self.clock() - started
            return begun
        except Exception as error:  # noqa: BLE001 - whatever a tensor of somebody's class raises; the step goes on
            self._give_up_at(func, error)
            return None

    def after(self, begun: BegunOp | None, result: Any) -> None:
        """It has run."""
        if begun is None or self.why_not:
            return
        started = self.clock()
        try:
            self._add(begun, result)
            self.spent_s += self.clock() - started
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up_at(begun.function, error)

    def _give_up_at(self, func: Any, error: Exception) -> None:
        """Let go of all that was recorded since an operation cannot be followed."""
        told = first_line(error, 160)
        if isinstance(error, EngineError):
            self.give_up(told)
        else:
            self.give_up(Sentence("{operation} cannot be followed: {error}", operation=str(func), error=told))

    def _add(self, begun: BegunOp, result: Any) -> None:
        operation, outputs = self._writer.end(begun, result)
        if begun.function is aten.view.dtype:
            operation.opaque = L_("memory is read as another dtype")
        elif begun.function is aten._amp_update_scale_.default:
            operation.opaque = L_("the scale of the next step is no part of this one")
        elif begun.function.namespace not in _KNOWN:
            operation.opaque = Sentence("{operation} is no operation of torch", operation=operation.name)
        if operation.is_random or operation.opaque:  # an operation of the user's may draw numbers, or count its calls
            copies = [o.detach().clone() if isinstance(o, Tensor) else o for o in outputs]
            operation.decision, operation.held = (copies, None) if operation.is_random else (None, copies)
            self._kept_bytes += sum(o.nbytes for o in copies if isinstance(o, Tensor))
        self._follow_backward(operation)
        if len(self.tape.operations) > _MOST_OPERATIONS:
            self.give_up(Sentence("the step has more than {most} operations", most=_MOST_OPERATIONS))
        elif (why := self._without_room()) is not None:
            self.give_up(why)
        elif self.spent_s > self._most_s:
            self.give_up(L_("to follow it takes longer than the recorder may"))

    def _without_room(self) -> str | None:
        """Why the values of the step may be held no longer, None as long as they may."""
        held = self._writer.identity.held_bytes + self._kept_bytes
        if held > self._room.most_bytes:
            return Sentence("the values of the step take more than {mib} MiB", mib=self._room.most_bytes >> 20)
        if held - self._asked_bytes < _ASK_EVERY:
            return None
        self._asked_bytes = held
        if self._room.free() >= self._room.left_bytes:
            return None
        return Sentence(
            "the values of the step would leave less than {mib} MiB of memory free", mib=self._room.left_bytes >> 20
        )

    def _follow_backward(self, operation: TapeOp) -> None:
        """Note the loss of each backward pass, which begins with ones of its shape, and where the pass ends."""
        if graph_task() == -1:
            self._ones = operation.inputs[0] if operation.function is aten.ones_like.default else self._ones
            return
        if not self._is_backward and self._ones is not None:
            self.roots.append(self._ones)
            self._ones = None
        self._is_backward = True

    def devices(self) -> set[torch.device]:
        """Where the weights lie."""
        return {weight.device for _, weight in self._named}

    def give_up(self, reason: str) -> None:
        """Let go of all that was recorded; `reason` is a clause."""
        self.why_not = self.why_not or reason
        self.close()

    def close(self) -> None:
        """Let go of all tensors; to be called when this is needed no more."""
        if not self._is_closed:
            self._is_closed = True
            self._writer.close()
            for held in (self.tape.operations, self.tape.leaves, self.tape.values):
                held.clear()
            self.tape, self.stages, self._own, self._named = Tape(), [], None, []

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step: note the gradients that it gets."""
        if self.why_not:
            return
        own = {id(each) for each in parameters_of(optimizer)}
        try:
            self.stages.append(self._stage([(name, p) for name, p in self._named if id(p) in own]))
        except EngineError as error:
            self.give_up(first_line(error, 160))

    def _stage(self, named: list[tuple[str, Tensor]]) -> Stage:
        self._writer.identity.check_foreign()
        begin = len(self.tape.operations)
        stage = Stage(begin, begin)
        known = self._writer.identity.known
        for name, weight in named:
            id = known(weight.grad) if weight.grad is not None else None
            if id is not None and weight.grad is not None:
                stage.gradients.append(Used(name, id, weight.grad.detach().clone()))
                self._kept_bytes += weight.grad.nbytes
            before = self._writer.identity.id_of(weight)
            stage.weights.append((name, before, before))
        return stage

    def optimizer_ends(self) -> None:
        """The optimizer has stepped."""
        if self.why_not or not self.stages:
            return
        stage, values = self.stages[-1], dict(self._named)
        stage.end = len(self.tape.operations)
        known = self._writer.identity.known
        after = [(name, before, known(values[name])) for name, before, _ in stage.weights]
        stage.weights = [(name, a, b) for name, a, b in after if b is not None and b != a]

    def end(self) -> None:
        """The step is over. Where no optimizer has stepped, all that follows the last backward pass is the update."""
        if self.why_not:
            return
        try:
            self._writer.identity.check_memory()
            self._writer.identity.check_foreign(lent_only=True)
            if not self.stages:
                self.stages.append(self._own or self._stage(self._named))
                self.optimizer_ends()
        except EngineError as error:
            self.give_up(first_line(error, 160))


__all__ = ["LoopTape", "MemoryBound", "Stage", "Used"]
