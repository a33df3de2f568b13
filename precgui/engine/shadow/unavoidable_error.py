"""Which part of an error any step in these formats has, and which part a line could have avoided.

Not the size of the error decides: a trained network reads many times the unit roundoff, because its gradients cancel.
What matrix products and the casts around them round is unavoidable in mixed precision. Where the weights themselves are
stored in 16 bits every value between two lines has to be rounded, too; a value that a line or a module hands on counts
as unavoidable then, unless its rounding is amplified several times more than that of the products.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping

from precgui.engine.shadow.attribution import ErrorShares
from precgui.engine.shadow.local_error import narrow_bits
from precgui.engine.shadow.origin import EMULATED_PRODUCT
from precgui.engine.shadow.semantics import aten
from precgui.engine.shadow.tape import KERNELS, SourceLine, Tape, TapeOp

_PRODUCT_FUNCTIONS = frozenset(
    {"linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "einsum", "bilinear", "dot",
     "mv", "tensordot", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
     "lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
     "scaled_dot_product_attention", "multi_head_attention_forward", "embedding"}
)  # fmt: skip
_PRODUCTS = (*KERNELS, "embedding", "rounded.")
_EXCESS = 4.0  # a local error so many times that of one rounding is no rounding any more
_MOSTLY_ROUNDING = 0.5  # of the squared error of a cast or sum: below it more is lost than by one rounding
_AMPLIFIED = 3.0  # how much more than a product's a rounding may weigh and still be usual


def is_product(operation: TapeOp) -> bool:
    """Whether an operation is a matrix product or one of the casts and sums that come with it.

    A cast to 8 bits and fewer is, as nothing else is computed in these formats.
    """
    if operation.origin.cause == EMULATED_PRODUCT or narrow_bits(operation) is not None:
        return True
    return operation.origin.cause in _PRODUCT_FUNCTIONS or operation.name.startswith(_PRODUCTS)


def is_avoidable(operation: TapeOp) -> bool:
    """Whether running this operation alone in wider arithmetic saves a part of the error that a step need not have."""
    return not is_product(operation) or _once(operation) < _MOSTLY_ROUNDING


class ConsumerMap:
    """Who reads which value of a tape."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._readers: dict[int, list[TapeOp]] = defaultdict(list)
        for operation in tape.operations:
            for id in operation.inputs:
                self._readers[id].append(operation)

    def leaves_set(self, operation: TapeOp, chosen: Collection[int]) -> bool:
        """Whether a result is rounded again by an operation outside of `chosen`: a widening cast does not."""
        return any(
            reader.index not in chosen and not _is_widening(reader)
            for id in operation.outputs if id is not None for reader in self._readers[id]
        )  # fmt: skip

    def next_lines(self, lines: Collection[SourceLine], *, anywhere: bool = False) -> set[SourceLine]:
        """The lines of the same functions, or of any with `anywhere`, that take results of these lines."""
        own = {o.index for o in self._tape.operations if o.origin.line in lines}
        scopes = {(line.file, line.function) for line in lines}
        results: set[SourceLine] = set()
        for index in own:
            operation = self._tape.operations[index]
            for id in operation.outputs:
                for reader in self._readers[id] if id is not None else ():
                    line = reader.origin.line
                    is_near = anywhere or (line.file, line.function) in scopes
                    if reader.index not in own and line.number and is_near:
                        results.add(line)
        return results - set(lines)

    def leaves_line(self, operation: TapeOp) -> bool:
        """Whether a result is read by another line or another module; through views; True where none does."""
        pending, visited = [id for id in operation.outputs if id is not None], set[int]()
        result = False
        while pending:
            id = pending.pop()
            for reader in self._readers[id]:
                result = True
                if reader.is_view and reader.origin.line == operation.origin.line:
                    pending += [o for o in reader.outputs if o is not None and o not in visited]
                    visited.update(o for o in reader.outputs if o is not None)
                elif (reader.origin.line, reader.origin.module) != (operation.origin.line, operation.origin.module):
                    return True
        return not result


