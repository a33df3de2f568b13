"""Runs a tape again: as one FP64 program, or with the real low kernels and some of its lines in FP64."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor

from precgui.engine.errors import EngineError
from precgui.engine.shadow.decisions import apply_decision
from precgui.engine.shadow.derivatives import PRODUCTS, known_product
from precgui.engine.shadow.nested import leaves_of, mapped
from precgui.engine.shadow.semantics import (
    ANY_LAYOUT,
    NARROW,
    UNWRITTEN,
    aten,
    is_float,
    native_dropout,
    returning,
    rounds_only,
    run_differentiable,
    widened,
)
from precgui.engine.shadow.tape import Tape, TapeOp, ValueRef
from precgui.engine.torch_private import onednn
from precgui.sentences import Sentence, first_line

F64 = torch.float64
Table = dict[int, Tensor]
Visit = Callable[[TapeOp, list[Any]], None]


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """No autocast and no mode of the caller's around a replay."""
    with torch.autocast("cpu", enabled=False), contextlib.ExitStack() as stack:
        if torch.cuda.is_available():
            stack.enter_context(torch.autocast("cuda", enabled=False))
        yield


def replay_exact(tape: Tape, requested: Collection[int], *, free: bool = False, visit: Visit | None = None) -> Table:
    """The values `requested`, of the tape as one FP64 program on the same leaves.

    With `free` kinks decide for themselves, else as in the low run. `visit` is called with each operation and its FP64
    outputs.
    """
    with torch.no_grad():
        return _replay(tape, requested, F64, free=free, graph=False, visit=visit)


def replay_graph(tape: Tape, requested: Collection[int], wide: torch.dtype, visit: Visit) -> Table:
    """As `replay_exact` in the type `wide`, but the result can be differentiated and everything is kept.

    The graph begins with the first results that have an error of their own. What was there before the step, and what is
    made of it without error, is constant: nothing is computed for derivatives by it.
    """
    with torch.enable_grad():
        return _replay(tape, requested, wide, free=False, graph=True, visit=visit)


def _replay(
    tape: Tape, requested: Collection[int], wide: torch.dtype, *, free: bool, graph: bool, visit: Visit | None
) -> Table:
    table: Table = {}
    ends = None if graph else tape.last_uses(set(requested))
    with plainly():
        for operation in tape.operations:
            for id in operation.inputs:
                if id not in table:
                    table[id] = leaf_of(tape.leaves[id], wide, False)
            outputs = wide_outputs(tape, operation, table, wide, free=free, graph=graph)
            created = zip(operation.outputs, outputs, strict=True)
            table.update({id: output for id, output in created if id is not None})
            if visit is not None:
                visit(operation, outputs)
            for id in ends[operation.index] if ends is not None else ():
                table.pop(id, None)
        for id in requested:
            if id not in table:
                table[id] = leaf_of(tape.leaves[id], wide, False)
    return table


def leaf_of(tensor: Tensor, wide: torch.dtype, graph: bool) -> Tensor:
    """A tensor, wide; a leaf of the graph with `graph`."""
    if not is_float(tensor):
        return tensor
    value: Tensor = widened(tensor.detach(), wide)
    if value.is_inference():  # such a tensor can take no part in a graph
        value = value.clone()
    return value.requires_grad_(True) if graph else value


def wide_outputs(
    tape: Tape, operation: TapeOp, table: Table, wide: torch.dtype, *, free: bool, graph: bool
) -> list[Any]:
    """The outputs of an operation on the wide values of `table`. Raises EngineError where torch cannot make them."""
    take = lambda ref: table[ref.id] if isinstance(ref, ValueRef) else ref  # noqa: E731
    args, kwargs = mapped(take, (operation.arguments, operation.keywords))
    if graph and operation.constants:
        names = operation.argument_names
        args = tuple(a.detach() if names[i] in operation.constants else a for i, a in enumerate(args))
    with named_faults(operation):
        is_fixed = not free or operation.is_random or operation.function in UNWRITTEN
        outputs = _fixed(tape, operation, args, wide) if is_fixed else None
        if outputs is None and graph:
            outputs = _known(tape, operation, args, wide)
        if outputs is None:
            outputs = _computed(operation, args, kwargs, wide)
            if not free:
                outputs = _with_low_integers(operation, outputs)
    if operation.undifferentiable:
        outputs = [o.detach() if isinstance(o, Tensor) else o for o in outputs]
    return [_joined(operation, o, args, kwargs) for o in outputs] if graph else outputs


