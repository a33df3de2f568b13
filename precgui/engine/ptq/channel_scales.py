"""Scales of input channels that make weights easier to round: AWQ and SmoothQuant, for any format of weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

EXPONENTS = tuple(n / 10 for n in range(11))  # that AWQ tries
SMOOTH_EXPONENT = 0.5
_LEAST = 1e-6


def smooth_scale(inputs: Tensor, weights: Tensor) -> Tensor:
    """SmoothQuant (Xiao et al. 2023, arXiv 2211.10438): the largest magnitudes by channel, to the power of a half each.

    inputs, weights: the largest magnitude of each channel. Inputs are divided by the result, weights multiplied.
    """
    ratio = inputs.clamp_min(_LEAST).pow(SMOOTH_EXPONENT) / weights.clamp_min(_LEAST).pow(1 - SMOOTH_EXPONENT)
    return _centred(ratio)


@torch.no_grad()
def awq_scale(
    weights: Sequence[tuple[Tensor, Callable[[Tensor], Tensor]]], magnitudes: Tensor, sample: Tensor,
    widen: Callable[[Tensor], Tensor], round_inputs: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """AWQ (Lin et al. 2024, arXiv 2306.00978): the power of the mean magnitudes with the least error of the outputs.

    weights: rows [outputs, line] and their rounding, of each layer with these inputs; magnitudes [channels]; sample
    [count, line]: some inputs; widen: factors of channels as those of the numbers of a row.
    """
    exact = [sample @ rows.T for rows, _ in weights]
    best, least = torch.ones_like(magnitudes), float("inf")
    for exponent in EXPONENTS:
        scale = _centred(magnitudes.clamp_min(_LEAST).pow(exponent))
        wide = widen(scale)
        inputs = sample / wide
        inputs = inputs if round_inputs is None else round_inputs(inputs)
        error = sum(
            float((inputs @ round_weights(rows * wide).T - outputs).square().sum())
            for (rows, round_weights), outputs in zip(weights, exact, strict=True)
        )
        if error < least:
            best, least = scale, error
    return best


def _centred(scale: Tensor) -> Tensor:
    """The scale with 1 midway between its ends, within what FP32 divides by without loss of range."""
    return (scale / (scale.max() * scale.min()).sqrt()).clamp(1e-4, 1e4)
