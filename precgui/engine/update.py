"""The parts of an update: optimizer, average of the weights, learning rate, norm of the gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from precgui.engine.ema import WeightAverage
from precgui.engine.torch_private import foreach_norm

if TYPE_CHECKING:
    from precgui.config import RunConfig


def make_optimizer(config: RunConfig, weights: list[nn.Parameter]) -> Optimizer:
    requested = config.optimizer
    if requested.name == "sgd":
        return torch.optim.SGD(
            weights, lr=requested.lr, momentum=requested.momentum, weight_decay=requested.weight_decay
        )
    return torch.optim.AdamW(weights, lr=requested.lr, eps=requested.eps, weight_decay=requested.weight_decay)


def make_average(config: RunConfig, model: nn.Module, weights: list[nn.Parameter]) -> WeightAverage | None:
    if config.train.ema_decay is None:
        return None
    return WeightAverage([p for p in model.parameters() if p.requires_grad], weights, config.train.ema_decay)


def single_norms(gradients: list[Tensor]) -> Sequence[Tensor]:
    """The L2 norm of each gradient, in FP32 at least: it would overflow in FP16 and have three digits in BF16."""
    narrow = any(gradient.element_size() < 4 for gradient in gradients)
    return foreach_norm(gradients, dtype=torch.float32 if narrow else None)


def total_norm(norms: Sequence[Tensor]) -> Tensor:
    """The L2 norm over all gradients, from that of each."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(list(norms)))
    return norm


def learning_rate(config: RunConfig, step: int, total_steps: int) -> float:
    """The learning rate of a step counted from 1: constant, or half a cosine from `lr` towards 0."""
    if config.optimizer.schedule == "constant":
        return config.optimizer.lr
    return config.optimizer.lr * 0.5 * (1 + math.cos(math.pi * (step - 1) / total_steps))
