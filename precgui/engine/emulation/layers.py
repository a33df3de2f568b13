"""Matrix work as low-precision units do it, on hardware that has none: round the operands, multiply in FP32.

A tensor core takes operands in the low format and accumulates in FP32. Rounding the operands and multiplying in
FP32 gives the same products (a product of two 11-bit mantissas is exact in FP32), so only the order of
the sum differs. The same holds backward: both gradients are products of rounded operands. Gradients pass the
rounding unchanged (straight-through), which is why these are functions of their own and no casts under autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.emulation.accumulator import Accumulator
from precgui.engine.emulation.labels import labelled_as
from precgui.engine.emulation.operands import Identity, OperandQuantizer
from precgui.engine.torch_private import ConvNd, DisableTorchFunction

_CONVOLUTION = torch.ops.aten.convolution.default
_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default
_EXACT = Identity()


@dataclass(frozen=True)
class MatmulArithmetic:
    """How one layer computes its three products: forward, gradient of the input, gradient of the weight.

    `result` rounds what a product gives, `bias` the bias. Without an accumulator products are summed in FP32.
    """

    label: str
    weight: OperandQuantizer
    activation: OperandQuantizer
    gradient: OperandQuantizer
    result: OperandQuantizer = _EXACT
    bias: OperandQuantizer = _EXACT
    accumulator: Accumulator | None = None

    @property
    def axis_free(self) -> bool:
        """Whether operands rounded once serve forward and backward."""
        return self.weight.axis_free and self.activation.axis_free and self.gradient.axis_free

    def bias_gradient(self, grad: Tensor, rounded: Tensor, axes: int | tuple[int, ...]) -> Tensor:
        """A bias is in no product: what it gets is rounded only where every tensor is stored in the format."""
        stored = not isinstance(self.result, Identity)
        return self.result((rounded if stored else grad).sum(axes), 0)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """[..., rows, k] times [..., k, columns], rounded as the result."""
        product = torch.matmul(a, b) if self.accumulator is None else self.accumulator.matmul(a, b)
        return self.result(product, -1)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, products: MatmulArithmetic) -> Tensor:
    """[..., k] times the transpose of [columns, k], with rounded operands forward and backward."""
    # Blind to modes, so that a product which is rounded here is not rounded again.
    with torch.autocast(x.device.type, enabled=False), DisableTorchFunction():
        return _Linear.apply(x, weight, bias, products)  # type: ignore[no-any-return]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, products: MatmulArithmetic) -> Tensor:
        rows = x.float().flatten(0, -2)
        x_q, weight_q = products.activation(rows, 1), products.weight(weight.float(), 1)
        ctx.save_for_backward(*((x_q, weight_q) if products.axis_free else (rows, weight)))
        ctx.products, ctx.like = products, (x.shape, x.dtype, weight.dtype, None if bias is None else bias.dtype)
        with labelled_as(products.label):
            if products.accumulator is None and bias is not None:
                result = products.result(torch.addmm(products.bias(bias.float(), 0), x_q, weight_q.t()), -1)
            else:
                result = products.matmul(x_q, weight_q.t())
                result = result if bias is None else result + products.bias(bias.float(), 0)
        return result.view(*x.shape[:-1], -1).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        rows, weight = ctx.saved_tensors
        p: MatmulArithmetic = ctx.products
        shape, x_dtype, weight_dtype, bias_dtype = ctx.like
        grad = grads[0].float().flatten(0, -2)
        grad_q = p.gradient(grad, 1)
        grad_x = grad_w = grad_b = None
        if ctx.needs_input_grad[0]:
            weight_q = weight if p.axis_free else p.weight(weight.float(), 0)
            with labelled_as(p.label):
                grad_x = p.matmul(grad_q, weight_q).view(shape).to(x_dtype)
        if ctx.needs_input_grad[1]:
            grad_t, rows_t = (grad_q, rows) if p.axis_free else (p.gradient(grad, 0), p.activation(rows, 0))
            with labelled_as(p.label):
                grad_w = p.matmul(grad_t.t(), rows_t).to(weight_dtype)
        if ctx.needs_input_grad[2]:
            grad_b = p.bias_gradient(grad, grad_q, 0).to(bias_dtype)
        return grad_x, grad_w, grad_b, None


@dataclass(frozen=True)
class Geometry:
    """The arguments of aten::convolution after the bias."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.stride, self.padding, self.dilation, self.transposed, self.output_padding, self.groups

    @property
    def weight_axis(self) -> int:
        """The axis of the weight along which the forward product sums; the other one serves backward."""
        return 0 if self.transposed else 1


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, products: MatmulArithmetic
    ) -> Tensor:
        x_f, weight_f = x.float(), weight.float()
        x_q, weight_q = products.activation(x_f, 1), products.weight(weight_f, geometry.weight_axis)
        ctx.save_for_backward(*((x_q, weight_q) if products.axis_free else (x_f, weight)))
        ctx.geometry, ctx.products = geometry, products
        ctx.like = x.dtype, weight.dtype, None if bias is None else bias.dtype
        bias_q = None if bias is None else products.bias(bias.float(), 0)
        if products.accumulator is None:
            result = _CONVOLUTION(x_q, weight_q, bias_q, *geometry.arguments)
        else:
            result = products.accumulator.convolution(x_q, weight_q, geometry.arguments)
            result = result if bias_q is None else result + bias_q.view(-1, *(1,) * (weight.dim() - 2))
        return products.result(result, 1).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight = ctx.saved_tensors
        p: MatmulArithmetic = ctx.products
        geometry: Geometry = ctx.geometry
        x_dtype, weight_dtype, bias_dtype = ctx.like
        wants_x, wants_w, wants_b = ctx.needs_input_grad[:3]
        grad = grads[0].float()
        grad_q = p.gradient(grad, 1)
        if p.axis_free and p.accumulator is None:
            grad_x, grad_w, _ = _gradients(grad_q, x, weight, geometry, (wants_x, wants_w))
        else:
            weight_q = weight if p.axis_free else p.weight(weight.float(), 1 - geometry.weight_axis)
            grad_t, x_t = (grad_q, x) if p.axis_free else (p.gradient(grad, 0), p.activation(x, 0))
            backward = _gradients if p.accumulator is None else p.accumulator.convolution_backward
            grad_x, _, _ = backward(grad_q, x, weight_q, geometry, (wants_x, False))
            _, grad_w, _ = backward(grad_t, x_t, weight.float(), geometry, (False, wants_w))
        return (
            p.result(grad_x, 1).to(x_dtype) if wants_x else None,
            p.result(grad_w, 1).to(weight_dtype) if wants_w else None,
            p.bias_gradient(grad, grad_q, (0, *range(2, grad.dim()))).to(bias_dtype) if wants_b else None,
            None,
            None,
        )