def _is_widening(operation: TapeOp) -> bool:
    target = operation.keywords.get("dtype")
    return (
        operation.function is aten._to_copy.default
        and target is not None
        and bool(target.is_floating_point)
        and target.itemsize > operation.input_dtypes[0].itemsize
    )


def unavoidable(tape: Tape, shares: ErrorShares, relative_error: float, flow: ConsumerMap) -> dict[int, float]:
    """The part of each operation's share that any step in these formats has; the rest is the line's own."""
    stored_low = any(leaf.is_floating_point() and leaf.dtype.itemsize <= 2 for leaf in tape.leaves.values())
    usual = _product_gain(tape, shares, relative_error)
    of_low_values = casts_of_gradients(tape)
    parts: dict[int, float] = {}
    for index, share in shares.by_operation.items():
        operation = tape.operations[index]
        if is_product(operation):
            parts[index] = share * _once(operation)
        elif index in of_low_values or (stored_low and flow.leaves_line(operation)):
            gain = _gain(operation, share, relative_error)
            parts[index] = share * _once(operation) * min(1.0, (_AMPLIFIED * usual / gain) ** 2 if gain else 1.0)
    return parts


def casts_of_gradients(tape: Tape) -> set[int]:
    """The casts of gradients to 16 bits that autograd makes because the value has 16 bits: a result of an operation, or
    what the model keeps so, which a later line, often that of the loss, takes as FP32. Not behind a cast of the line's
    own, as in `x.bfloat16().float()`."""
    makers = {id: operation for operation in tape.operations for id in operation.outputs if id is not None}
    widened = set()
    for operation in tape.operations:
        if operation.origin.backward or not _is_widening(operation) or operation.input_dtypes[0].itemsize > 2:
            continue
        maker = makers.get(operation.inputs[0])
        while maker is not None and maker.is_view and maker.inputs:
            maker = makers.get(maker.inputs[0])
        if maker is None or maker.function is not aten._to_copy.default:
            widened.add((operation.origin.line, operation.origin.module, operation.input_dtypes[0]))
    return {
        operation.index for operation in tape.operations
        if operation.origin.backward and operation.function is aten._to_copy.default
        and (operation.origin.line, operation.origin.module, operation.keywords.get("dtype")) in widened
    }  # fmt: skip


def _once(operation: TapeOp) -> float:
    """The part of an operation's squared error that rounding its exact result explains; all of a matrix product's."""
    if operation.name.startswith(KERNELS):
        return 1.0
    if operation.rounding_error < 1e-5 or not operation.local_error:  # sums in FP32 differ from kernel to kernel
        return 1.0
    return min(1.0, (_EXCESS * operation.rounding_error / operation.local_error) ** 2)


def _gain(operation: TapeOp, share: float, relative_error: float) -> float:
    """How many times its own rounding an operation weighs in the result."""
    if share <= 0 or not operation.rounding_error:
        return 0.0
    return math.sqrt(share) * relative_error / operation.rounding_error


def _product_gain(tape: Tape, shares: ErrorShares, relative_error: float) -> float:
    """The largest gain of a product that counts at all."""
    return max(
        (_gain(tape.operations[i], share, relative_error) for i, share in shares.by_operation.items()
         if share > 1e-3 and is_product(tape.operations[i]) and tape.operations[i].rounding_error > 1e-12),
        default=1.0,
    )  # fmt: skip


def by_line(tape: Tape, values: Mapping[int, float]) -> dict[SourceLine, float]:
    """Sums over the operations of each source line."""
    sums: dict[SourceLine, list[float]] = defaultdict(list)
    for index, value in values.items():
        sums[tape.operations[index].origin.line].append(value)
    return {line: math.fsum(parts) for line, parts in sums.items()}
