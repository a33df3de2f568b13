"""The L2 norm of each input of a layer over a batch, gathered by hooks while the batch is being trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.torch_private import ConvNd


class InputNorms:
    """Sums of squares of the inputs of layers between `begin` and `end`, in FP32."""

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
