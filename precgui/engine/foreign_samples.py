"""Logarithms of the probability of one sample that are weighed with what another sample of the distribution got."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from precgui.engine.tensor_marks import TensorMarks
from precgui.engine.torch_private import as_list
from precgui.engine.watcher import OperationCall, Watcher

_DRAWS = {"multinomial", "bernoulli", "normal"}
_KEEPING = {"sum", "mean"}
_NORMALISED = 1e-2  # deviation of a sum of probabilities from 1: BF16 has as much
_MOST_DRAWS = 16


@dataclass(eq=False)
class _Distribution:
    """A tensor of parameters, and its views."""


@dataclass(eq=False)
class _Draw:
    """A sample."""

    of: _Distribution
    module: str | None
    shape: tuple[int, ...]
    has_logarithm: bool = False
    meets_own: bool = False  # the logarithm is weighed with what this sample got, too
    others: list[_Draw] = field(default_factory=list)  # which weigh its logarithm


@dataclass(frozen=True, eq=False)
class _Logarithm:
    """Of the probability of a sample, or what it was made of; how far a sum of probabilities is from 1 at most."""

    draw: _Draw
    deviation: Tensor | None = None


class ForeignSamples(Watcher):
    """Told of each operation outside of the optimizer; follows samples to all that is computed of them.

    Noted are logarithms of probabilities that are multiplied by numbers which depend on another sample of the same
    distribution and not on their own: of independent samples the mean of such a gradient is zero. A sample is left
    alone where its own results weigh it anywhere in the step, and where the other one has a logarithm as well.
    """

    fact = "foreign_samples"

    def __init__(self) -> None:
        super().__init__()
        self._distributions = TensorMarks[_Distribution]()
        self._made_of = TensorMarks[frozenset[_Draw]]()
        self._logarithms = TensorMarks[_Logarithm]()
        self._draws: list[_Draw] = []
        self._deviations: dict[_Draw, Tensor] = {}

    def begin(self, step: int) -> None:
        super().begin(step)
        self._draws, self._deviations = [], {}

    def observe(self, call: OperationCall) -> None:
        name, first, out = call.name, call.args[0], call.out
        if name in _DRAWS and isinstance(out, Tensor):
            self._draw(call)
            return
        if call.func.is_view and isinstance(first, Tensor) and isinstance(out, Tensor) and name != "detach":
            known = self._distributions.get(first)
            if known is None and first.requires_grad and first.is_floating_point():
                known = self._distributions[first] = _Distribution()
            if known is not None and out.numel() == first.numel():
                self._distributions[out] = known
        if self._draws:
            self._follow(call)

    def _draw(self, call: OperationCall) -> None:
        learned = [each for each in call.tensors if each.requires_grad or self._distributions.get(each) is not None]
        if not learned or len(self._draws) >= _MOST_DRAWS:
            return
        known = self._distributions.get(learned[0])
        if known is None:
            known = self._distributions[learned[0]] = _Distribution()
        draw = _Draw(known, call.module, tuple(call.out.shape))
        self._draws.append(draw)
        self._made_of[call.out] = frozenset({draw})

    def _follow(self, call: OperationCall) -> None:
        name, operands = call.base, call.tensors
        found = [(each, of) for each in operands if (of := self._made_of.get(each))]
        if not found:
            return
        made_of = frozenset[_Draw]().union(*(of for _, of in found))
        outs = [each for each in as_list(call.out) if isinstance(each, Tensor)]
        for each in outs:
            self._made_of[each] = made_of
        logarithms = [(each, known) for each, _ in found if (known := self._logarithms.get(each)) is not None]
        if not logarithms:
            if len(made_of) == 1 and (known := self._logarithm(name, call.args, operands, *made_of)) is not None:
                known.draw.has_logarithm = True
                self._keep(known, outs)
            return
        tensor, known = logarithms[0]
        if name == "mul" and len(logarithms) == 1:
            weights = [of for each, of in found if each is not tensor]
            if weights:
                self._weigh(known, weights[0])
                return
        if call.is_elementwise or name in _KEEPING or call.keeps_numbers:
            self._keep(known, outs)

    def _keep(self, known: _Logarithm, outs: list[Tensor]) -> None:
        for each in outs:
            self._logarithms[each] = known

    def _weigh(self, known: _Logarithm, weight: frozenset[_Draw]) -> None:
        """A logarithm is multiplied by what was made of samples."""
        draw = known.draw
        draw.meets_own |= draw in weight
        draw.others += [each for each in weight if each.of is draw.of and each is not draw]
        if known.deviation is not None:
            self._deviations[draw] = known.deviation

    @torch.no_grad()
    def _logarithm(self, name: str, args: Any, operands: list[Tensor], draw: _Draw) -> _Logarithm | None:
        """The result of a sample and numbers that learn, where these are parameters of its distribution or all
        probabilities, or their logarithms."""
        learned = [each for each in operands if each.requires_grad]
        if len(learned) != 1 or not learned[0].is_floating_point():
            return None
        if name == "gather" and learned[0] is args[0] and learned[0].shape[int(args[1])] > 1:
            sums = learned[0].detach().float().exp().sum(int(args[1])) - 1
            plain = learned[0].detach().float().sum(int(args[1])) - 1
            return _Logarithm(draw, torch.minimum(sums.abs().amax(), plain.abs().amax()))
        is_parameter = self._distributions.get(learned[0]) is draw.of
        if name == "binary_cross_entropy_with_logits" or (name in ("sub", "rsub") and is_parameter):
            return _Logarithm(draw)
        return None

    def end(self) -> None:
        for draw in self._draws:
            others = [each for each in draw.others if not each.has_logarithm]
            if draw.meets_own or not others or len(others) < len(draw.others) or not self._has_room(draw.module):
                continue
            deviation = self._deviations.get(draw)
            if deviation is None or float(deviation) < _NORMALISED:
                self._rows[draw.module] = {
                    "step": self._step, "count": self._steps_with(draw.module), "module": draw.module or "",
                    "shape": list(draw.shape),
                }  # fmt: skip
        self._draws, self._deviations = [], {}
        super().end()
