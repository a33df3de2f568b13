"""Products that are no layer's (attention, matmul and their kin) with rounded operands, in whichever module."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from precgui.config.names import EMULATED
from precgui.engine.emulation.labels import labelled_as
from precgui.engine.emulation.layers import MatmulArithmetic, linear
from precgui.engine.torch_private import DisableTorchFunction
from precgui.sentences import L_

if TYPE_CHECKING:
    from precgui.config import RunConfig

_Rounded = Callable[..., Tensor]
FUNCTIONAL = "(elsewhere)"  # the place of these products, where a layer has its name
FUNCTIONAL_NOTE = L_(
    "products in attention, recurrent layers and elsewhere are rounded alike; softmax and gates stay in FP32"
)


def rounds_everywhere(config: RunConfig) -> bool:
    """Whether more than linear and convolutional layers is rounded: what TF32 does, and what any format asks for.

    FP8 and block formats leave the rest in higher precision, as the recipes for hardware do.
    """
    requested = config.precision_options.products
    return requested == "all" or (requested == "auto" and config.precision.startswith(("tf32", EMULATED)))


class FunctionalRoundingMode(TorchFunctionMode):
    """While entered, products of two tensors take rounded operands, forward and backward.

    Attention is taken apart into two products with softmax in FP32 between them. Not emulated: functional convolutions,
    and einsum in a block format, whose blocks would need to know the summed axis.
    """

    def __init__(self, products: MatmulArithmetic, *, compiled: bool = False) -> None:
        """`compiled` says that torch.compile traces the model; it cannot trace the rounding."""
        super().__init__()
        self._products = products
        self._call = torch.compiler.disable(_called) if compiled else _called

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward:
            with self:
                return attention_heads(*args, **kwargs)
        rounded = _ROUNDED.get(func)
        floats = args and all(not isinstance(a, Tensor) or a.is_floating_point() for a in args[:3])
        return self._call(rounded, self._products, args, kwargs) if rounded and floats else func(*args, **kwargs)


def _called(rounded: _Rounded, products: MatmulArithmetic, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    return rounded(products, *args, **kwargs)


class _Matmul(torch.autograd.Function):
    """[..., m, k] times [..., k, n], or with `turned` times the transpose of [..., n, k]."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, products: MatmulArithmetic, turned: bool) -> Tensor:
        left, right = products.activation(a.float(), -1), products.activation(b.float(), -1 if turned else -2)
        ctx.save_for_backward(*((left, right) if products.axis_free else (a, b)))
        ctx.products, ctx.turned, ctx.dtypes = products, turned, (a.dtype, b.dtype)
        with labelled_as(products.label):
            return products.matmul(left, right.mT if turned else right).to(a.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        a, b = ctx.saved_tensors
        p: MatmulArithmetic = ctx.products
        across = p.gradient(grads[0].float(), -1)
        grad_a = grad_b = None
        with labelled_as(p.label):
            if ctx.needs_input_grad[0]:
                right = b if p.axis_free else p.activation(b.float(), -2 if ctx.turned else -1)
                grad_a = p.matmul(across, right if ctx.turned else right.mT)
                grad_a = grad_a.sum_to_size(a.shape).to(ctx.dtypes[0])
            if ctx.needs_input_grad[1]:
                left = a if p.axis_free else p.activation(a.float(), -2)
                down = across if p.axis_free else p.gradient(grads[0].float(), -2)
                grad_b = p.matmul(down.mT, left) if ctx.turned else p.matmul(left.mT, down)
                grad_b = grad_b.sum_to_size(b.shape).to(ctx.dtypes[1])
        return grad_a, grad_b, None, None


def matmul(products: MatmulArithmetic, a: Tensor, b: Tensor) -> Tensor:
    """torch.matmul with rounded operands, vectors included."""
    left, right = (a[None] if a.dim() == 1 else a), (b[:, None] if b.dim() == 1 else b)
    result: Tensor = _Matmul.apply(left, right, products, False)
    result = result.squeeze(-2) if a.dim() == 1 else result
    return result.squeeze(-1) if b.dim() == 1 else result


def attention(
    products: MatmulArithmetic,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch's scaled_dot_product_attention, after the reference in its documentation, with both products rounded."""
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores: Tensor = _Matmul.apply(query, key, products, True) * factor
    if is_causal:
        past = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(past.logical_not(), -math.inf)
    if attn_mask is not None:
        masked = attn_mask.dtype is torch.bool
        scores = scores.masked_fill(attn_mask.logical_not(), -math.inf) if masked else scores + attn_mask
    shares = torch.dropout(scores.softmax(-1), dropout_p, train=dropout_p > 0)
    mixed: Tensor = _Matmul.apply(shares, value, products, False)
    return mixed


def _added(
    products: MatmulArithmetic, summand: Tensor, a: Tensor, b: Tensor, *, beta: float = 1.0, alpha: float = 1.0
) -> Tensor:
    """torch.addmm and torch.baddbmm."""
    return beta * summand + alpha * matmul(products, a, b)


def _linear(products: MatmulArithmetic, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return linear(input, weight, bias, products)


class _Einsum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, equation: str, products: MatmulArithmetic, *operands: Tensor) -> Tensor:
        rounded = [products.activation(operand.float(), -1) for operand in operands]
        ctx.save_for_backward(*rounded)
        ctx.equation, ctx.products, ctx.dtypes = equation, products, [operand.dtype for operand in operands]
        with labelled_as(products.label):
            return products.result(torch.einsum(equation, *rounded), -1).to(operands[0].dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        with torch.enable_grad(), labelled_as(ctx.products.label):
            operands = [rounded.detach().requires_grad_() for rounded in ctx.saved_tensors]
            result = torch.einsum(ctx.equation, *operands)
            outcome = torch.autograd.grad(result, operands, ctx.products.gradient(grads[0].float(), -1))
        return None, None, *(grad.to(dtype) for grad, dtype in zip(outcome, ctx.dtypes, strict=True))


def _einsum(products: MatmulArithmetic, equation: str, *operands: Any) -> Tensor:
    if not products.axis_free or products.accumulator is not None:
        return torch.einsum(equation, *operands)
    tensors = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    return _Einsum.apply(equation, products, *tensors)  # type: ignore[no-any-return]


_ROUNDED: dict[Callable[..., Any], _Rounded] = {
    functional.scaled_dot_product_attention: attention,
    functional.linear: _linear,
    torch.einsum: _einsum,
    **dict.fromkeys((torch.addmm, torch.Tensor.addmm, torch.baddbmm, torch.Tensor.baddbmm), _added),
    **dict.fromkeys(
        (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.mm, torch.Tensor.mm, torch.bmm,
         torch.Tensor.bmm),
        matmul,
    ),
}  # fmt: skip

# torch dispatches this function as a whole; with function modes disabled its parts are dispatched one by one.
attention_heads: Any = FunctionType(
    functional.multi_head_attention_forward.__code__,
    {**functional.multi_head_attention_forward.__globals__, "has_torch_function": lambda _: False},
    argdefs=functional.multi_head_attention_forward.__defaults__,
)


def leave_alone(module: nn.Module) -> None:
    """Let the products inside `module` be as they are, whatever is entered around it."""
    forward = module.forward

    def untouched(*args: Any, **kwargs: Any) -> Any:
        with DisableTorchFunction():
            return forward(*args, **kwargs)

    module.forward = untouched
