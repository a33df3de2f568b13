"""Tensors rounded to a block format: MX with its four scale rules, and NVFP4."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from precgui.engine.quantize.as_operation import as_operation
from precgui.engine.quantize.block_kernels import fused_blocks, fused_nvfp4, largest_magnitude, serves
from precgui.engine.quantize.elements import check_dtype, drawn, quantize, subnormals_kept
from precgui.engine.quantize.torch_form import finite_peak, in_blocks, round_blocks
from precgui.formats.blocks import SCALE_RULES, ScaleRule, block_format
from precgui.formats.model import BlockFormat, FloatFormat, Format
from precgui.formats.registry import get
from precgui.formats.rounding import RoundingMode


def quantize_blocks(
    tensor: Tensor, format: str, *, rule: ScaleRule = "floor", rounding: RoundingMode = "nearest_even",
    seed: int | None = None, axis: int = -1, largest: float | None = None,
) -> Tensor:  # fmt: skip
    """Round a tensor to a block format, blocks running along `axis`; shape, dtype and device stay.

    largest: of NVFP4 the largest finite magnitude of the tensor, from which its FP32 scale follows; None: that of
    `tensor`. Whoever rounds a tensor in pieces of whole blocks gives that of the whole, and gets what the whole gives.
    MX formats have no scale of the tensor, and leave it aside.

    rule: how an MX block gets its power of two from its largest magnitude: floor (OCP), ceil, even, rceil (NVIDIA);
    NVFP4 has its own scales. A block with NaN or infinity becomes NaN. Elements saturate. The gradient passes straight
    through. Raises UnknownFormatError for an unknown format, ValueError for an unknown rule and a `largest` that is
    negative or not finite, and TypeError for a tensor that is not of a float dtype.
    """
    chosen = block_format(format)
    check_dtype(tensor)
    if rule not in SCALE_RULES:
        raise ValueError(f"{rule!r} is no scale rule; there are {', '.join(SCALE_RULES)}")
    if largest is not None and not 0 <= largest < math.inf:
        raise ValueError(f"largest = {largest} is no magnitude; give the largest finite one of the whole tensor")
    if tensor.is_meta:
        return torch.empty_like(tensor)
    with torch.no_grad(), subnormals_kept(tensor):
        moved = tensor.movedim(axis, -1) if tensor.dim() else tensor.view(1)
        key = ("blocks", chosen, rule, rounding, seed, largest)
        rounded = as_operation(moved, key, lambda source: _rounded(source, chosen, rule, rounding, seed, largest))
        result = rounded.movedim(-1, axis) if tensor.dim() else rounded.view(())
    if tensor.requires_grad and torch.is_grad_enabled():
        return _Replaced.apply(tensor, result)  # type: ignore[no-any-return]
    return result


class _Replaced(torch.autograd.Function):
    """The second tensor, with the gradient of the first."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, result: Tensor) -> Tensor:
        return result.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, None]:
        return gradients[0], None


def _rounded(
    tensor: Tensor, chosen: BlockFormat, rule: ScaleRule, rounding: RoundingMode, seed: int | None,
    largest: float | None,
) -> Tensor:  # fmt: skip
    element, local = get(chosen.element), get(chosen.scale)
    if rounding == "stochastic":
        seed = drawn(seed)

    def cast(elements: Tensor, fmt: Format, mode: RoundingMode) -> Tensor:
        return quantize(elements, fmt, rounding=mode, saturate=True, seed=seed)

    def blocks(padded: Tensor) -> Tensor:
        if padded.device.type == "cpu" and rounding == "nearest_even" and serves(padded.dtype):
            return _fused(padded, chosen, element, local, rule, largest)
        return round_blocks(padded, chosen, element, local, rule, rounding, cast, largest)

    def plain() -> Tensor:
        return in_blocks(tensor, chosen.block, blocks)

    if tensor.device.type != "cuda":
        return plain()
    from precgui.engine.quantize.device import blocks_on_device

    return blocks_on_device(tensor, chosen, rule, rounding, seed or 0, largest, plain)


def _fused(
    padded: Tensor, chosen: BlockFormat, element: Format, local: Format, rule: ScaleRule, largest: float | None
) -> Tensor:
    result = torch.empty_like(padded)
    source, out = padded.view(-1).numpy(), result.view(-1).numpy()
    if not chosen.two_level:
        fused_blocks(source, out, element, rule, chosen.block)
    elif isinstance(element, FloatFormat) and isinstance(local, FloatFormat):
        peak = largest_magnitude(source) if largest is None else largest
        fused_nvfp4(source, out, peak if peak < math.inf else float(finite_peak(padded)), element, local, chosen.block)
    return result
