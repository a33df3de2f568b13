"""oneDNN's integer kernels on this processor: whether torch has them, and whether their sums are exact.

Without VNNI (most processors with AVX2 only), oneDNN multiplies unsigned by signed 8-bit integers with `vpmaddubsw`,
which adds each pair of products in 16 bits and clamps the sum to 32767: 255 x 127 x 2 becomes 32767 of 64770. The
variable ONEDNN_MAX_CPU_ISA takes VNNI away from a processor that has it, so no flag of the processor answers this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from precgui.engine.torch_private import has_avx2
from precgui.sentences import L_, Sentence

_ONEDNN: Any = torch.ops.onednn
_PROBED = 64  # inputs of each sum: whole vectors of any width


def integer_kernels(weight_bits: int = 8) -> str:
    """`exact`, `saturating` (sums of weights so large are clamped to 16 bits) or `missing`."""
    if not (torch.backends.mkldnn.is_available() and has_avx2()):
        return "missing"
    return _probed(min(2 ** (weight_bits - 1), 127))


def arithmetic_note(bits: Mapping[str, tuple[int, int | None]], native: int) -> str:
    """One sentence: what multiplied the integers of a converted model, and why where that is FP32.

    `bits` are those of weights and inputs of each layer, `native` is how many layers run on integer kernels.
    """
    if native == len(bits):
        return Sentence(
            "all {count} layers multiply on oneDNN's integer kernels, whose sums are exact on this processor",
            count=native,
        )
    kinds = {integer_kernels(weight) for weight, inputs in bits.values() if inputs is not None}
    if "saturating" in kinds:
        why = L_(
            "oneDNN clamps sums of 8-bit integers to 16 bits on this processor, which has no VNNI or may not use it"
        )
    elif "missing" in kinds:
        why = L_("torch has no integer kernels for this processor")
    else:
        why = L_("the others have no integer kernel")
    return Sentence(
        "{native} of {count} layers multiply on oneDNN's integer kernels: {why}; {others} multiply the "
        "same integers in FP32",
        native=native,
        count=len(bits),
        why=why,
        others=len(bits) - native,
    )


@cache
def _probed(largest: int) -> str:
    """Multiply the largest inputs by the largest weights, where every exact sum is a whole number below 2^24."""
    weights = torch.full((16, _PROBED, 1, 1), largest, dtype=torch.int8)
    weights[1::2].neg_()
    inputs = torch.full((1, _PROBED, 4, 4), 255, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    exact = 255.0 * weights.float().flatten(1).sum(1)
    with torch.no_grad():
        try:
            results = list(_products(inputs, weights))
        except RuntimeError:
            return "missing"
    return "exact" if all(torch.equal(result, exact.expand_as(result)) for result in results) else "saturating"


def _products(inputs: Tensor, weights: Tensor) -> Iterator[Tensor]:
    """[rows, 16]: the sums as a linear layer and as a convolution give them."""
    steps, zeros = torch.ones(16), torch.zeros(16, dtype=torch.int32)
    out: tuple[Any, ...] = (1.0, 0, torch.float32, "none", [], "")
    rows = inputs.permute(0, 2, 3, 1).reshape(-1, _PROBED)
    packed = _ONEDNN.qlinear_prepack(weights.flatten(1), None)
    yield _ONEDNN.qlinear_pointwise(rows, 1.0, 0, packed, steps, zeros, None, *out)
    geometry = [1, 1], [0, 0], [1, 1], 1
    packed = _ONEDNN.qconv_prepack(weights, steps, 1.0, 0, *geometry, None)
    images = _ONEDNN.qconv_pointwise(inputs, 1.0, 0, packed, steps, zeros, None, *geometry, *out)
    yield images.permute(0, 2, 3, 1).reshape(-1, 16)
