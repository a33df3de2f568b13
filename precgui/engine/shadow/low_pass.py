"""A pass over a tape that was recorded without measures, with the low values of each operation, to fill them in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from precgui.engine.shadow.attribution import is_cast
from precgui.engine.shadow.nested import mapped
from precgui.engine.shadow.operation_measures import OperationMeasures
from precgui.engine.shadow.replay import Counterfactual, plainly
from precgui.engine.shadow.semantics import NARROW
from precgui.engine.shadow.tape import KERNELS, Tape, TapeOp, ValueRef

_Visit = Callable[[TapeOp, Any, Any, list[Any]], None]


class _LowPass(Counterfactual):
    """Calls `visit` with each operation, its low arguments and its outputs; what was overwritten is computed again."""

    def __init__(self, tape: Tape, visit: _Visit) -> None:
        super().__init__(tape, ())
        self._told = visit

    def _visit(self, operation: TapeOp) -> None:
        inputs = iter([self._value(id) for id in operation.inputs])
        args, kwargs = mapped(
            lambda v: next(inputs) if isinstance(v, ValueRef) else v, (operation.arguments, operation.keywords)
        )
        super()._visit(operation)
        outputs = [None if id is None else self._value(id) for id in operation.outputs]
        self._told(operation, args, kwargs, outputs)


def fill_in_decisions(tape: Tape) -> None:
    """The decisions of the operations, which a replay in FP64 keeps."""

    def visit(operation: TapeOp, args: Any, kwargs: Any, outputs: list[Any]) -> None:
        if not operation.is_view and not operation.is_random and operation.held is None:
            OperationMeasures.decide(operation, args, kwargs, outputs)

    with plainly(), torch.no_grad():
        _LowPass(tape, visit).run(())


def fill_in_measures(tape: Tape) -> None:
    """All measures of the operations, and which casts are those of products."""
    measures = OperationMeasures(tape)

    def visit(operation: TapeOp, args: Any, kwargs: Any, outputs: list[Any]) -> None:
        measures.same_elements(operation)
        if not operation.is_view:
            for id, ref in zip(operation.inputs, _tensors(args, kwargs), strict=True):
                measures.measure(id, ref)
        measures.fill_in(operation, (args, kwargs), outputs)

    with plainly(), torch.no_grad():
        _LowPass(tape, visit).run(())
    _name_casts_of_products(tape)


def _tensors(args: Any, kwargs: Any) -> list[torch.Tensor]:
    from precgui.engine.shadow.tape import tensors_in

    return list(tensors_in(args, kwargs))


def _name_casts_of_products(tape: Tape) -> None:
    """Give the casts to 16 bits that only products read, as autocast makes them, the cause of a product."""
    of_products: dict[int, bool] = {}  # by value, from the end: whether only products read it
    for operation in reversed(tape.operations):
        results = [id for id in operation.outputs if id is not None]
        is_product = operation.name.startswith(KERNELS)
        if operation.is_view:
            is_product = all(of_products.get(id, False) for id in results)
        for id in operation.inputs:
            of_products[id] = of_products.get(id, True) and is_product
        narrows = is_cast(operation) and operation.keywords.get("dtype") in NARROW - {torch.float32}
        if narrows and all(of_products.get(id, False) for id in results) and not operation.origin.cause:
            operation.origin = replace(operation.origin, cause="matmul")
