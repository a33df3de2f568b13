"""Puts operations on a tape as they run: their arguments as numbers of values, and their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from precgui.engine.shadow.attention import draws_nothing
from precgui.engine.shadow.nested import leaves_of, mapped
from precgui.engine.shadow.numbering import ValueNumbering
from precgui.engine.shadow.origin import OriginTracker
from precgui.engine.shadow.recurrent import drops_nothing
from precgui.engine.shadow.semantics import RANDOM, aten
from precgui.engine.shadow.tape import KERNELS, NO_LINE, OpOrigin, Tape, TapeOp, ValueRef, tensors_in
from precgui.engine.torch_private import onednn_enabled

_SYNTHETIC = OpOrigin(NO_LINE, "", "", False)
# These write to arguments without saying so in their schema.
_RUNNING_STATISTICS = {aten.native_batch_norm.default: (3, 4), aten.cudnn_batch_norm.default: (3, 4)}
_TENSOR_ARGUMENTS = {"write_through": 2}
# These make a tensor one of other memory, and write nothing: cuDNN's layers see all of their weights as one tensor.
_MOVES_TO = frozenset(
    {aten.set_.source_Storage, aten.set_.source_Storage_storage_offset, aten.set_.source_Tensor,
     aten.set_.source_Tensor_storage_offset}
)  # fmt: skip


@dataclass(frozen=True)
class BegunOp:
    """An operation that is about to run."""

    function: Any
    spec: Any
    tensors: list[Tensor]
    ids: list[int]
    places: tuple[int, ...]  # of those among `tensors` that it writes to


class TapeWriter:
    """Numbers the values of a step and appends its operations to a tape.

    `lends`: a tensor that was there before the step is copied only when the step is about to write to it.
    """

    def __init__(self, tape: Tape, *, lends: bool = False) -> None:
        self.tape = tape
        self.identity = ValueNumbering(tape, self._emit, lends=lends)
        self.origins = OriginTracker(tape, self.identity.is_result)

    def close(self) -> None:
        """Let go of all tensors at once: the numbering refers back to this, and a loop may have switched `gc` off."""
        del self.identity, self.origins

    def begin(self, func: Any, args: Any, kwargs: Any) -> BegunOp:
        """An operation is about to run."""
        tensors = list(tensors_in(args, kwargs))
        ids = [self.identity.id_of(tensor) for tensor in tensors]
        numbers = iter(ids)
        spec = mapped(lambda v: ValueRef(next(numbers)) if isinstance(v, Tensor) else v, (args, kwargs))
        written = [] if func in _MOVES_TO else _written(func, args, kwargs)
        places = tuple(i for i, tensor in enumerate(tensors) if any(tensor is w for w in written))
        for place in places:
            self.identity.will_write(tensors[place])
        return BegunOp(func, spec, tensors, ids, places)

    def end(self, begun: BegunOp, result: Any) -> tuple[TapeOp, list[Any]]:
        """It has run: the operation, which is on the tape now, and its outputs, those written in place last."""
        if begun.function in _MOVES_TO:
            begun = self._as_view(begun.tensors[0])
        tensors, places, func = begun.tensors, begun.places, begun.function
        (arguments, keywords), is_random = begun.spec, RANDOM in begun.function.tags
        if is_random:
            is_random = not (draws_nothing(func, arguments, keywords) or drops_nothing(func, arguments))
        outputs = [*leaves_of(result), *(tensors[i] for i in places if not _returned(tensors[i], result))]
        operation = TapeOp(
            len(self.tape.operations), func, arguments, keywords, tuple(begun.ids),
            tuple(self._number(o, tensors, places) for o in outputs),
            tuple(tensor.dtype for tensor in tensors), self.origins.here(_cause_of(func)), is_view=func.is_view,
            writes=places, is_random=is_random, onednn=onednn_enabled(),
        )  # fmt: skip
        self.tape.operations.append(operation)
        return operation, outputs

    def _as_view(self, moved: Tensor) -> BegunOp:
        """A view of the numbers that are in the memory which a tensor has got, in the place of its move."""
        id = self.identity.id_of(moved)
        return BegunOp(aten.alias.default, ((ValueRef(id),), {}), [moved], [id], ())

    def _number(self, output: Any, tensors: list[Tensor], places: tuple[int, ...]) -> int | None:
        if not isinstance(output, Tensor):
            return None
        if any(output is tensors[i] for i in places):
            return self.identity.written(output)
        return self.identity.new(output)

    def _emit(self, function: Callable[..., Any], arguments: tuple[Any, ...], id: int, dtype: Any) -> None:
        """Put an operation on the tape that torch did not run: the same memory with another shape and stride."""
        spec = tuple(
            ValueRef(a) if i < _TENSOR_ARGUMENTS.get(function.__name__, 1) else a for i, a in enumerate(arguments)
        )
        refs = tuple(a.id for a in spec if isinstance(a, ValueRef))
        dtypes = tuple(self.tape.dtypes[ref] for ref in refs)
        index = len(self.tape.operations)
        self.tape.operations.append(TapeOp(index, function, spec, {}, refs, (id,), dtypes, _SYNTHETIC, is_view=True))


def _cause_of(func: Any) -> str:
    """The torch function that a kernel implies, so that what its derivative runs is known to belong to it."""
    return "matmul" if str(func).removeprefix("aten.").startswith(KERNELS) else ""


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors among the arguments that an operation writes to."""
    results: list[Tensor] = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        results.extend(tensors_in(value))
    results.extend(args[i] for i in _RUNNING_STATISTICS.get(func, ()) if isinstance(args[i], Tensor))
    return results


def _returned(tensor: Tensor, result: Any) -> bool:
    return any(tensor is other for other in tensors_in(result))
