"""Samples of a distribution that a model learns, drawn without a gradient, on which a loss depends by layers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.operation_names import FIT_LOSSES, NLL_LOSSES, PRODUCTS, SUMS
from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import as_list
from precgui.engine.watcher import OperationCall, Watcher, is_weight

_ZERO_DERIVATIVE = {"normal"}  # torch gives its operands a gradient of zero
_DIFFERENTIABLE = {"_standard_gamma", "_sample_dirichlet"}  # but not where no gradients are asked for
_REDUCTIONS = {"sum", "mean"}
_SAMPLE, _DECODED, _COMPARED = range(3)  # what a sample has become: after a layer, and after a loss
_MOST_SOURCES = 64


@dataclass
class _Source:
    """A sample that was drawn."""

    module: str | None
    shape: tuple[int, ...]
    is_used: bool = False  # its parameters meet it, targets or layers: they learn from them
    is_cut: bool = False
    fixed: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # least and largest of what its parameters met


@dataclass
class _Parameter:
    """A tensor and its views, of which a sample may be drawn."""

    source: _Source | None = None
    is_used: bool = False  # by a layer, or with other numbers, before a sample was drawn


_Stage = tuple[_Source, int]


class CutSamples(Watcher):
    """Told of each operation outside of the optimizer.

    Noted is a sample that a layer turns into outputs of a loss, to which a term is added that depends on nothing but
    the parameters of its distribution: these learn from that term alone, as a posterior from its divergence from a
    prior. Left alone are parameters that meet the sample (the logarithm of its probability, as policy gradients use
    it), other random numbers, targets, other numbers that learn, or a layer.
    """

    fact = "cut_samples"

    def __init__(self) -> None:
        super().__init__()
        self._parameters = TensorMarks[_Parameter]()
        self._stages = TensorMarks[_Stage]()
        self._seen: list[_Source] = []

    def begin(self, step: int) -> None:
        super().begin(step)
        self._seen = []

    def observe(self, call: OperationCall) -> None:
        name, first = call.name, call.args[0]
        if name in _ZERO_DERIVATIVE or (name in _DIFFERENTIABLE and not torch.is_grad_enabled()):
            self._draw(call)
        elif call.func.is_view and isinstance(first, Tensor) and name != "detach":
            self._view(first, as_list(call.out))
        elif torch.is_grad_enabled() and not name.endswith("_like"):  # these read no numbers
            self._use(call)
            if self._seen:
                self._follow(call, call.base)

    def _view(self, first: Tensor, outs: Sequence[Any]) -> None:
        """A distribution expands its parameters before it draws; both are one, as are the parts of a tensor."""
        known, stage = self._parameters.get(first), self._stages.get(first)
        if known is None and first.requires_grad and not isinstance(first, nn.Parameter):
            known = self._parameters[first] = _Parameter()
        for each in outs:
            if known is not None:
                self._parameters[each] = known
            if stage is not None:
                self._stages[each] = stage

    def _use(self, call: OperationCall) -> None:
        """Numbers that learn are used otherwise than as parameters of a distribution."""
        operands = call.tensors
        if call.name in _REDUCTIONS or call.keeps_numbers:
            return
        is_alone = call.is_elementwise and len({id(each) for each in operands if each.dim()}) < 2
        for each in operands if not is_alone else ():
            if each.requires_grad and not isinstance(each, nn.Parameter):
                known = self._parameters.get(each)
                if known is None:
                    known = self._parameters[each] = _Parameter()
                if known.source is None:
                    known.is_used = True

    def _draw(self, call: OperationCall) -> None:
        learned = [
            each for each in call.tensors
            if (each.requires_grad or self._parameters.get(each) is not None) and not is_weight(each)
        ]  # fmt: skip
        if not learned or not isinstance(call.out, Tensor) or len(self._seen) >= _MOST_SOURCES:
            return
        source = _Source(call.module, tuple(call.out.shape))
        self._seen.append(source)
        self._stages[call.out] = source, _SAMPLE
        for each in learned:
            known = self._parameters.get(each)
            if known is None:
                known = self._parameters[each] = _Parameter()
            if known.source is not None and known.source is not source:
                known.source.is_used = source.is_used = True  # drawn of more than once: not followed
            source.is_used |= known.is_used
            known.source = source

    def _follow(self, call: OperationCall, name: str) -> None:
        operands = call.tensors
        staged = [(each, mark) for each in operands if (mark := self._stages.get(each)) is not None]
        learning = {
            id(known.source): known.source for each in operands
            if (known := self._parameters.get(each)) is not None and known.source is not None
        }.values()  # fmt: skip
        if not staged and not learning:
            return
        outs = [each for each in as_list(call.out) if isinstance(each, Tensor) and each.is_floating_point()]
        if name == "detach" or not outs:
            return
        for source in learning:
            if self._is_sum_of_terms(name, source, staged):
                source.is_cut = True
                return
            self._learn(call, name, source, operands, staged)
            for each in outs:
                self._parameters[each] = _Parameter(source)
        if staged:
            self._pass(call, name, operands, staged, outs)

    @staticmethod
    def _is_sum_of_terms(name: str, source: _Source, staged: list[tuple[Tensor, _Stage]]) -> bool:
        """Whether a term of the parameters is added to one of the sample."""
        own = [stage for _, (of, stage) in staged if of is source]
        return name in SUMS and bool(own) and min(own) == _COMPARED

    def _learn(self, call: OperationCall, name: str, source: _Source, operands: list[Tensor],
               staged: list[tuple[Tensor, _Stage]]) -> None:  # fmt: skip
        """Parameters of a distribution are used."""
        is_pointwise = call.is_elementwise
        meets_itself = any(of is source for _, (of, _) in staged)
        if meets_itself or not (is_pointwise or name in _REDUCTIONS or call.keeps_numbers):
            source.is_used = True
            return
        for each in operands:
            known = self._parameters.get(each)
            if each.requires_grad and (known is None or known.source is not source):
                source.is_used = True
            elif not each.requires_grad and each.numel() > 1:
                values = each.detach().float()
                source.fixed.append((values.amin(), values.amax()))

    def _pass(self, call: OperationCall, name: str, operands: list[Tensor], staged: list[tuple[Tensor, _Stage]],
              outs: list[Tensor]) -> None:  # fmt: skip
        """A sample, or what was made of it, goes on."""
        _, (source, stage) = max(staged, key=lambda each: each[1][1])
        others = [each for each in operands if all(each is not one for one, _ in staged)]
        if stage == _SAMPLE and any(each.requires_grad for each in others):
            met = [each for each in others if each.requires_grad]
            are_weights = all(is_weight(each) for each in met)
            if call.is_elementwise and not are_weights:
                source.is_used = True
            elif name in PRODUCTS or are_weights:
                stage = _DECODED
        elif stage == _DECODED and _is_compared(name, others):
            stage = _COMPARED
        for each in outs:
            self._stages[each] = source, stage

    def end(self) -> None:
        for source in self._seen:
            if not source.is_cut or source.is_used or not self._has_room(source.module):
                continue
            if all(float(low) == float(high) for low, high in source.fixed):
                self._rows[source.module] = {
                    "step": self._step, "count": self._steps_with(source.module), "module": source.module or "",
                    "shape": list(source.shape),
                }  # fmt: skip
        self._seen = []
        super().end()


def _is_compared(name: str, others: list[Tensor]) -> bool:
    """Whether an operation compares with targets."""
    is_loss = name in ("sub", "rsub") or name in FIT_LOSSES or name in NLL_LOSSES
    return is_loss and any(not each.requires_grad and each.numel() > 1 for each in others)
