"""The arithmetic of sums in matrix products, measured: bits kept, rounding, terms added at once, promotion to FP32.

The method is that of Fasi, Higham, Mikaitis and Pranesh (PeerJ Computer Science 7:e330, 2021) and of FPRev (Xie, Gao
and Xue, arXiv 2411.00442): a large term, a small one and the negative of the large one are added; where the small one
is missing in the result, the sum has lost it. All other terms are 0, so each result is exact in any format of the
output. Every row of the left and every column of the right matrix are a test of their own, and the diagonal of the
product has the results: one product makes all tests of a kind, in a size whose kernels are those of training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from precgui.engine.torch_private import scaled_mm

Multiply = Callable[[Tensor, Tensor], Tensor]
SIDE = 256  # rows and columns of each product: the most tests at a time
SHORT, LONG = 256, 1024  # terms of each sum; the long ones show where partial sums are promoted
_IN_BLOCK, _ACROSS = (0, 1, 2), (0, 40, 80)
_PLACES = (_IN_BLOCK, _ACROSS, (1, 0, 2), (9, 12, 2), (16, 48, 112))  # of the large term, the small one, the negative
_ENDS = (63, 31)  # last places of blocks of any power of two up to 64; of 32, where 64 terms are promoted
_FRACTIONS = (1.25, 1.75, -1.25, -1.75)  # of the last kept bit
_ROUNDINGS: dict[
    tuple[float, ...], str
] = {  # what is left of these in the sum of a positive large term, and of a negative one
    (1, 1, -1, -1) * 2: "toward_zero",  # each term is truncated
    (1, 1, -2, -2, 2, 2, -1, -1): "toward_zero",  # the sum is
    (1, 2, -1, -2) * 2: "nearest_even",
    (1, 1, -2, -2) * 2: "down",
    (2, 2, -1, -1) * 2: "up",
}
FP32_BITS = 24


@dataclass(frozen=True)
class Operands:
    """The two operand formats: the exponents of their normal numbers, the smallest subnormal one of the left."""

    left: torch.dtype
    right: torch.dtype
    left_exponents: tuple[int, int]
    right_exponents: tuple[int, int]
    large: tuple[int, int]  # exponents of the large term's factors

    @property
    def reach(self) -> int:
        """The largest distance of exponents between two terms."""
        return sum(self.large) - self.left_exponents[0] - self.right_exponents[0]


_E4M3, _E5M2 = (-6, 8), (-14, 15)
_WIDE = (-40, 40)  # as many as are needed of formats with 8 bits of exponent and more
OPERANDS = {
    "fp64": Operands(torch.float64, torch.float64, _WIDE, _WIDE, (10, 10)),
    "fp32": Operands(torch.float32, torch.float32, _WIDE, _WIDE, (10, 10)),
    "tf32": Operands(torch.float32, torch.float32, _WIDE, _WIDE, (10, 10)),
    "bf16": Operands(torch.bfloat16, torch.bfloat16, _WIDE, _WIDE, (10, 10)),
    "fp16": Operands(torch.float16, torch.float16, (-12, 15), (-12, 15), (7, 7)),  # FP16 has the results
    "e4m3fn": Operands(torch.float8_e4m3fn, torch.float8_e4m3fn, _E4M3, _E4M3, (8, 8)),
    "e5m2": Operands(torch.float8_e5m2, torch.float8_e4m3fn, _E5M2, _E4M3, (8, 8)),
}


@dataclass(frozen=True)
class SumArithmetic:
    """How a device adds the products of a format.

    `bits` are kept of a sum, counted from the leading bit of its largest term; None where more are kept than the
    format can show. `block_bits` are those of terms that stand side by side. `terms` are aligned and added at once;
    None where that cannot be told. `promoted_every`: after so many terms the partial sum is added in FP32; None where
    it never is, or where that makes no difference.
    """

    bits: int | None
    block_bits: int | None
    rounding: str | None
    terms: int | None
    promoted_every: int | None
    keeps_subnormals: bool
    order_matters: bool
    is_deterministic: bool


def multiply_on(device: torch.device, operands: Operands, *, fast: bool) -> Multiply:
    """Products of FP64 matrices that have numbers of these formats only, as `device` makes them; result in FP64."""

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        x, y = a.to(device=device, dtype=operands.left), b.t().contiguous().to(device=device, dtype=operands.right).t()
        if operands.left.itemsize > 1:
            return torch.mm(x, y).cpu().double()
        one = torch.ones((), device=device)
        result = scaled_mm(x, y, scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=fast)
        return result.cpu().double()

    return multiply


def measure(multiply: Multiply, operands: Operands) -> SumArithmetic:
    """Measure the sums of `multiply`."""
    probe = _Probe(multiply, operands)
    kept = [probe.bits(places) for places in _PLACES]
    bits = min((each for each in kept if each is not None), default=None)
    rounding = terms = promoted_every = None
    if bits is not None:
        rounding = probe.rounding(_PLACES[kept.index(bits)], bits)
        terms = probe.terms(kept[0] or bits)
        promoted_every = probe.promoted_every(bits) if bits < FP32_BITS else None
    return SumArithmetic(bits, kept[0], rounding, terms, promoted_every, probe.keeps_subnormals(), *probe.repeats())


@dataclass(frozen=True)
class _Term:
    place: int
    fraction: float
    distance: int  # its exponent is that of the large term less this


class _Probe:
    def __init__(self, multiply: Multiply, operands: Operands) -> None:
        self._multiply = multiply
        self._operands = operands

    def bits(self, places: Sequence[int]) -> int | None:
        """Bits kept where the large term, the small one and the negative stand at these places; None: all that can be
        told apart."""
        distances = range(1, self._operands.reach + 1)
        sums = self._sums([_cancelled(places, _Term(places[1], 1.0, d)) for d in distances], SHORT)
        lost = (d for d, left in zip(distances, sums, strict=True) if left != 2.0**-d)
        return next(lost, None)

    def rounding(self, places: Sequence[int], bits: int) -> str | None:
        """The rounding to so many bits, by the sums of a large term and parts of its last kept bit."""
        last = bits - 1
        tests = [
            _cancelled(places, _Term(places[1], fraction, last), sign)
            for sign in (1.0, -1.0)
            for fraction in _FRACTIONS
        ]
        left = tuple(value * 2.0**last for value in self._sums(tests, SHORT))
        return _ROUNDINGS.get(left)

    def terms(self, bits: int) -> int | None:
        """Terms that are added at once: those after a large one and its negative that are lost with it, and this one.

        The large term ends a block, its negative begins the next one and leaves 0: what comes in a later block is kept.
        Sums that are made in several parts side by side lose more, and show no blocks.
        """
        for end in _ENDS:
            places = range(end + 2, 2 * _ENDS[0] + 2)
            tests = [_cancelled((end, place, end + 1), _Term(place, 1.0, bits)) for place in places]
            is_kept = [left != 0 for left in self._sums(tests, SHORT)]
            lost = is_kept.index(True) if True in is_kept else SHORT
            if lost <= end and all(is_kept[lost:]):
                return 1 + lost
        return None

    def promoted_every(self, bits: int) -> int | None:
        """The distance from which a small term survives a large one at the begin whose negative comes at the end."""
        places = range(8, LONG - 1, 8)
        tests = [_cancelled((0, place, LONG - 1), _Term(place, 1.0, bits)) for place in places]
        sums = self._sums(tests, LONG)
        return next((place for place, left in zip(places, sums, strict=True) if left), None)

    def keeps_subnormals(self) -> bool:
        """Whether operands below the smallest normal number count."""
        dtype = self._operands.left
        least = torch.finfo(dtype).smallest_normal / 2
        a, b = torch.zeros(SIDE, SHORT, dtype=torch.float64), torch.zeros(SHORT, SIDE, dtype=torch.float64)
        a[0, 0], b[0, 0] = least, 2.0**8
        return bool(self._multiply(a, b)[0, 0] == least * 2.0**8)

    def repeats(self) -> tuple[bool, bool]:
        """Whether the order of terms changes a sum, and whether the same product is the same again."""
        generator = torch.Generator().manual_seed(0)
        a, b = (torch.randn(*shape, generator=generator) for shape in ((SIDE, SHORT), (SHORT, SIDE)))
        a, b = (each.to(dtype).double() for each, dtype in ((a, self._operands.left), (b, self._operands.right)))
        order = torch.randperm(SHORT, generator=generator)
        first = self._multiply(a, b)
        again = all(bool((self._multiply(a, b) == first).all()) for _ in range(3))
        return not bool((self._multiply(a[:, order], b[order]) == first).all()), again

    def _sums(self, tests: Sequence[Iterable[_Term]], length: int) -> list[float]:
        """The sum of each test, over the power of two of the large term."""
        found: list[float] = []
        for start in range(0, len(tests), SIDE):
            part = tests[start : start + SIDE]
            a, b = torch.zeros(SIDE, length, dtype=torch.float64), torch.zeros(length, SIDE, dtype=torch.float64)
            for row, terms in enumerate(part):
                for term in terms:
                    left, right = self._factors(term.distance)
                    a[row, term.place], b[term.place, row] = term.fraction * 2.0**left, 2.0**right
            unit = 2.0 ** sum(self._operands.large)
            found += (self._multiply(a, b).diagonal()[: len(part)] / unit).tolist()
        return found

    def _factors(self, distance: int) -> tuple[int, int]:
        """Exponents of two factors whose product is so far below the large term."""
        left, right = self._operands.large
        half = min(distance // 2, left - self._operands.left_exponents[0])
        other = min(distance - half, right - self._operands.right_exponents[0])
        return left - (distance - other), right - other


def _cancelled(places: Sequence[int], small: _Term, sign: float = 1.0) -> tuple[_Term, ...]:
    """1.5 units, a small term, and -1.5 units: no sum of the first two has another exponent."""
    return _Term(places[0], 1.5 * sign, 0), small, _Term(places[2], -1.5 * sign, 0)
