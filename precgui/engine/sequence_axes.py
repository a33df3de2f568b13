"""Recurrent layers and attentions along the samples of a batch, since axes of their input have changed places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn

from precgui.engine.operation_names import FIT_LOSSES, NLL_LOSSES
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import as_list
from precgui.engine.watcher import OperationCall, Watcher

_ALONG, _APART, _OTHER = "along", "apart", "other"  # axes: a module runs along it; its batch; features
_COMPARED = {"sub", "rsub", "mul", "gather"} | NLL_LOSSES | FIT_LOSSES.keys()
_PRODUCTS = {"mm": 0, "addmm": 1}  # and the operand whose rows are those of the result
_SAME_SHAPE = {"native_layer_norm", "native_dropout", "_fused_rms_norm"}
_AVERAGES = {"mean", "sum", "amax", "max"}


@dataclass
class _Source:
    """The result of a module that runs along an axis."""

    module: str
    kind: str
    batch_first: bool
    shape: tuple[int, ...]
    order: int  # in which the modules have returned
    taken: set[int] = field(default_factory=set)  # places of its batch
    is_averaged: bool = False  # over its batch
    is_used: bool = False  # otherwise: all of it, or along the axis
    meets: int = 0  # targets, one for each place along the axis


class _Mark(NamedTuple):
    source: _Source
    roles: tuple[str, ...]
    sizes: tuple[int, ...] = ()  # of the two axes that a view has made one of


class SequenceAxes(Watcher):
    """Told of each operation outside of the optimizer, and of what recurrent layers and attentions return.

    Noted is a result of which one place of the batch is taken, the first or the last one, or the mean over the batch,
    where what is left has a target for each place of the sequence: the module took samples for steps. Left alone are
    results that are used otherwise, too, several places that are taken, batches of one, and axes along which another
    module has run, as models with attention between samples have them.
    """

    fact = "sequence_axes"

    def __init__(self) -> None:
        super().__init__()
        self._marks = TensorMarks[_Mark]()
        self._rows_left = TensorMarks[_Source]()  # one place of the batch, the axis of the sequence being the first
        self._seen: list[_Source] = []

    def begin(self, step: int) -> None:
        super().begin(step)
        self._seen = []

    def returned(self, name: str, module: nn.Module, inputs: Any, outputs: Any) -> None:
        """A module has returned."""
        batch_first = _batch_first(module, inputs)
        out = as_list(outputs)[0] if as_list(outputs) else None
        if batch_first is None or not isinstance(out, Tensor) or out.dim() != 3 or not out.requires_grad:
            return
        before = self._marks.get(inputs[0]) if inputs else None
        roles: tuple[str, ...] = (_APART, _ALONG, _OTHER) if batch_first else (_ALONG, _APART, _OTHER)
        if before is not None and not before.sizes:
            roles = _along_either(before.roles, roles)
        source = _Source(name, type(module).__name__, batch_first, tuple(out.shape), len(self._seen))
        self._seen.append(source)
        self._marks[out] = _Mark(source, roles)

    def observe(self, call: OperationCall) -> None:
        name = call.base
        operands = call.tensors
        for each in operands:
            if (source := self._rows_left.get(each)) is not None:
                self._follow_rows(source, name, each, operands, call.out)
                break
        marked = [(mark, each) for each in operands if (mark := self._marks.get(each)) is not None]
        if marked and not name.endswith("_like"):  # these read no numbers
            self._follow(marked, name, call)

    def end(self) -> None:
        for source in self._seen:
            is_one = len(source.taken) == 1 and not source.is_averaged
            is_mean = source.is_averaged and not source.taken
            key = source.module
            if source.meets and not source.is_used and (is_one or is_mean) and self._has_room(key):
                self._rows.setdefault(
                    key,
                    {"step": self._step, "module": source.module, "kind": source.kind, "shape": list(source.shape),
                     "batch_first": source.batch_first, "use": "mean" if is_mean else "place", "rows": source.meets,
                     "place": min(source.taken, default=0)},
                )  # fmt: skip
        self._seen = []
        super().end()

    def _follow_rows(self, source: _Source, name: str, rows: Tensor, operands: list[Tensor], out: Any) -> None:
        count = rows.shape[0]
        fixed = [each for each in operands if each is not rows and not each.requires_grad and each.dim() in (1, 2)]
        if name in _COMPARED and any(each.shape[0] == count for each in fixed):
            source.meets = count
        for each in as_list(out):
            if isinstance(each, Tensor) and each.dim() and each.shape[0] == count:
                self._rows_left[each] = source

    def _follow(self, marks: list[tuple[_Mark, Tensor]], name: str, call: OperationCall) -> None:
        known, marked = max(marks, key=lambda each: each[0].source.order)
        args, source = call.args, known.source
        outs = [each for each in as_list(call.out) if isinstance(each, Tensor)]
        if not outs:
            source.is_used = True
        elif name == "select":
            self._select(known, int(args[1]) % marked.dim(), int(args[2]), marked, outs[0])
        elif name in _AVERAGES and not known.sizes:
            self._average(known, args, marked, outs[0])
        elif (order := tuple(_order(name, args, marked.dim()))) and not known.sizes:
            self._marks[outs[0]] = known._replace(roles=tuple(known.roles[each] for each in order))
        elif name in _PRODUCTS and known.sizes and args[_PRODUCTS[name]] is marked:
            self._marks[outs[0]] = known
        elif outs[0].shape == marked.shape and (call.keeps_numbers or name in _SAME_SHAPE or call.is_elementwise):
            for each, _ in marks:
                known = known._replace(roles=_along_either(each.roles, known.roles))
            self._marks[outs[0]] = known
        elif call.keeps_numbers:
            self._view(known, marked, outs[0])
        else:
            source.is_used = True

    def _select(self, known: _Mark, axis: int, place: int, marked: Tensor, out: Tensor) -> None:
        source, size = known.source, marked.shape[axis]
        is_end = place in (0, -1, size - 1)
        if known.sizes or known.roles[axis] != _APART or size < 2 or not is_end:
            source.is_used = True
            return
        source.taken.add(place % size)
        self._keep_rows(known, axis, out)

    def _average(self, known: _Mark, args: Any, marked: Tensor, out: Tensor) -> None:
        axes = [each % marked.dim() for each in as_list(args[1]) if isinstance(each, int)] if len(args) > 1 else []
        if axes and all(known.roles[each] == _OTHER for each in axes):  # as norms have them
            return
        is_of_batch = len(axes) == 1 and known.roles[axes[0]] == _APART and marked.shape[axes[0]] > 1
        if not is_of_batch or out.dim() != 2:
            known.source.is_used = True
            return
        known.source.is_averaged = True
        self._keep_rows(known, axes[0], out)

    def _keep_rows(self, known: _Mark, axis: int, out: Tensor) -> None:
        """A place of the batch was taken, and what is left has the axis of the sequence first, with two places."""
        left = [role for place, role in enumerate(known.roles) if place != axis]
        if left[0] == _ALONG and out.dim() == 2 and out.shape[0] > 1:
            self._rows_left[out] = known.source
        else:
            known.source.is_used = True

    def _view(self, known: _Mark, marked: Tensor, out: Tensor) -> None:
        """The two leading axes become one before a layer, and two after it."""
        sizes = tuple(marked.shape[:2])
        if not known.sizes and out.dim() == 2 and out.shape[0] == sizes[0] * sizes[1]:
            self._marks[out] = known._replace(sizes=sizes)
        elif known.sizes and out.dim() == 3 and tuple(out.shape[:2]) == known.sizes:
            self._marks[out] = known._replace(sizes=())
        else:
            known.source.is_used = True


def _batch_first(module: nn.Module, inputs: Any) -> bool | None:
    """Where such a module has the batch: in its first axis, or in its second one; None of others."""
    attention = module.self_attn if isinstance(module, nn.TransformerEncoderLayer) else module
    if isinstance(module, nn.MultiheadAttention):
        is_own = len(inputs) > 1 and all(each is inputs[0] for each in inputs[1:3])
        return bool(module.batch_first) if is_own else None
    if isinstance(module, nn.RNNBase | nn.TransformerEncoderLayer):
        return bool(attention.batch_first)
    return None


def _along_either(some: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """The roles of axes: a module that has run along one in either makes it such an axis."""
    return tuple(_ALONG if was == _ALONG else own for was, own in zip(some, others, strict=True))


def _order(name: str, args: Any, axes: int) -> Iterator[int]:
    if name == "transpose":
        one, other = int(args[1]) % axes, int(args[2]) % axes
        yield from (other if each == one else one if each == other else each for each in range(axes))
    elif name == "permute":
        yield from (int(each) % axes for each in args[1])