def _gradients(grad: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, requested: tuple[bool, bool]) -> Any:
    return _CONVOLUTION_BACKWARD(grad, x, weight, None, *geometry.arguments, (*requested, False))


class EmulatedLinear(nn.Linear):
    """A linear layer whose products take rounded operands; made from a layer by `emulate_products`."""

    eager_only = True
    products: MatmulArithmetic

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias, self.products)


class _EmulatedConvolution(ConvNd):
    """A convolution whose products take rounded operands; made from a layer by `emulate_products`."""

    eager_only = True
    products: MatmulArithmetic
    geometry: Geometry

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast(input.device.type, enabled=False), DisableTorchFunction():
            return _Convolution.apply(input, self.weight, self.bias, self.geometry, self.products)  # type: ignore[no-any-return]


class EmulatedConv1d(_EmulatedConvolution, nn.Conv1d):
    pass


class EmulatedConv2d(_EmulatedConvolution, nn.Conv2d):
    pass


class EmulatedConv3d(_EmulatedConvolution, nn.Conv3d):
    pass


class EmulatedConvTranspose1d(_EmulatedConvolution, nn.ConvTranspose1d):  # type: ignore[misc]
    pass


class EmulatedConvTranspose2d(_EmulatedConvolution, nn.ConvTranspose2d):  # type: ignore[misc]
    pass


class EmulatedConvTranspose3d(_EmulatedConvolution, nn.ConvTranspose3d):  # type: ignore[misc]
    pass


_EMULATED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: EmulatedLinear,
    nn.Conv1d: EmulatedConv1d,
    nn.Conv2d: EmulatedConv2d,
    nn.Conv3d: EmulatedConv3d,
    nn.ConvTranspose1d: EmulatedConvTranspose1d,
    nn.ConvTranspose2d: EmulatedConvTranspose2d,
    nn.ConvTranspose3d: EmulatedConvTranspose3d,
}


def layers(model: nn.Module, left_out: set[nn.Module]) -> dict[str, nn.Module]:
    """The layers that `emulate_products` can turn, by name, without those left out."""
    results = {}
    for name, module in model.named_modules():
        fits = type(module) in _EMULATED and module not in left_out
        if fits and not (isinstance(module, ConvNd) and _geometry(module) is None):
            results[name] = module
    return results


def emulate_products(chosen: dict[str, nn.Module], products: Callable[[str], MatmulArithmetic]) -> dict[str, str]:
    """Turn each layer into its emulated form, in place; `products` gives its arithmetic by name. Returns the labels.

    The parameters are the same objects, so an optimizer or a state dict does not notice.
    """
    labels = {}
    for name, module in chosen.items():
        layer: Any = module
        if isinstance(module, ConvNd):
            layer.geometry = _geometry(module)
        layer.__class__ = _EMULATED[type(module)]
        layer.products = products(name)
        labels[name] = layer.products.label
    return labels


def _geometry(module: ConvNd) -> Geometry | None:
    """Arguments for aten::convolution; None where torch pads in a way of its own."""
    padding = module.padding
    if padding == "valid":
        padding = (0,) * len(module.stride)
    if module.padding_mode != "zeros" or isinstance(padding, str):
        return None
    return Geometry(module.stride, padding, module.dilation, module.transposed, module.output_padding, module.groups)
