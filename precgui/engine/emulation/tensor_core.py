"""FP8 products as tensor cores with a short accumulator add them, computed with ordinary operations.

The products of a block and the running sum are aligned to the largest exponent among them; so many bits from there are
kept and the others cut off, and the running sum has as many. The exponent of a product is the sum of its operands'.
cuBLAS adds the running sum in FP32 from time to time, unless fast accumulation is asked for.

Of Hopper, 14 bits and 32 terms are those of DeepSeek-V3's report (arXiv 2412.19437, 3.5.2), the exponents those of
MMA-Sim (arXiv 2511.10909). Products of an H100 with CUDA 13.0 are the same to the last bit, for 32 to 4096 terms
(tests/gpu/test_fp8_sums.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from precgui.engine.emulation.labels import labelled_as

_LEAST = {torch.float8_e4m3fn: -6, torch.float8_e5m2: -14}  # exponents of the smallest normal numbers
_EXPONENT_BIAS, _MANTISSA_BITS = 127, 23
_OF_ZERO = -100  # below the exponent of any product
_NEVER = 1 << 62
_LIBRARY = torch.library.Library("precgui", "FRAGMENT")
_NAME = "scaled_mm_of_tensor_core"
_SIGNATURE = "(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, int[] least, int[] sums) -> Tensor"


@dataclass(frozen=True)
class TensorCore:
    """`bits` are kept of a sum, `terms` added at once; the running sum is added in FP32 after every `promoted_every`.

    Sums are exact where (terms + 1) 2^(bits + 1) is at most 2^24. `label` is that of the products in the census.
    """

    bits: int
    terms: int
    promoted_every: int
    label: str

    def scaled_mm(self, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, *, fast: bool) -> Tensor:
        """[m, k] times [k, n] in FP8 with a scale for each, in FP32; `fast`: partial sums are never added in FP32."""
        least, sums = (
            [_LEAST[a.dtype], _LEAST[b.dtype]],
            [self.bits, self.terms, _NEVER if fast else self.promoted_every],
        )
        with labelled_as(self.label):
            result: Tensor = SCALED_MM(a.float(), b.float(), scale_a, scale_b, least, sums)
        return result


HOPPER = TensorCore(14, 32, 128, "e4m3fn (gradients e5m2) summed as on Hopper")


def _scaled_mm(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, least: list[int], sums: list[int]) -> Tensor:
    of_a, of_b = _exponents(a, least[0]), _exponents(b, least[1])
    most = 1 << (18 if a.device.type == "cpu" else 26)  # products at a time: in the caches, or enough for a GPU
    rows = max(1, most // max(1, min(sums[1], a.shape[1]) * b.shape[1]))
    parts = zip(a.split(rows), of_a.split(rows), strict=True)
    return torch.cat([_rows(x, of_x, b, of_b, sums) for x, of_x in parts]).mul_(scale_a * scale_b)


def _rows(x: Tensor, of_x: Tensor, y: Tensor, of_y: Tensor, sums: list[int]) -> Tensor:
    """Some rows of the product; `of_x` and `of_y` are the exponents of the operands."""
    bits, terms, promoted_every = sums
    total = x.new_zeros(len(x), y.shape[1])
    running = torch.zeros_like(total)
    for start in range(0, x.shape[1], terms):
        part = slice(start, start + terms)
        highest = (of_x[:, part, None] + of_y[None, part]).amax(1)
        last = _power(torch.maximum(highest, _exponents(running, _OF_ZERO)) - (bits - 1))
        products = x[:, part, None] * y[None, part]
        added = products.div_(last[:, None]).trunc_().sum(1).add_((running / last).trunc_())
        running = _cut(added.mul_(last), bits)
        if (start + terms) % promoted_every == 0:
            total += running
            running = torch.zeros_like(total)
    return total.add_(running)


def _exponents(values: Tensor, least: int) -> Tensor:
    """Exponents of FP32 numbers, none below `least`; 0 has a lower one than all others."""
    found = (values.contiguous().view(torch.int32) >> _MANTISSA_BITS & 0xFF) - _EXPONENT_BIAS
    return torch.where(values == 0, _OF_ZERO, found.clamp_min(least))


def _power(exponents: Tensor) -> Tensor:
    """Two to these powers."""
    return (exponents + _EXPONENT_BIAS << _MANTISSA_BITS).view(torch.float32)


def _cut(values: Tensor, bits: int) -> Tensor:
    """All but the first bits of the significand set to 0."""
    return (values.view(torch.int32) & -(1 << _MANTISSA_BITS + 1 - bits)).view(torch.float32)


def _flops(a_shape: list[int], b_shape: list[int], *_: object, **__: object) -> int:
    return 2 * a_shape[0] * a_shape[1] * b_shape[1]


if not hasattr(torch.ops.precgui, _NAME):  # a process may run several exported scripts, each with a copy
    _LIBRARY.define(_NAME + _SIGNATURE)
    _LIBRARY.impl(_NAME, _scaled_mm, "CompositeExplicitAutograd")
    register_flop_formula(torch.ops.precgui.scaled_mm_of_tensor_core)(_flops)
SCALED_MM = torch.ops.precgui.scaled_mm_of_tensor_core.default
