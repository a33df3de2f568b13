"""Operations of the tape that torch cannot differentiate, written with those that it can.

Statistics that a normalisation saves for its backward pass are results of their own here (hence the clones): where they
are kept in a low format, their rounding reaches the gradient, but not the normalised values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from precgui.engine.shadow.attention import WITHOUT_DERIVATIVE

aten = torch.ops.aten
_Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def _silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    on = torch.sigmoid(x)
    return grad * on * (1 + x * (1 - on))


def _mish_backward(grad: Tensor, x: Tensor) -> Tensor:
    bent, on = torch.tanh(torch.nn.functional.softplus(x)), torch.sigmoid(x)
    return grad * (bent + x * on * (1 - bent * bent))


def _hardsigmoid_backward(grad: Tensor, x: Tensor) -> Tensor:
    return grad * ((x > -3) & (x < 3)) / 6


class _GeluBackward(torch.autograd.Function):
    """gradient * (Phi(x) + x phi(x)) of the normal distribution; torch's own derivative makes twenty tensors."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(grad, x)
        return aten.gelu_backward.default(grad, x)  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, adjoint: Tensor) -> tuple[Tensor | None, Tensor | None]:
        grad, x = ctx.saved_tensors
        of_grad = of_x = None
        if ctx.needs_input_grad[0]:
            of_grad = aten.gelu_backward.default(adjoint, x)
        if ctx.needs_input_grad[1]:  # the derivative of Phi + x phi is (2 - x^2) phi
            square = x * x
            density = (square * -0.5).exp_().mul_(1 / math.sqrt(2 * math.pi))
            of_x = density.mul_(square.neg_().add_(2)).mul_(grad).mul_(adjoint)
        return of_grad, of_x


def _gelu_backward(grad: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    if approximate != "none":
        return aten.gelu_backward.default(grad, x, approximate=approximate)  # type: ignore[no-any-return]
    return _GeluBackward.apply(grad, x)  # type: ignore[no-any-return]


class _KnownProduct(torch.autograd.Function):
    """A product of matrices, or of batches of them, whose result is there already."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return result.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, adjoint: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        _, by_a, by_b = ctx.needs_input_grad
        return None, adjoint @ b.mT if by_a else None, a.mT @ adjoint if by_b else None


PRODUCTS = frozenset({aten.mm.default, aten.bmm.default, aten.addmm.default})


def known_product(function: Callable[..., Any], result: Tensor, arguments: Sequence[Tensor]) -> Tensor:
    """The `result` of one of `PRODUCTS`, without keywords, with its derivatives."""
    if function is not aten.addmm.default:
        return _KnownProduct.apply(result, *arguments)  # type: ignore[no-any-return]
    bias, a, b = arguments
    if not bias.requires_grad:
        return _KnownProduct.apply(result, a, b)  # type: ignore[no-any-return]
    return _KnownProduct.apply(result - bias.detach(), a, b) + bias  # type: ignore[no-any-return]


def _affine(normal: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Weight and bias for each channel of [samples, channels, ...]."""
    shape = (1, -1, *(1,) * (normal.dim() - 2))
    scaled = normal if weight is None else normal * weight.view(shape)
    return scaled if bias is None else scaled + bias.view(shape)


def _group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    samples: int,
    channels: int,
    pixels: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    values = x.reshape(samples, groups, -1)
    mean = values.mean(-1)
    rstd = (values.var(-1, correction=0) + eps).rsqrt()
    normal = ((values - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)).reshape(samples, channels, pixels)
    return _affine(normal, weight, bias).reshape(x.shape), mean.clone(), rstd.clone()


def _group_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None,
    samples: int, channels: int, pixels: int, groups: int, requested: Sequence[bool],
) -> _Gradients:  # fmt: skip
    values, scale = grad.reshape(samples, channels, pixels), rstd.reshape(samples, groups, 1)
    grouped = (x.reshape(samples, groups, -1) - mean.reshape(samples, groups, 1)) * scale
    normal = grouped.reshape(samples, channels, pixels)
    inner = _affine(values, weight, None).reshape(samples, groups, -1)
    correction = inner.mean(-1, keepdim=True) + grouped * (inner * grouped).mean(-1, keepdim=True)
    return (
        (scale * (inner - correction)).reshape(x.shape) if requested[0] else None,
        (values * normal).sum((0, 2)) if requested[1] else None,
        values.sum((0, 2)) if requested[2] else None,
    )


