"""Terms of a loss without a gradient: an index, a comparison, a rounding or a detached copy of outputs was compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from precgui.engine.operation_names import FIT_LOSSES, JOINS, NLL_LOSSES, ROUNDINGS, SUMS
from precgui.engine.shadow.origin import line_of_user
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import as_list
from precgui.engine.watcher import OperationCall, Watcher, is_weight

_STEPWISE = ROUNDINGS | {"sign", "sgn", "heaviside"}  # their derivative is zero wherever there is one
_COMPARISONS = {"eq", "ne", "gt", "ge", "lt", "le"}
_MEETINGS = {"mul", "bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_or", "logical_xor"}
_PRODUCTS = {"mul", "div", "pow", "mm", "addmm", "bmm", "baddbmm", "mv", "dot", "linear", "addcmul", "where"}
_SCALINGS = {"mul", "div", "neg", "mean", "sum"}
_DETACHED = "detach"
_MOST_CUTS = 1024  # of a step; autograd detaches the result of each sigmoid and softmax, too


@dataclass(eq=False)
class _Cut:
    """Where numbers without a gradient came from numbers with one."""

    operation: str
    line: str
    weighs: bool = False  # it is a factor of what has a gradient


_ON_PURPOSE = _Cut("", "")


@dataclass(frozen=True, eq=False)
class _Flat:
    """Numbers that depend on outputs, and have no gradient."""

    cuts: frozenset[_Cut]
    has_met: bool = False  # numbers of the data, as a factor
    is_fit: bool = False  # compared with numbers of the data
    has_node: bool = False  # of the graph, whose gradient is zero

    @property
    def operation(self) -> str | None:
        """The one operation by which all of it was cut; None where it was cut by one that says nothing."""
        names = {cut.operation for cut in self.cuts}
        if any(cut.weighs for cut in self.cuts) or _ON_PURPOSE in self.cuts or (_DETACHED in names and len(names) > 1):
            return None
        return min(names)


@dataclass(frozen=True, eq=False)
class _Sum:
    """A term without a gradient and what it was added to; of a loss of that term alone `rest` is None."""

    flat: _Flat
    value: Tensor | None = None  # None where it was compared with nothing
    rest: Tensor | None = None


class TermsWithoutGradient(Watcher):
    """Told of each operation outside of the optimizer; follows what was cut from the graph to the loss.

    Noted are terms of the number a backward pass begins with which were compared with numbers that are not the
    model's, after their gradient was lost. Left alone are terms that weigh something with a gradient anywhere in the
    step (rewards, masks, closed-form weights), sums of a number and its own detached copy (straight-through
    estimators), what was computed under no_grad, and losses that were detached as a whole.
    """

    fact = "terms_without_gradient"

    def __init__(self) -> None:
        super().__init__()
        self._flat = TensorMarks[_Flat]()
        self._sums = TensorMarks[tuple[_Sum, ...]]()
        self._cuts = 0
        self._roots: list[tuple[_Sum, ...]] = []

    def begin(self, step: int) -> None:
        super().begin(step)
        self._cuts, self._roots = 0, []

    def observe(self, call: OperationCall) -> None:
        name, operands = call.base, call.tensors
        flat = [(each, known) for each in operands if (known := self._known(each)) is not None]
        live = [each for each in operands if each.requires_grad and self._known(each) is None]
        if not flat and not live:
            return
        if name == "ones_like":
            self._begin_backward(operands[0])
            return
        outs = [each for each in as_list(call.out) if isinstance(each, Tensor)]
        if not live:
            self._pass(name, operands, flat, outs)
            return
        if flat and name in _PRODUCTS:
            for _, known in flat:
                for cut in known.cuts:
                    cut.weighs = True
        if name == _DETACHED or not torch.is_grad_enabled() or not all(map(torch.is_floating_point, outs)) or (
            name in _STEPWISE
        ):  # fmt: skip
            self._cut(name, call, live, outs)
        else:
            self._add(name, call, flat, live, outs)

    def _known(self, tensor: Tensor) -> _Flat | None:
        """The mark of numbers without a gradient; a function of the loop's own may have given them one."""
        known = self._flat.get(tensor)
        return None if known is not None and tensor.requires_grad and not known.has_node else known

    def _cut(self, name: str, call: OperationCall, live: list[Tensor], outs: list[Tensor]) -> None:
        """Numbers with a gradient come to some without one."""
        if torch.Tag.nondeterministic_seeded in call.func.tags:
            return
        is_stepwise, is_detached, has_graph = name in _STEPWISE, name == _DETACHED, torch.is_grad_enabled()
        is_copy = is_detached and not any(is_weight(one) or self._sums.get(one) is not None for one in live)
        for each in outs:
            is_whole = not each.is_floating_point()
            if is_weight(each) or not (is_whole or is_stepwise or is_detached or not has_graph):
                continue
            cut = _ON_PURPOSE
            if (is_whole or is_stepwise or (is_copy and each.numel() > 1)) and self._cuts < _MOST_CUTS:
                self._cuts += 1
                cut = _Cut(name, line_of_user().label)
            self._flat[each] = _Flat(frozenset({cut}), has_node=is_stepwise and not is_whole and has_graph)

    def _pass(self, name: str, operands: list[Tensor], flat: list[tuple[Tensor, _Flat]], outs: list[Tensor]) -> None:
        """Numbers without a gradient go on."""
        fixed = [each for each in operands if each.numel() > 1 and all(each is not one for one, _ in flat)]
        largest = max(each.numel() for each, _ in flat)
        meets = any(each.numel() == largest for each in fixed)
        compares = (name in FIT_LOSSES or name in NLL_LOSSES) and bool(fixed)
        compares |= (name in SUMS or name in _COMPARISONS) and name != "add" and meets
        compares |= name == "div" and len(flat) > 1 and any(known.has_met for _, known in flat)
        result = _Flat(
            frozenset[_Cut]().union(*(known.cuts for _, known in flat)),
            has_met=any(known.has_met for _, known in flat) or (name in _MEETINGS and meets),
            is_fit=compares or any(known.is_fit for _, known in flat),
            has_node=torch.is_grad_enabled() and any(known.has_node for _, known in flat),
        )
        for each in outs:
            self._flat[each] = result

    def _add(self, name: str, call: OperationCall, flat: list[tuple[Tensor, _Flat]], live: list[Tensor],
             outs: list[Tensor]) -> None:  # fmt: skip
        """Numbers with a gradient go on, beside some without one."""
        is_sum = name in SUMS or name in JOINS
        if not is_sum and name not in _SCALINGS and not call.keeps_numbers:
            return
        if name in ("mul", "div") and (flat or len(live) > 1):
            return
        terms = [each for one in live for each in self._sums.get(one) or ()]
        if is_sum:
            terms += [
                _Sum(known, *_parts(call, each, live[0])) if known.is_fit else _Sum(known) for each, known in flat
            ]
        if terms:
            for each in outs:
                self._sums[each] = tuple(terms)

    def _begin_backward(self, loss: Tensor) -> None:
        """The gradient of a loss for itself was made."""
        if loss.numel() != 1:
            return
        known = self._flat.get(loss)
        terms = self._sums.get(loss)
        if known is not None and loss.requires_grad and (known.has_node or loss.is_leaf):
            terms = (_Sum(known, _mean(loss)),)
        if terms:
            self._roots.append(terms)

    def end(self) -> None:
        for terms in self._roots:
            for term, operation in _told(terms):
                line = min(cut.line for cut in term.flat.cuts)
                key = operation, line
                if term.value is not None and self._has_room(key):
                    rest = {} if term.rest is None else {"rest": float(term.rest)}
                    self._rows[key] = {
                        "step": self._step, "count": self._steps_with(key), "operation": operation, "line": line,
                        "value": float(term.value), **rest,
                    }  # fmt: skip
        self._roots = []
        super().end()


def _told(terms: tuple[_Sum, ...]) -> Iterator[tuple[_Sum, str]]:
    """The terms of a loss to be noted; none where some of them are the loss's own numbers, taken off or put back."""
    if any(term.flat.operation is None for term in terms):
        return
    for term in terms:
        operation = term.flat.operation
        if operation is not None and term.flat.is_fit:
            yield term, operation


def _parts(call: OperationCall, flat: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers that were added, the flat one first: one of them is the sum by now where this was in place."""
    value, rest = _mean(flat), _mean(live)
    if call.name == "add_":
        return (value - rest, rest) if call.out is flat else (value, rest - value)
    return value, rest


def _mean(tensor: Tensor) -> Any:
    return tensor.detach().float().mean()
