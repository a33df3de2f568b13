"""Records a step as it runs: a dispatch mode for every operation, forward and backward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from precgui.engine.quantize.as_operation import following
from precgui.engine.shadow.nested import mapped
from precgui.engine.shadow.operation_measures import OperationMeasures
from precgui.engine.shadow.tape import Tape
from precgui.engine.shadow.writer import TapeWriter
from precgui.engine.torch_private import TorchDispatchMode, may_be_compiled

aten = torch.ops.aten


class StepRecorder(TorchDispatchMode):
    """While entered, every operation of the thread is put on `tape`, with the error that it made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape = Tape()
        self._writer = TapeWriter(self.tape)
        self.identity = self._writer.identity
        self._measures = OperationMeasures(self.tape)

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
            self._writer.origins.attached(),
            self,
        ):
            yield self.tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten._efficientzerotensor.default:  # zeros without memory, of forward-mode derivatives
            func = aten.zeros.default
        begun = self._writer.begin(func, args, kwargs)
        before = self._before(func, args, kwargs, begun.tensors, begun.ids, copies=bool(begun.places))
        result = func(*args, **kwargs)
        operation, outputs = self._writer.end(begun, result)
        self._measures.same_elements(operation)
        self._measures.fill_in(operation, before, outputs)
        return result

    def _before(
        self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor], ids: list[int], *, copies: bool
    ) -> tuple[Any, Any]:
        """The arguments, before the operation changes them, with a check whether they are finite."""
        if func.is_view:
            return args, kwargs
        for tensor, id in zip(tensors, ids, strict=True):
            self._measures.measure(id, tensor)
        if not copies:
            return args, kwargs
        return mapped(lambda v: v.detach().clone() if isinstance(v, Tensor) else v, (args, kwargs))  # type: ignore[no-any-return]
