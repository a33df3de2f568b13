"""FP8 products on tensor cores: torch._scaled_mm in linear layers, E4M3 forward and E5M2 gradients.

Needs CUDA and compute capability 8.9 or newer (Ada, Hopper, Blackwell) and sizes that are multiples of 16. Results come
in FP32, as torchao's float8 training has them for a model in FP32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from precgui.engine.emulation.fp8_cast import Quantized
from precgui.engine.emulation.fused_fp8 import quantized
from precgui.engine.emulation.operands import AmaxScale
from precgui.engine.torch_private import scaled_mm

MULTIPLE = 16
FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2


def available(device: torch.device) -> bool:
    """Whether FP8 products run on the tensor cores of `device`."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 9)


def fits(layer: nn.Module) -> bool:
    """Whether a layer can use them: a linear layer whose sizes are multiples of 16."""
    return type(layer) is nn.Linear and layer.in_features % MULTIPLE == 0 and layer.out_features % MULTIPLE == 0


@dataclass(frozen=True)
class Scales:
    """The scaling of the three operands of a layer."""

    activation: AmaxScale
    weight: AmaxScale
    gradient: AmaxScale


class ScaledMatmul(Protocol):
    """[m, k] times [k, n] in FP8 with a scale for each, in FP32; `fast`: in the shorter accumulator alone."""

    def __call__(self, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, *, fast: bool) -> Tensor: ...


def on_tensor_cores(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, *, fast: bool) -> Tensor:
    """The product of the device."""
    result: Tensor = scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.float32, use_fast_accum=fast)
    return result


class NativeLinear(nn.Linear):
    """A linear layer with FP8 products; made from a layer by `use_native`."""

    scales: Scales
    multiply: ScaledMatmul

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast(input.device.type, enabled=False):
            result: Tensor = _Fp8Linear.apply(input, self.weight, self.scales, self.multiply)
            return result if self.bias is None else result + self.bias


def use_native(layer: nn.Module, scales: Scales, multiply: ScaledMatmul = on_tensor_cores) -> None:
    """Turn a layer that `fits` into its native form, in place; its parameters are the same objects."""
    native: Any = layer
    native.__class__ = NativeLinear
    native.scales, native.multiply = scales, multiply


class _Fp8Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scales: Scales, multiply: ScaledMatmul) -> Tensor:
        rows = _padded(x.flatten(0, -2).float())
        of_x, of_weight = ctx.needs_input_grad[:2]
        a = quantized(rows, FORWARD, scales.activation, 1, turned=of_weight)
        b = quantized(weight.float(), FORWARD, scales.weight, 1, turned=of_x)
        ctx.save_for_backward(*_kept(rows, a, scales.activation), *_kept(weight, b, scales.weight))
        ctx.scales, ctx.shape, ctx.dtype, ctx.dtype_of_weight = scales, x.shape, x.dtype, weight.dtype
        ctx.multiply = multiply
        product = _product(multiply, (a.straight, a.inverse), (b.straight.t(), b.inverse.t()), fast=True)
        return product[: x.numel() // x.shape[-1]].view(*x.shape[:-1], -1).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        scales: Scales = ctx.scales
        of_x, of_weight = ctx.needs_input_grad[:2]
        rows, weight = ctx.saved_tensors[:2], ctx.saved_tensors[2:]
        grad = _padded(grads[0].flatten(0, -2).float())
        grad_x = grad_w = None
        a = None
        if of_x:
            a = quantized(grad, BACKWARD, scales.gradient, 1, turned=of_weight and not scales.gradient.rowwise)
            turned, inverse = _turned(weight, scales.weight)
            product = _product(ctx.multiply, (a.straight, a.inverse), (turned.t(), inverse), fast=False)
            grad_x = product[: grads[0].numel() // grads[0].shape[-1]].view(ctx.shape).to(ctx.dtype)
        if of_weight:
            if a is None or scales.gradient.rowwise:
                a = quantized(grad, BACKWARD, scales.gradient, 0, straight=False, turned=True)
            turned, inverse = _turned(rows, scales.activation)
            product = _product(ctx.multiply, (a.turned, a.inverse.t()), (turned.t(), inverse), fast=False)
            grad_w = product.to(ctx.dtype_of_weight)
        return grad_x, grad_w, None, None


def _kept(matrix: Tensor, cast: Quantized, scale: AmaxScale) -> tuple[Tensor, Tensor]:
    """That of an operand which the backward pass needs: its transpose in FP8, or itself, if that has its own scales."""
    return (matrix, cast.inverse) if scale.rowwise else (cast.turned, cast.inverse)


def _turned(kept: tuple[Tensor, ...], scale: AmaxScale) -> tuple[Tensor, Tensor]:
    """The transpose of an operand in FP8 and its factors, from what was kept of it."""
    if not scale.rowwise:
        return kept[0], kept[1]
    found = quantized(kept[0].float(), FORWARD, scale, 0, straight=False, turned=True)
    return found.turned, found.inverse


def _product(multiply: ScaledMatmul, a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], *, fast: bool) -> Tensor:
    """[m, k] times [k, n] in FP8, given in FP32. `fast`: summed in the tensor core's accumulator alone, which on Hopper
    keeps 14 bits; else partial sums are added in FP32.

    Scales of rows and columns are multiplied onto the result: kernels that take them give BF16 on most cards, and are
    slow without the short accumulator (torchao does the same).
    """
    by_rows = a[1].numel() > 1 or b[1].numel() > 1
    one = torch.ones((), device=a[1].device) if by_rows else None
    scale_a, scale_b = (a[1].view(()), b[1].view(())) if one is None else (one, one)
    result = multiply(a[0], b[0], scale_a, scale_b, fast=fast)
    return result.mul_(a[1]).mul_(b[1]) if by_rows else result


def _padded(rows: Tensor) -> Tensor:
    """Zero rows added up to a multiple of 16."""
    return nn.functional.pad(rows, (0, 0, 0, -len(rows) % MULTIPLE))
