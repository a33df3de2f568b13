"""FP8 products on tensor cores: torch._scaled_mm in linear layers, E4M3 forward and E5M2 gradients.

Needs CUDA and compute capability 8.9 or newer (Ada, Hopper, Blackwell) and sizes that are multiples of 16. Results come
in FP32, as torchao's float8 training has them for a model in FP32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

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


class NativeLinear(nn.Linear):
    """A linear layer with FP8 products; made from a layer by `use_native`."""

    scales: Scales

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast(input.device.type, enabled=False):
            result: Tensor = _Fp8Linear.apply(input, self.weight, self.scales)
            return result if self.bias is None else result + self.bias


def use_native(layer: nn.Module, scales: Scales) -> None:
    """Turn a layer that `fits` into its native form, in place; its parameters are the same objects."""
    native: Any = layer
    native.__class__ = NativeLinear
    native.scales = scales


class _Fp8Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scales: Scales) -> Tensor:
        rows = _padded(x.flatten(0, -2).float())
        ctx.save_for_backward(rows, weight)
        ctx.scales, ctx.shape, ctx.dtype = scales, x.shape, x.dtype
        a, b = _quantized(rows, FORWARD, scales.activation, 1), _quantized(weight.float(), FORWARD, scales.weight, 1)
        product = _product(a, (b[0].t(), b[1].t()), fast=True)
        return product[: x.numel() // x.shape[-1]].view(*x.shape[:-1], -1).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        rows, weight = ctx.saved_tensors
        scales: Scales = ctx.scales
        grad = _padded(grads[0].flatten(0, -2).float())
        grad_x = grad_w = None
        if ctx.needs_input_grad[0]:
            b = _quantized(weight.float(), FORWARD, scales.weight, 0)
            product = _product(_quantized(grad, BACKWARD, scales.gradient, 1), (_columns(b[0]), b[1]), fast=False)
            grad_x = product[: grads[0].numel() // grads[0].shape[-1]].view(ctx.shape).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            a = _quantized(grad, BACKWARD, scales.gradient, 0)
            b = _quantized(rows, FORWARD, scales.activation, 0)
            grad_w = _product((a[0].t().contiguous(), a[1].t()), (_columns(b[0]), b[1]), fast=False).to(weight.dtype)
        return grad_x, grad_w, None


def _quantized(tensor: Tensor, dtype: torch.dtype, scale: AmaxScale, axis: int) -> tuple[Tensor, Tensor]:
    """The tensor in FP8 and the factor that undoes its scaling, shaped [rows, 1] or [1, columns] or [1, 1]."""
    factor = scale(tensor, axis)
    largest = torch.finfo(dtype).max
    return (tensor * factor).clamp(-largest, largest).to(dtype), factor.reciprocal().reshape(factor.shape or (1, 1))


def _product(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], *, fast: bool) -> Tensor:
    """[m, k] times [k, n] in FP8, summed in FP32 (`fast`: in the tensor core's shorter accumulator), given in FP32.

    Scales of rows and columns are multiplied onto the result: kernels that take them give BF16 on most cards, and are
    slow without the short accumulator (torchao does the same).
    """
    by_rows = a[1].numel() > 1 or b[1].numel() > 1
    one = torch.ones((), device=a[1].device)
    scale_a, scale_b = (one, one) if by_rows else (a[1].view(()), b[1].view(()))
    result: Tensor = scaled_mm(
        a[0], b[0], scale_a=scale_a, scale_b=scale_b, out_dtype=torch.float32, use_fast_accum=fast
    )
    return result.mul_(a[1]).mul_(b[1]) if by_rows else result


def _columns(tensor: Tensor) -> Tensor:
    """A matrix stored column by column, as FP8 kernels need the second operand."""
    return tensor.t().contiguous().t()


def _padded(rows: Tensor) -> Tensor:
    """Zero rows added up to a multiple of 16."""
    return nn.functional.pad(rows, (0, 0, 0, -len(rows) % MULTIPLE))
