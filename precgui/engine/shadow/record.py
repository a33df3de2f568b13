"""A recorded step: every operation on its tape, and which values of it are the gradients and the loss."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.errors import EngineError
from precgui.engine.quantize.as_operation import following
from precgui.engine.shadow.nested import mapped
from precgui.engine.shadow.operation_measures import OperationMeasures
from precgui.engine.shadow.tape import Tape
from precgui.engine.shadow.writer import TapeWriter
from precgui.engine.torch_private import TorchDispatchMode, may_be_compiled
from precgui.sentences import L_, Sentence

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


@dataclass(frozen=True)
class RecordedStep:
    """A step as it ran in low precision. `gradients` and `loss` are numbers of values on the tape."""

    tape: Tape
    gradients: list[int]
    loss: int
    low_gradients: list[Tensor]
    low_loss: float

    @property
    def is_finite(self) -> bool:
        """Whether the loss and every gradient are finite."""
        kinds = self.tape.kinds
        return math.isfinite(self.low_loss) and all(
            not kinds[id] if id in kinds else bool(gradient.isfinite().all())
            for id, gradient in zip(self.gradients, self.low_gradients, strict=True)
        )


Parameters = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Mapping[str, Tensor] | nn.Module


def _tensors_of(parameters: Parameters) -> list[Tensor]:
    """The tensors among parameters, named or not, or of a module. Raises EngineError for anything else."""
    if isinstance(parameters, nn.Module):
        return list(parameters.parameters())
    if isinstance(parameters, Tensor):
        return [parameters]
    given: Any = parameters.values() if isinstance(parameters, Mapping) else parameters
    tensors = []
    for entry in given if isinstance(given, Iterable) else [given]:
        tensor = entry[1] if isinstance(entry, tuple) and len(entry) == 2 else entry
        if not isinstance(tensor, Tensor):
            raise EngineError(
                Sentence(
                    "the parameters hold a value of type {class_name}; pass model.parameters(), "
                    "model.named_parameters() or the model itself",
                    class_name=type(tensor).__name__,
                )
            )
        tensors.append(tensor)
    return tensors


def record_step(step: Callable[[], Any], parameters: Parameters) -> RecordedStep:
    """Run `step`, which does forward and backward and returns the loss, and record it.

    The gradients of the parameters are cleared before; afterwards they are what the step left in them. `parameters`
    may be tensors, pairs of names and tensors, or a module. Raises EngineError when they are something else, and when
    the step returns no loss or leaves no gradient.
    """
    trained = [p for p in _tensors_of(parameters) if p.requires_grad]
    for parameter in trained:
        parameter.grad = None
    recorder = StepRecorder()
    with recorder.recording() as tape:
        loss = step()
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise EngineError(L_("the step returned no loss; return the loss as a tensor with a single number"))
    used = [p.grad for p in trained if p.grad is not None]
    if not used:
        raise EngineError(
            L_("the step left no gradient in these parameters; call backward() in it and pass those that train")
        )
    with torch.no_grad():
        gradients = [recorder.identity.id_of(gradient) for gradient in used]
        return RecordedStep(
            tape, gradients, recorder.identity.id_of(loss), [g.detach().clone() for g in used], float(loss.detach())
        )