def _layer_norm_backward(
    grad: Tensor, x: Tensor, shape: Sequence[int], mean: Tensor, rstd: Tensor, weight: Tensor | None,
    bias: Tensor | None, requested: Sequence[bool],
) -> _Gradients:  # fmt: skip
    """Torch has a derivative only where mean and 1/deviation follow from x: not where they have errors of their own."""
    if not (mean.requires_grad or rstd.requires_grad):
        return aten.native_layer_norm_backward.default(  # type: ignore[no-any-return]
            grad, x, shape, mean, rstd, weight, bias, requested
        )
    axes = tuple(range(x.dim() - len(shape), x.dim()))
    normal = (x - mean) * rstd
    inner = grad if weight is None else grad * weight
    correction = inner.mean(axes, keepdim=True) + normal * (inner * normal).mean(axes, keepdim=True)
    return (
        rstd * (inner - correction) if requested[0] else None,
        (grad * normal).sum_to_size(shape) if requested[1] else None,
        grad.sum_to_size(shape) if requested[2] else None,
    )


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_variance: Tensor | None,
    training: bool, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    shape, axes = (1, -1, *(1,) * (x.dim() - 2)), (0, *range(2, x.dim()))
    if training or running_mean is None or running_variance is None:
        mean, rstd = x.mean(axes), (x.var(axes, correction=0) + eps).rsqrt()
        return _affine((x - mean.view(shape)) * rstd.view(shape), weight, bias), mean.clone(), rstd.clone()
    normal = (x - running_mean.view(shape)) * (running_variance.view(shape) + eps).rsqrt()
    return _affine(normal, weight, bias), x.new_empty(0), x.new_empty(0)


def _batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, running_mean: Tensor | None, running_variance: Tensor | None,
    mean: Tensor | None, rstd: Tensor | None, training: bool, eps: float, requested: Sequence[bool],
) -> _Gradients:  # fmt: skip
    shape, axes = (1, -1, *(1,) * (x.dim() - 2)), (0, *range(2, x.dim()))
    if not training and running_mean is not None and running_variance is not None:
        mean, rstd = running_mean, (running_variance + eps).rsqrt()
    assert mean is not None and rstd is not None
    scale = rstd.view(shape)
    normal = (x - mean.view(shape)) * scale
    inner = _affine(grad, weight, None)
    correction = torch.zeros_like(inner)
    if training:
        correction = inner.mean(axes, keepdim=True) + normal * (inner * normal).mean(axes, keepdim=True)
    return (
        scale * (inner - correction) if requested[0] else None,
        (grad * normal).sum(axes) if requested[1] else None,
        grad.sum(axes) if requested[2] else None,
    )


def _weight_norm_backward(grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Of `w = v g / |v|`, norms over all dimensions but `dim`: torch has no derivative of this kernel."""
    others = [place for place in range(v.dim()) if place != dim % v.dim()]
    along = (grad * v).sum(others, keepdim=True) / norms
    return g / norms * (grad - v * (along / norms)), along


DIFFERENTIABLE: dict[Any, Callable[..., Any]] = {
    aten.gelu_backward.default: _gelu_backward,
    aten.silu_backward.default: _silu_backward,
    aten.mish_backward.default: _mish_backward,
    aten.hardsigmoid_backward.default: _hardsigmoid_backward,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten._weight_norm_interface_backward.default: _weight_norm_backward,
    **WITHOUT_DERIVATIVE,
}
