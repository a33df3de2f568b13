"""LoRA: the frozen layer, and beside it the product of two thin matrices (Hu et al. 2021, arXiv 2106.09685)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from precgui.config.adapters import AdapterConfig


class LoraLinear(nn.Module):
    """base(x) + (alpha / rank) B A dropout(x); A [rank, inputs] begins at random, B [outputs, rank] at zero."""

    def __init__(self, base: Any, adapter: AdapterConfig, device: torch.device) -> None:
        super().__init__()
        self.base = base
        self.factor = adapter.alpha / adapter.rank
        self.drop = nn.Dropout(adapter.dropout)
        self.lora_a = nn.Parameter(torch.empty(adapter.rank, base.in_features, device=device))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, adapter.rank, device=device))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))  # as in the authors' loralib

    def forward(self, input: Tensor) -> Tensor:
        thin = nn.functional.linear(self.drop(input), self.lora_a)
        result: Tensor = self.base(input) + nn.functional.linear(thin, self.lora_b) * self.factor
        return result

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """One layer in FP32: the base as its format holds it, with the adapter added."""
        weight = self.base.dequantised() + self.factor * (self.lora_b.float() @ self.lora_a.float())
        layer = nn.Linear(
            self.base.in_features, self.base.out_features, self.base.bias is not None, device=weight.device
        )
        layer.weight.copy_(weight)
        if self.base.bias is not None:
            layer.bias.copy_(self.base.bias)
        return layer
