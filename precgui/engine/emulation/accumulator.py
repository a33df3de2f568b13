"""Sums of products kept in a low-precision accumulator.

Products are exact in FP32 and summed there over a block; the running sum is then rounded to the accumulator's
format. A block of one product is an accumulator that rounds at every addition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_CONVOLUTION = torch.ops.aten.convolution.default
_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default


@dataclass(frozen=True)
class Accumulator:
    """`round` brings the running sum to the accumulator's format after every `block` products."""

    round: Callable[[Tensor], Tensor]
    block: int

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """[..., rows, k] times [..., k, columns]."""
        return self._sum(torch.matmul(a[..., part], b[..., part, :]) for part in _parts(a.shape[-1], self.block))

    def convolution(self, x: Tensor, weight: Tensor, geometry: tuple[Any, ...]) -> Tensor:
        """A convolution without groups, summed over the channels of the input in order."""
        axis = 0 if geometry[3] else 1
        pixels = weight[0, 0].numel()
        parts = _parts(x.shape[1], max(1, self.block // pixels))
        return self._sum(
            _CONVOLUTION(x[:, part], weight.movedim(axis, 0)[part].movedim(0, axis), None, *geometry) for part in parts
        )

    def convolution_backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, geometry: Any, requested: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None, None]:
        """Both gradients: of the input summed over output channels, of the weight over samples."""
        grad_x = grad_w = None
        axis = 1 - geometry.weight_axis
        if requested[0]:
            parts = _parts(grad.shape[1], max(1, self.block // weight[0, 0].numel()))
            grad_x = self._sum(
                _backward(grad[:, part], x, weight.movedim(axis, 0)[part].movedim(0, axis), geometry, 0)
                for part in parts
            )
        if requested[1]:
            parts = _parts(len(grad), max(1, self.block // grad[0, 0].numel()))
            grad_w = self._sum(_backward(grad[part], x[part], weight, geometry, 1) for part in parts)
        return grad_x, grad_w, None

    def _sum(self, terms: Iterator[Tensor]) -> Tensor:
        total = self.round(next(terms))
        for term in terms:
            total = self.round(total + term)
        return total


def _backward(grad: Tensor, x: Tensor, weight: Tensor, geometry: Any, which: int) -> Tensor:
    mask = (which == 0, which == 1, False)
    result: Tensor = _CONVOLUTION_BACKWARD(grad, x, weight, None, *geometry.arguments, mask)[which]
    return result


def _parts(length: int, block: int) -> Iterator[slice]:
    return (slice(start, start + block) for start in range(0, length, block))