@contextlib.contextmanager
def named_faults(operation: TapeOp) -> Iterator[None]:
    """Torch's errors inside become an EngineError with the operation and its line."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, IndexError) as fault:
        raise EngineError(
            Sentence(
                "the shadow cannot repeat {operation} at {line}: torch says {error!r}; leave this line "
                "out of the step, or write it with other operations",
                operation=operation.name,
                line=operation.origin.line.label,
                error=first_line(fault, 160),
            )
        ) from fault


def _joined(operation: TapeOp, output: Any, args: Any, kwargs: Any) -> Any:
    """A float with an error begins the graph where its operands have none, such as a table of positions."""
    if not is_float(output) or output.requires_grad or all(error is None for error in operation.local_errors):
        return output
    if not operation.undifferentiable and any(
        isinstance(a, Tensor) and a.requires_grad for a in leaves_of((args, kwargs))
    ):
        return output
    return output.detach().requires_grad_(True)


def _fixed(tape: Tape, operation: TapeOp, args: tuple[Any, ...], wide: torch.dtype) -> list[Any] | None:
    """The draws and decisions of the low run applied to wide values; None where there are none."""
    if operation.held is not None:
        return [widened(o, wide) for o in operation.held]
    if operation.opaque:
        return [widened(_low(tape, id), wide) for id in operation.outputs]
    if operation.is_random:
        if operation.function is aten.native_dropout.default:
            return native_dropout(args, operation.decision[1])
        return [widened(o, wide) for o in operation.decision]
    if operation.function in UNWRITTEN:  # torch may have filled it without an operation, as the lengths of sequences
        filled = _low_value(tape, operation.outputs[0])
        return None if filled is None else [widened(filled, wide)]
    if operation.decision is None or isinstance(operation.decision, list):
        return None
    return apply_decision(operation.function, args, operation.decision)


def _known(tape: Tape, operation: TapeOp, args: tuple[Any, ...], wide: torch.dtype) -> list[Any] | None:
    """The product of a step in FP32 in a graph of FP32: the one that the step computed from the same numbers."""
    if wide is not torch.float32 or not tape.is_fp32 or operation.function not in PRODUCTS or operation.keywords:
        return None
    result = _low_value(tape, operation.outputs[0])
    return None if result is None else [known_product(operation.function, result, args)]


def _low_value(tape: Tape, id: int | None) -> Tensor | None:
    return None if id is None else tape.value(id)


def _low(tape: Tape, id: int | None) -> Any:
    return None if id is None else tape.values[id]


def _computed(operation: TapeOp, args: tuple[Any, ...], kwargs: dict[str, Any], wide: torch.dtype) -> list[Any]:
    function = ANY_LAYOUT.get(operation.function, operation.function)
    if function is aten.detach.default:  # an error passes through a detach
        return [aten.alias.default(args[0])]
    if rounds_only(function, args, kwargs):
        return [aten.alias.default(args[0]) if kwargs.get("device") is None else args[0].to(kwargs["device"])]
    without_out = returning(function)
    if without_out is not None:  # torch has no derivative of `out=`
        remaining = {a.name: kwargs[a.name] for a in without_out._schema.arguments if a.name in kwargs}
        return leaves_of(run_differentiable(without_out, args, remaining, wide))
    if operation.writes:
        args, kwargs = mapped(lambda v: v.clone() if isinstance(v, Tensor) else v, (args, kwargs))
    result = leaves_of(run_differentiable(function, args, kwargs, wide))
    return _with_written(operation, result, args, kwargs)


def _with_written(operation: TapeOp, result: list[Any], args: Any, kwargs: Any) -> list[Any]:
    """The outputs, and after them the arguments that the operation wrote to without returning them."""
    tensors = [v for v in leaves_of((args, kwargs)) if isinstance(v, Tensor)]
    written = [tensors[i] for i in operation.writes]
    return [*result, *(w for w in written if not any(w is r for r in result))]


def _with_low_integers(operation: TapeOp, outputs: list[Any]) -> list[Any]:
    """Integers and booleans as the low run computed them."""
    if not isinstance(operation.decision, list):
        return outputs
    return [o if low is None else low for o, low in zip(outputs, operation.decision, strict=True)]


def _is_ref(value: Any) -> bool:
    return isinstance(value, ValueRef)


class Counterfactual:
    """The tape with the real low kernels and some operations in FP64.

    Values that no promoted operation reaches are those of the recorded step, and so are all decisions, unless they are
    `free`: then those that a promoted operation reaches are taken anew. An operation
    whose FP64 input does not fit its format is promoted, too (a person who moves `(x - m) ** 2` to FP32 moves the sum
    over it as well), and a widening cast hands a promoted value on.
    """

    def __init__(
        self, tape: Tape, promoted: Collection[int], *, everything_again: bool = False, free: bool = False
    ) -> None:
        self._tape, self._promoted, self._again, self._free = tape, set(promoted), everything_again, free
        self._table: Table = {}
        self._changed: set[int] = set()
        self.grown: set[int] = set()  # operations that were promoted because their input did not fit

    def run(self, requested: Collection[int]) -> Table:
        """The values `requested`; those of promoted operations are FP64."""
        ends = self._tape.last_uses(set(requested))
        with plainly(), torch.no_grad():
            for operation in self._tape.operations:
                self._visit(operation)
                for id in ends[operation.index]:
                    self._table.pop(id, None)
            return {id: self._value(id) for id in requested}

    def _value(self, id: int) -> Tensor:
        if id in self._table:
            return self._table[id]
        low = self._tape.value(id)
        assert low is not None
        return low

    def _visit(self, operation: TapeOp) -> None:
        wide = operation.index in self._promoted
        touched = wide or self._again or any(id in self._changed for id in operation.inputs)
        if not touched and all(id is None or self._tape.value(id) is not None for id in operation.outputs):
            return
        inputs = [self._value(id) for id in operation.inputs]
        if not wide and any(_overflows(t, d) for t, d in zip(inputs, operation.input_dtypes, strict=True)):
            wide = True
            self.grown.add(operation.index)
        with named_faults(operation):
            outputs = self._wide(operation, inputs) if wide else self._low(operation, inputs)
        for id, output in zip(operation.outputs, outputs, strict=True):
            if id is not None:
                self._table[id] = output
                if touched:
                    self._changed.add(id)

    def _wide(self, operation: TapeOp, inputs: list[Tensor]) -> list[Any]:
        table = {id: widened(t, F64) for id, t in zip(operation.inputs, inputs, strict=True)}
        return wide_outputs(self._tape, operation, table, F64, free=self._free, graph=False)

    def _low(self, operation: TapeOp, inputs: list[Tensor]) -> list[Any]:
        if operation.is_random:
            if operation.function is aten.native_dropout.default:
                return native_dropout((inputs[0], *operation.arguments[1:]), operation.decision[1])
            return list(operation.decision)
        if operation.held is not None:
            return list(operation.held)
        kept = [t if _widens(operation, t) else t.to(d) for t, d in zip(inputs, operation.input_dtypes, strict=True)]
        if kept and _widens(operation, kept[0]) and kept[0].dtype == F64:
            return [kept[0]]
        if operation.writes:
            kept = [t.clone() for t in kept]
        values = iter(kept)
        args, kwargs = mapped(lambda v: next(values) if _is_ref(v) else v, (operation.arguments, operation.keywords))
        if operation.decision is not None and not isinstance(operation.decision, list) and not self._free:
            return apply_decision(operation.function, args, operation.decision)
        with onednn(allowed=operation.onednn):
            result = leaves_of(ANY_LAYOUT.get(operation.function, operation.function)(*args, **kwargs))
        outputs = _with_written(operation, result, args, kwargs)
        return outputs if self._free else _with_low_integers(operation, outputs)


def _widens(operation: TapeOp, tensor: Tensor) -> bool:
    """Whether this is a cast to a wider float, which rounds nothing, of a value that is wider than it was."""
    if operation.function is not aten._to_copy.default or tensor.dtype != F64:
        return False
    target = operation.keywords.get("dtype")
    return target in NARROW and target.itemsize > operation.input_dtypes[0].itemsize


def _overflows(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether a finite FP64 value becomes infinite in the format that the operation had it in."""
    if tensor.dtype != F64 or dtype not in NARROW or not tensor.numel():
        return False
    largest = tensor.abs().amax()
    return bool(largest > torch.finfo(dtype).max) and bool(largest.isfinite())


__all__ = ["F64", "Counterfactual", "Table", "Visit", "leaf_of", "plainly", "replay_exact", "wide_outputs"]
