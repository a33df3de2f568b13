"""Which weights of a layer are dropped, by scores. A mask is a bool tensor of its shape, True where it stays zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import L1Unstructured, LnStructured

from precgui.engine.torch_private import ConvNd

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


class InputNorms:
    """The L2 norm of each input of a layer over the batches between `begin` and `end`, by hooks; sums in FP32."""

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        self._layers = layers
        self._squares: dict[str, Tensor] = {}
        self._hooks: list[Any] = []

    def begin(self) -> None:
        self._squares.clear()
        for name, layer in self._layers.items():
            self._hooks.append(layer.register_forward_pre_hook(lambda module, args, name=name: self._take(name, args)))

    def end(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @torch.no_grad()
    def _take(self, name: str, args: tuple[Any, ...]) -> None:
        value = args[0].detach().float()
        axis = 1 if isinstance(self._layers[name], ConvNd) else -1
        value = value.movedim(axis, -1).flatten(0, -2)
        squares = value.square().nan_to_num(0.0, posinf=0.0).sum(0)
        self._squares[name] = self._squares.get(name, 0) + squares

    def of_weight(self, name: str, weight: Tensor) -> Tensor:
        """The norms, shaped to multiply the weight of a layer; ones where it has not run."""
        squares = self._squares.get(name)
        if squares is None:
            return torch.ones((), device=weight.device)
        norms = squares.sqrt()
        groups = getattr(self._layers[name], "groups", 1)
        if groups > 1:  # each group of outputs reads its own inputs
            norms = norms.view(groups, 1, -1).expand(-1, len(weight) // groups, -1).reshape(len(weight), -1)
        return norms.view(-1 if groups > 1 else 1, weight.shape[1], *(1,) * (weight.dim() - 2))
