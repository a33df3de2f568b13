"""Matrix work as low-precision units do it, on hardware that has none: round the operands, multiply in FP32.

A tensor core takes operands in the low format and accumulates in FP32. Rounding the operands and multiplying in
FP32 gives the same products (a product of two 11-bit mantissas is exact in FP32), so only the order of
the sum differs. The same holds backward: both gradients are products of rounded operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_input, conv2d_weight

Round = Callable[[Tensor], Tensor]


def to_tf32(tensor: Tensor) -> Tensor:
    """FP32 rounded to TF32's 10 mantissa bits, nearest even; NaN and Inf pass."""
    bits = tensor.contiguous().view(torch.int32)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF
    return torch.where(tensor.isfinite(), rounded.view(torch.float32), tensor)


def to_fp16(tensor: Tensor) -> Tensor:
    """Rounded to FP16 (overflow gives Inf) and held in FP32."""
    return tensor.to(torch.float16).to(torch.float32)


def exact(tensor: Tensor) -> Tensor:
    """No rounding: the result stays in FP32, as TF32 units leave it."""
    return tensor


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, operand: Round, result: Round) -> Tensor:
        x_q, weight_q = operand(x.float()), operand(weight.float())
        ctx.save_for_backward(x_q, weight_q)
        ctx.rounds = operand, result
        ctx.dtypes = x.dtype, weight.dtype
        return result(nn.functional.linear(x_q, weight_q, None if bias is None else operand(bias.float())))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x_q, weight_q = ctx.saved_tensors
        operand, result = ctx.rounds
        grad = operand(grads[0].float())
        flat = grad.flatten(0, -2)
        grad_x = result(grad @ weight_q).to(ctx.dtypes[0]) if ctx.needs_input_grad[0] else None
        grad_w = result(flat.t() @ x_q.flatten(0, -2)).to(ctx.dtypes[1])
        grad_b = result(flat.sum(0)) if ctx.needs_input_grad[2] else None
        return grad_x, grad_w, grad_b, None, None


class _Conv2d(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Any, operand: Round, result: Round
    ) -> Tensor:
        x_q, weight_q = operand(x.float()), operand(weight.float())
        ctx.save_for_backward(x_q, weight_q)
        ctx.geometry, ctx.rounds = geometry, (operand, result)
        ctx.dtypes = x.dtype, weight.dtype
        return result(nn.functional.conv2d(x_q, weight_q, None if bias is None else operand(bias.float()), *geometry))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x_q, weight_q = ctx.saved_tensors
        operand, result = ctx.rounds
        grad = operand(grads[0].float())
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = result(conv2d_input(list(x_q.shape), weight_q, grad, *ctx.geometry)).to(ctx.dtypes[0])
        grad_w = result(conv2d_weight(x_q, list(weight_q.shape), grad, *ctx.geometry)).to(ctx.dtypes[1])
        grad_b = result(grad.sum((0, 2, 3))) if ctx.needs_input_grad[2] else None
        return grad_x, grad_w, grad_b, None, None, None


class EmulatedLinear(nn.Linear):
    """A linear layer whose products take rounded operands; made from a layer by `emulate_matmuls`."""

    operand: Round
    result: Round

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast(input.device.type, enabled=False):
            return _Linear.apply(input, self.weight, self.bias, self.operand, self.result)  # type: ignore[no-any-return]


class EmulatedConv2d(nn.Conv2d):
    """A convolution whose products take rounded operands; made from a layer by `emulate_matmuls`."""

    operand: Round
    result: Round

    def forward(self, input: Tensor) -> Tensor:
        geometry = (self.stride, self.padding, self.dilation, self.groups)
        with torch.autocast(input.device.type, enabled=False):
            return _Conv2d.apply(input, self.weight, self.bias, geometry, self.operand, self.result)  # type: ignore[no-any-return]


_EMULATED: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: EmulatedLinear, nn.Conv2d: EmulatedConv2d}


def emulate_matmuls(model: nn.Module, operand: Round, result: Round) -> list[str]:
    """Turn each linear layer and 2-D convolution into its emulated form, in place. Returns their names.

    The parameters are the same objects, so an optimizer or a state dict does not notice.
    """
    names = []
    for module_name, module in model.named_modules():
        emulated = _EMULATED.get(type(module))
        if emulated is None or (isinstance(module, nn.Conv2d) and module.padding_mode != "zeros"):
            continue
        module.__class__ = emulated
        module.operand, module.result = operand, result
        names.append(module_name)
    return names
