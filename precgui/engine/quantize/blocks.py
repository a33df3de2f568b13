"""Tensors rounded to a block format: MX with its four scale rules, and NVFP4."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from precgui.engine.quantize.as_operation import as_operation
from precgui.engine.quantize.block_kernels import fused_blocks, fused_nvfp4, largest_magnitude, serves
from precgui.engine.quantize.elements import check_dtype, quantize, subnormals_kept
from precgui.formats.blocks import HIGHEST_SCALE, LOWEST_SCALE, SCALE_RULES, ScaleRule, block_format
from precgui.formats.model import BlockFormat, FloatFormat, Format, floor_log2
from precgui.formats.registry import get
from precgui.formats.rounding import RoundingMode


def quantize_blocks(
    tensor: Tensor, format: str, *, rule: ScaleRule = "floor", rounding: RoundingMode = "nearest_even",
    seed: int | None = None, axis: int = -1,
) -> Tensor:  # fmt: skip
    """Round a tensor to a block format, blocks running along `axis`; shape, dtype and device stay.

    rule: how an MX block gets its power of two from its largest magnitude: floor (OCP), ceil, even, rceil (NVIDIA);
    NVFP4 has its own scales. A block with NaN or infinity becomes NaN. Elements saturate. The gradient passes straight
    through. Raises UnknownFormatError for an unknown format, ValueError for an unknown rule, and TypeError for a tensor
    that is not of a float dtype.
    """
    chosen = block_format(format)
    check_dtype(tensor)
    if rule not in SCALE_RULES:
        raise ValueError(f"{rule!r} is no scale rule; there are {', '.join(SCALE_RULES)}")
    if tensor.is_meta:
        return torch.empty_like(tensor)
    with torch.no_grad(), subnormals_kept(tensor):
        moved = tensor.movedim(axis, -1) if tensor.dim() else tensor.view(1)
        key = ("blocks", chosen, rule, rounding, seed)
        rounded = as_operation(moved, key, lambda source: _rounded(source, chosen, rule, rounding, seed))
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


def _rounded(tensor: Tensor, chosen: BlockFormat, rule: ScaleRule, rounding: RoundingMode, seed: int | None) -> Tensor:
    source = tensor.contiguous() if tensor.dtype == torch.float64 else tensor.float().contiguous()
    width = source.shape[-1]
    padding = -width % chosen.block
    padded = torch.nn.functional.pad(source, (0, padding)) if padding else source
    element = get(chosen.element)
    if padded.device.type == "cpu" and rounding == "nearest_even" and serves(padded.dtype):
        result = _fused(padded, chosen, element, rule)
    else:
        result = _composed(padded, chosen, element, rule, rounding, seed)
    return (result[..., :width] if padding else result).to(tensor.dtype)


def _fused(padded: Tensor, chosen: BlockFormat, element: Format, rule: ScaleRule) -> Tensor:
    result = torch.empty_like(padded)
    source, out = padded.view(-1).numpy(), result.view(-1).numpy()
    local = get(chosen.scale)
    if not chosen.two_level:
        fused_blocks(source, out, element, rule, chosen.block)
    elif isinstance(element, FloatFormat) and isinstance(local, FloatFormat):
        fused_nvfp4(source, out, _finite_peak(padded), element, local, chosen.block)
    return result


def _finite_peak(tensor: Tensor) -> float:
    """The largest magnitude, of the finite elements where others are among them; 0 of nothing."""
    if not tensor.numel():
        return 0.0
    if tensor.device.type == "cpu" and serves(tensor.dtype):
        peak = largest_magnitude(tensor.view(-1).numpy())
        if peak < float("inf"):
            return peak
    return float(torch.where(tensor.isfinite(), tensor, 0.0).abs().amax())


def _composed(
    padded: Tensor, chosen: BlockFormat, element: Format, rule: ScaleRule, rounding: RoundingMode, seed: int | None
) -> Tensor:
    """Scale, round with `quantize`, scale back: on any device and in any rounding."""
    rows = padded.view(-1, chosen.block)
    peak = rows.abs().amax(dim=1, keepdim=True)
    known = peak.isfinite()
    peak = torch.where(known, peak, 0.0)
    if chosen.two_level:
        scale = _nvfp4_scale(peak.float(), _finite_peak(padded), element)
        scaled = torch.where(scale == 0, 0.0, rows.float() / scale).to(rows.dtype)
    else:
        exponent = mx_exponent(peak, element, rule)
        scale = torch.ldexp(torch.ones_like(peak), exponent)
        scaled = torch.ldexp(rows, -exponent)
    elements = quantize(torch.where(known, scaled, 0.0), element, rounding=rounding, saturate=True, seed=seed)
    result = torch.where(known, elements * scale.to(rows.dtype), float("nan"))
    return result.view(padded.shape)


def mx_exponent(peak: Tensor, element: Format, rule: ScaleRule) -> Tensor:
    """The exponent of the scale for the largest magnitude of each block, by rule, clamped to what E8M0 holds."""
    mantissa, exponent = torch.frexp(peak)
    limit = float(element.max_finite)
    top = floor_log2(element.max_finite)
    bits = element.mantissa_bits if isinstance(element, FloatFormat) else element.bits - 2
    match rule:
        case "floor":
            chosen = exponent - 1 - top
        case "ceil":
            chosen = exponent - (mantissa == 0.5).int() - top
        case "even":
            chosen = exponent - 1 - top + (torch.round(mantissa * 2.0 ** (bits + 1)) == 2.0 ** (bits + 1)).int()
        case _:
            fraction, power = limit / 2.0 ** (top + 1), top + 1
            chosen = exponent - power + (mantissa > fraction).int()
    return torch.where(peak == 0, LOWEST_SCALE, chosen.clamp(LOWEST_SCALE, HIGHEST_SCALE)).int()


def _nvfp4_scale(peak: Tensor, largest: float, element: Format) -> Tensor:
    """Block scales in E4M3 times the FP32 scale of the tensor."""
    limit, local_format = float(element.max_finite), get("ue4m3")
    tensor_scale = torch.tensor(largest, dtype=torch.float32) / (float(local_format.max_finite) * limit)
    tensor_scale = tensor_scale.to(peak.device)
    local = quantize(torch.where(tensor_scale > 0, peak / limit / tensor_scale, 0.0), local_format, saturate=True)
    return local * tensor_scale
