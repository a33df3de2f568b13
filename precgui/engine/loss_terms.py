"""Terms of a loss, and how much one number counts in each: a mean over all pixels beside a sum over a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from precgui.engine.operation_names import FIT_LOSSES, MEAN, NO_REDUCTION, reduction_of
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.watcher import OperationCall, Watcher

_MOST_TERMS = 8


@dataclass(frozen=True)
class _Term:
    """`weight` is that of one of its `numbers` in the term."""

    is_fit: bool  # of outputs and fixed targets
    numbers: int
    weight: float
    value: Tensor
    factor: float = 1.0  # of the value, by which a sum of terms was multiplied


class LossTerms(Watcher):
    """Told of each operation outside of the optimizer; follows sums and means of what learns to the sum of a loss."""

    fact, most_rows = "loss_terms", 12

    def __init__(self) -> None:
        super().__init__()
        self._terms = TensorMarks[tuple[_Term, ...]]()
        self._fits = TensorMarks[bool]()  # errors of each number, not yet added up
        self._last: tuple[_Term, ...] = ()  # the sum of most terms

    def begin(self, step: int) -> None:
        super().begin(step)
        self._last = ()

    def observe(self, call: OperationCall) -> None:
        name, args, out, first = call.name, call.args, call.out, call.args[0]
        if not isinstance(first, Tensor) or not isinstance(out, Tensor):
            return
        if name in FIT_LOSSES:
            self._of_loss(name, args, out)
        elif name in ("sum", "mean") and first.requires_grad:
            self._reduced(first, out, is_mean=name == "mean")
        elif name in ("add", "sub") and isinstance(call.second, Tensor):
            self._added(first, call.second, out, float(call.kwargs.get("alpha", 1)))
        elif name in ("mul", "div") and isinstance(call.second, int | float):
            self._scaled(first, out, call.second if name == "mul" else 1 / call.second if call.second else 0.0)
        elif call.keeps_numbers or name == "neg" or (name in ("add", "sub", "rsub") and len(args) == 2):
            if (terms := self._terms.get(first)) is not None:
                self._terms[out] = terms
            elif self._fits.get(first):
                self._fits[out] = True

    def _of_loss(self, name: str, args: Any, out: Tensor) -> None:
        first, target = args[:2]
        if not first.requires_grad or target.requires_grad:
            return
        reduction = reduction_of(name, args)
        if reduction == NO_REDUCTION:
            self._fits[out] = True
            return
        weight = 1 / max(first.numel(), 1) if reduction == MEAN else 1.0
        self._terms[out] = (_Term(True, first.numel(), weight, out),)

    def _reduced(self, first: Tensor, out: Tensor, *, is_mean: bool) -> None:
        """A sum or a mean of numbers that learn, along some axes or all of them."""
        share = out.numel() / max(first.numel(), 1) if is_mean else 1.0
        terms = self._terms.get(first)
        if terms is None:
            terms = (_Term(bool(self._fits.get(first)), first.numel(), 1.0, out),)
        if len(terms) == 1:
            terms = (replace(terms[0], value=out, factor=1.0),)
        self._terms[out] = tuple(replace(each, weight=each.weight * share) for each in terms)

    def _added(self, first: Tensor, second: Tensor, out: Tensor, alpha: float) -> None:
        one, other = self._terms.get(first), self._terms.get(second)
        if one is None or other is None or first.shape != second.shape or len(one) + len(other) > _MOST_TERMS:
            return
        scaled = (replace(each, weight=abs(alpha) * each.weight, factor=abs(alpha) * each.factor) for each in other)
        self._terms[out] = terms = (*one, *scaled)
        if len(terms) >= len(self._last):
            self._last = terms

    def _scaled(self, first: Tensor, out: Tensor, factor: float) -> None:
        if (terms := self._terms.get(first)) is not None:
            self._terms[out] = tuple(
                replace(each, weight=abs(factor) * each.weight, factor=abs(factor) * each.factor) for each in terms
            )
        elif self._fits.get(first):
            self._fits[out] = True

    def end(self) -> None:
        """The step is over."""
        terms, self._last = self._last, ()
        super().end()
        if len(terms) > 1 and self._has_room(self._step):
            self._rows[self._step] = {"step": self._step, "terms": [_row(each) for each in terms]}


def _row(term: _Term) -> dict[str, Any]:
    value = float(term.value.detach().float().mean()) * term.factor
    return {"is_fit": term.is_fit, "numbers": term.numbers, "weight": term.weight, "value": value}
