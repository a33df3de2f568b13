"""Operands of FP8 products, scaled and cast by one kernel where this machine can build it."""

from __future__ import annotations

import torch
from torch import Tensor

from precgui.engine.emulation import fp8_cast
from precgui.engine.emulation.operands import TINY, AmaxScale
from precgui.engine.quantize.as_operation import is_followed
from precgui.engine.quantize.device import built


def quantized(
    matrix: Tensor, dtype: torch.dtype, scale: AmaxScale, axis: int, *, straight: bool = True, turned: bool = False
) -> fp8_cast.Quantized:
    """As `fp8_cast.quantized`, bit for bit."""
    if not matrix.is_cuda or is_followed() or torch.compiler.is_compiling():
        return fp8_cast.quantized(matrix, dtype, scale, axis, straight=straight, turned=turned)
    amax = scale.amax(matrix, axis)

    def kernel() -> fp8_cast.Quantized:
        from precgui.engine.emulation.triton_fp8 import scaled

        words = {"straight": straight, "turned": turned}
        return fp8_cast.Quantized(*scaled(matrix, fp8_cast.as_matrix(amax), scale.largest, TINY, dtype, **words))

    return built("FP8", kernel, lambda: fp8_cast.cast(matrix, amax, dtype, scale, turned=turned), matrix.device)
