"""What a layer puts out and the gradients that it gives, for comparison with another implementation."""

from __future__ import annotations

from torch import Tensor, nn


def gradients(layer: nn.Module, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and the gradients of the input and of the weight."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    out = layer(x)
    out.backward(grad)
    assert x.grad is not None
    assert layer.weight.grad is not None
    return out.detach(), x.grad, layer.weight.grad  # type: ignore[return-value]
