"""Records a step as it runs: a dispatch mode for every operation, forward and backward."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from precgui.engine.quantize.as_operation import following
from precgui.engine.shadow.local_error import local_errors
from precgui.engine.shadow.nested import leaves_of, mapped
from precgui.engine.shadow.numbering import ValueNumbering
from precgui.engine.shadow.origin import OriginTracker
from precgui.engine.shadow.semantics import INTEGERS, RANDOM, decide, is_float, real_view
from precgui.engine.shadow.tape import NO_LINE, OpOrigin, Tape, TapeOp, ValueRef, tensors_in
from precgui.engine.torch_private import TorchDispatchMode, may_be_compiled, onednn_enabled

aten = torch.ops.aten
_SYNTHETIC = OpOrigin(NO_LINE, "", "", False)
# These write to arguments without saying so in their schema.
_RUNNING_STATISTICS = {aten.native_batch_norm.default: (3, 4), aten.cudnn_batch_norm.default: (3, 4)}
# The memory of these is not written yet, so its numbers mean nothing.
_UNWRITTEN = frozenset(
    {aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.new_empty.default,
     aten.new_empty_strided.default}
)  # fmt: skip
# The result has the elements of the first argument, perhaps several times, and no others.
_SAME_ELEMENTS = frozenset(
    {aten.view.default, aten._unsafe_view.default, aten.t.default, aten.transpose.int, aten.permute.default,
     aten.unsqueeze.default, aten.squeeze.dim, aten.expand.default, aten.detach.default, aten.alias.default,
     aten.clone.default}
)  # fmt: skip


class StepRecorder(TorchDispatchMode):
    """While entered, every operation of the thread is put on `tape`, with the error that it made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape = Tape()
        self.identity = ValueNumbering(self.tape, self._emit)
        self._origins = OriginTracker(self.tape, self.identity.is_result)
        self._elements_of: dict[int, int] = {}  # by value: an earlier one with the same elements

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keeps torch from importing its compiler, which takes seconds, for each class of modes."""
        return False

    @contextlib.contextmanager
    def recording(self) -> Iterator[Tape]:
        """Record what happens inside: compiled code runs eagerly, attention as separate products."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with (
            torch.compiler.set_stance("force_eager") if may_be_compiled() else contextlib.nullcontext(),
            sdpa_kernel(SDPBackend.MATH),
            following(),
            self._origins.attached(),
            self,
        ):
            yield self.tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten._efficientzerotensor.default:  # zeros without memory, of forward-mode derivatives
            func = aten.zeros.default
        tensors = list(tensors_in(args, kwargs))
        ids = [self.identity.id_of(tensor) for tensor in tensors]
        numbers = iter(ids)
        spec = mapped(lambda v: ValueRef(next(numbers)) if isinstance(v, Tensor) else v, (args, kwargs))
        written = _written(func, args, kwargs)
        places = tuple(i for i, tensor in enumerate(tensors) if any(tensor is w for w in written))
        before = self._before(func, args, kwargs, tensors, ids, copies=bool(places))
        result = func(*args, **kwargs)
        outputs = [*leaves_of(result), *(tensors[i] for i in places if not _returned(tensors[i], result))]
        operation = TapeOp(
            len(self.tape.operations), func, spec[0], spec[1], tuple(ids),
            tuple(self._number(o, tensors, places) for o in outputs),
            tuple(tensor.dtype for tensor in tensors), self._origins.here(), is_view=func.is_view, writes=places,
            is_random=RANDOM in func.tags, onednn=onednn_enabled(),
        )  # fmt: skip
        if func in _SAME_ELEMENTS and result.numel():
            self._elements_of[self.identity.id_of(result)] = self._elements_of.get(ids[0], ids[0])
        self._judge(operation, before, outputs)
        self.tape.operations.append(operation)
        return result

    def _before(
        self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor], ids: list[int], *, copies: bool
    ) -> tuple[Any, Any]:
        """The arguments, before the operation changes them, with a check whether they are finite."""
        if func.is_view:
            return args, kwargs
        for tensor, id in zip(tensors, ids, strict=True):
            self._measure(id, tensor)
        if not copies:
            return args, kwargs
        return mapped(lambda v: v.detach().clone() if isinstance(v, Tensor) else v, (args, kwargs))  # type: ignore[no-any-return]

    def _number(self, output: Any, tensors: list[Tensor], places: tuple[int, ...]) -> int | None:
        if not isinstance(output, Tensor):
            return None
        if any(output is tensors[i] for i in places):
            return self.identity.written(output)
        return self.identity.new(output)

    def _measure(self, id: int, tensor: Tensor) -> None:
        """Note once for each value its largest magnitude and which kinds of non-finite numbers it holds."""
        if id in self.tape.kinds or not is_float(tensor):
            return
        source = self._elements_of.get(id, id)
        if source not in self.tape.kinds:
            self.tape.kinds[source], self.tape.magnitudes[source] = _range_of(tensor.detach())
        self.tape.kinds[id], self.tape.magnitudes[id] = self.tape.kinds[source], self.tape.magnitudes[source]

    def _judge(self, operation: TapeOp, before: tuple[Any, Any], outputs: Sequence[Any]) -> None:
        """Fill in the decision of an operation, whether it made NaN or Inf, and its local error."""
        if operation.function is aten.view.dtype:
            operation.opaque = "memory is read as another dtype"
        if operation.is_view:
            return
        args, kwargs = before
        if operation.is_random:
            operation.decision = [o.detach().clone() if isinstance(o, Tensor) else o for o in outputs]
            return
        operation.decision = decide(operation.function, args, kwargs, outputs)
        if operation.function in INTEGERS and operation.decision is not None and not operation.origin.backward:
            self.tape.note(
                f"{operation.name.partition('.')[0]} at {operation.origin.line.label} takes a decision: both sides "
                "keep its integers, so its own distance from the number before it is not in these figures"
            )
        if operation.decision is None and any(isinstance(o, Tensor) and not is_float(o) for o in outputs):
            operation.decision = [None if not isinstance(o, Tensor) or is_float(o) else o.detach() for o in outputs]
        if operation.function in _UNWRITTEN or not any(is_float(o) for o in outputs):
            return
        for id, output in zip(operation.outputs, outputs, strict=True):
            if id is not None:
                self._measure(id, output)
        self._flag(operation, args, kwargs)
        local_errors(operation, args, kwargs, outputs)

    def _flag(self, operation: TapeOp, args: Any, kwargs: Any) -> None:
        """Whether NaN or Inf was made here: Inf out of finite numbers, NaN out of anything that was no NaN."""
        kinds = self.tape.kinds
        after = set("".join(kinds.get(id, "") for id in operation.outputs if id is not None))
        if not after:
            return
        before = set("".join(kinds.get(id, "") for id in operation.inputs))
        scalars = [v for v in leaves_of((args, kwargs)) if isinstance(v, float)]
        if any(not math.isfinite(v) for v in scalars):
            operation.nonfinite = "meant"  # e.g. masked_fill(-inf)
        else:
            operation.nonfinite = "producer" if "n" not in before and after - before else "carrier"

    def _emit(self, function: Callable[..., Any], arguments: tuple[Any, ...], id: int, dtype: torch.dtype) -> None:
        """Put an operation on the tape that torch did not run: the same memory with another shape and stride."""
        spec = tuple(
            ValueRef(a) if i < _TENSOR_ARGUMENTS.get(function.__name__, 1) else a for i, a in enumerate(arguments)
        )
        refs = tuple(a.id for a in spec if isinstance(a, ValueRef))
        dtypes = tuple(self.tape.dtypes[ref] for ref in refs)
        index = len(self.tape.operations)
        self.tape.operations.append(TapeOp(index, function, spec, {}, refs, (id,), dtypes, _SYNTHETIC, is_view=True))


_TENSOR_ARGUMENTS = {"write_through": 2}


def _range_of(tensor: Tensor) -> tuple[str, float]:
    """Which kinds of non-finite numbers a tensor holds, and its largest magnitude."""
    if not tensor.numel():
        return "", 0.0
    real = real_view(tensor)
    low, high = torch.aminmax(real if real.dtype.itemsize > 1 else real.float())
    least, most = float(low), float(high)
    largest = max(abs(least), abs(most))
    if math.isnan(least) or math.isnan(most):
        return "n", largest
    return ("+" if most == math.inf else "") + ("-" if least == -math.inf else ""), largest


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
