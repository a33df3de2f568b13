"""Which weights of a layer are dropped. A mask is a bool tensor of the weight's shape, True where it stays zero."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.prune import L1Unstructured, LnStructured

GROUP = 4  # inputs of which 2:4 keeps two: the pattern of sparse tensor cores (NVIDIA Ampere and newer)


def smallest(scores: Tensor, count: int) -> Tensor:
    """The `count` smallest of non-negative scores, by `torch.nn.utils.prune`, which takes contiguous ones only."""
    scores = scores.contiguous()
    kept: Tensor = L1Unstructured(count).compute_mask(scores, torch.ones_like(scores))
    return kept == 0


def smallest_of_rows(scores: Tensor, count: int) -> Tensor:
    """`count` of the scores, the smallest of each output [outputs, ...], evenly: rows differ by at most one.

    With a larger count no row has less, so that a mask made of it holds the one before.
    """
    rows = scores.flatten(1)
    number = count // len(rows) + (torch.arange(len(rows), device=scores.device) < count % len(rows))
    result: Tensor = _rank(rows) < number[:, None]
    return result.view_as(scores)


def weakest_outputs(scores: Tensor, count: int) -> Tensor:
    """All weights of the `count` outputs with the smallest L2 norm, by `torch.nn.utils.prune`."""
    kept: Tensor = LnStructured(count, n=2, dim=0).compute_mask(scores, torch.ones_like(scores))
    return kept == 0


def two_of_four(scores: Tensor) -> Tensor:
    """The two smallest of each four neighbouring inputs (axis 1, a multiple of 4)."""
    groups = scores.transpose(1, -1).unflatten(-1, (-1, GROUP))
    result: Tensor = _rank(groups) < GROUP // 2
    return result.flatten(-2).transpose(1, -1).contiguous()


def _rank(scores: Tensor) -> Tensor:
    """The place of each score in the order of the last axis, from 0; equal ones in their order."""
    return scores.argsort(dim=-1, stable=True).argsort(dim=-1, stable=True)


def takes_two_of_four(weight: Tensor) -> bool:
    """Whether the inputs of a layer come in whole groups of four."""
    return weight.shape[1] % GROUP == 0
