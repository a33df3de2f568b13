"""Rounding loops over the bits of an array, compiled by numba; they run at the speed of a copy.

Every loop takes the bits of the input and of the output as unsigned integers, and the tuple of `constants`. A loop
holds only what LLVM turns into vector instructions: no branch that stays, no integer wider than the word.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numba
import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from precgui.engine.quantize_plan import Machine, Plan
from precgui.formats.rounding import DRAW_BITS, MIX_A, MIX_B

Words = NDArray[Any]
Loop = Callable[..., None]
A, B, ONE = np.uint32(MIX_A), np.uint32(MIX_B), np.uint32(1)
S8, S15, S16 = np.uint32(32 - DRAW_BITS), np.uint32(15), np.uint32(16)


@lru_cache(maxsize=256)
def constants(plan: Plan) -> tuple[Any, ...]:
    """The numbers of a plan in the types of its machine, in the order in which the loops read them."""
    machine = plan.machine
    every = (1 << machine.bits) - 1
    dropped = (1 << plan.drop) - 1
    values = (
        machine.sign - 1, machine.infinity, machine.sign,
        plan.cap, plan.lowest_binade, plan.lift, plan.fall,
        plan.drop, every & ~dropped, dropped >> 1, dropped,
        max(DRAW_BITS - plan.drop, 0), max(plan.drop - DRAW_BITS, 0),
        plan.largest, plan.over_up, plan.over_down, plan.inf_up, plan.inf_down,
        plan.negative or 0, machine.sign if plan.negative is not None else every,
        machine.sign if plan.keeps_zero_sign else 0,
    )  # fmt: skip
    return tuple(machine.word(value) for value in values)


@cache
def loop(machine: Machine, rounding: str, way: str) -> Loop:
    """The compiled loop for a rounding (a key of the tables below) and a way (`narrow`, `fixed`, `wide`)."""
    if way == "narrow":
        return _NARROW[rounding](machine.word, machine.real)
    return _FIXED[rounding](machine.word, machine.real, way == "wide")


def compiled(function: Loop) -> Loop:
    """Compile at the first call, and keep the machine code on disk where there is a place for it."""
    try:
        return numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # numba found no folder that it may write to
        return numba.njit(nogil=True, error_model="numpy")(function)


def _finisher(word: Any) -> Any:
    """What follows the rounding of a magnitude `a` of the bits `b`: overflow, infinity, NaN and the sign."""

    @register_jitable(inline="always")
    def finish(b: Any, a: Any, rounded: Any, k: Any) -> Any:
        s = word(b & k[2])
        r = (k[15] if s != 0 else k[14]) if rounded > k[13] else rounded
        r = (k[17] if s != 0 else k[16]) if a == k[1] else r
        r = k[18] if b >= k[19] and r != 0 else r
        s = word(0) if k[19] == k[2] else s
        r = a if a > k[1] else r
        return word(r | (s if r != 0 else word(s & k[20])))

    return finish


@register_jitable(inline="always")
def drawn_at(place: Any, first: Any, second: Any) -> Any:
    """`formats.rounding.draw` for one element of a block of 2^32."""
    w = np.uint32(np.uint32(place) ^ first)
    w = np.uint32(np.uint32(np.uint32(w ^ np.uint32(w >> S16)) * A) + second)
    w = np.uint32(np.uint32(w ^ np.uint32(w >> S15)) * B)
    return np.uint32(np.uint32(w ^ np.uint32(w >> S15)) >> S8)


def _nearest_narrow(word: Any, real: Any) -> Loop:
    finish = _finisher(word)

    def nearest_narrow(bits: Words, out: Words, k: Any) -> None:
        for i in range(bits.size):
            b = bits[i]
            a = word(b & k[0])
            c = min(a, k[3])
            big = word(max(word(c & k[1]), k[4]) + k[5]).view(real)
            rounded = real((word(c).view(real) + big) - big).view(word)
            out[i] = finish(b, a, rounded, k)

    return compiled(nearest_narrow)


def _directed_narrow(word: Any, real: Any) -> Loop:
    """Numbers with the sign bit `wanted` take the outer neighbour, the others the inner one."""
    finish = _finisher(word)

    def directed_narrow(bits: Words, out: Words, k: Any, wanted: Any) -> None:
        for i in range(bits.size):
            b = bits[i]
            a = word(b & k[0])
            c = min(a, k[3])
            binade = max(word(c & k[1]), k[4])
            big, gap = word(binade + k[5]).view(real), word(binade - k[6]).view(real)
            x = word(c).view(real)
            near = (x + big) - big
            inner = near - gap if near > x else near
            outer = near if near > x else near + gap
            rounded = outer if word(b & k[2]) == wanted and inner < x else inner
            out[i] = finish(b, a, real(rounded).view(word), k)

    return compiled(directed_narrow)


def _away_narrow(word: Any, real: Any) -> Loop:
    """To nearest, ties outwards."""
    finish = _finisher(word)

    def away_narrow(bits: Words, out: Words, k: Any) -> None:
        for i in range(bits.size):
            b = bits[i]
            a = word(b & k[0])
            c = min(a, k[3])
            binade = max(word(c & k[1]), k[4])
            big, gap = word(binade + k[5]).view(real), word(binade - k[6]).view(real)
            x = word(c).view(real)
            near = (x + big) - big
            rest = x - near
            rounded = real(near + gap if rest + rest == gap else near).view(word)
            out[i] = finish(b, a, rounded, k)

    return compiled(away_narrow)


def _odd_narrow(word: Any, real: Any) -> Loop:
    """The neighbour whose last bit is 1; that bit is the last one of x + big."""
    finish = _finisher(word)
    one = word(1)

    def odd_narrow(bits: Words, out: Words, k: Any) -> None:
        for i in range(bits.size):
            b = bits[i]
            a = word(b & k[0])
            c = min(a, k[3])
            binade = max(word(c & k[1]), k[4])
            big, gap = word(binade + k[5]).view(real), word(binade - k[6]).view(real)
            x = word(c).view(real)
            grown = x + big
            near = grown - big
            odd = word(real(grown).view(word) & one)
            other = near + gap if near < x else near - gap
            rounded = other if near != x and odd == 0 else near
            out[i] = finish(b, a, real(rounded).view(word), k)

    return compiled(odd_narrow)


def _stochastic_narrow(word: Any, real: Any) -> Loop:
    finish = _finisher(word)
    one_draw = word(DRAW_BITS << (23 if real is np.float32 else 52))  # as a difference of exponents

    def stochastic_narrow(bits: Words, out: Words, k: Any, start: Any, first: Any, second: Any) -> None:
        for i in range(bits.size):
            b = bits[i]
            a = word(b & k[0])
            c = min(a, k[3])
            binade = max(word(c & k[1]), k[4])
            big, step = word(binade + k[5]).view(real), word(binade - k[6])
            gap, fine = step.view(real), word(step - one_draw).view(real)
            x = word(c).view(real)
            near = (x + big) - big
            inner = near - gap if near > x else near
            threshold = real(np.int32(drawn_at(start + i, first, second) + ONE)) * fine
            rounded = real(inner + gap if x - inner >= threshold else inner).view(word)
            out[i] = finish(b, a, rounded, k)

    return compiled(stochastic_narrow)


def _scaler(word: Any, real: Any) -> tuple[Any, Any]:
    """Magnitudes of subnormal inputs scaled up before rounding, and results scaled down."""
    up = real(2.0 ** (64 if real is np.float32 else 128))
    down = real(1.0) / up

    @register_jitable(inline="always")
    def raised(a: Any, tiny: Any) -> Any:
        return real(word(a).view(real) * up).view(word) if tiny else a

    @register_jitable(inline="always")
    def lowered(a: Any, tiny: Any) -> Any:
        return real(word(a).view(real) * down).view(word) if tiny else a

    return raised, lowered


def _nearest_fixed(word: Any, real: Any, wide: bool) -> Loop:
    finish = _finisher(word)
    raised, lowered = _scaler(word, real)
    normal = word(1 << (23 if real is np.float32 else 52))
    one = word(1)

    def nearest_fixed(bits: Words, out: Words, k: Any) -> None:
        for i in range(bits.size):
            b = bits[i]
            a = word(b & k[0])
            tiny = wide and a < normal
            c = raised(a, tiny)
            rounded = word(word(c + k[9] + word(word(c >> k[7]) & one)) & k[8])
            out[i] = finish(b, a, lowered(rounded, tiny), k)

    return compiled(nearest_fixed)


def _directed_fixed(word: Any, real: Any, wide: bool) -> Loop:
    """`add_up`, `add_down`: what is added to the bits of a positive and a negative number before they are cut."""
    finish = _finisher(word)
    raised, lowered = _scaler(word, real)
    normal = word(1 << (23 if real is np.float32 else 52))

    def directed_fixed(bits: Words, out: Words, k: Any, add_up: Any, add_down: Any) -> None:
        for i in range(bits.size):
            b = bits[i]
            a = word(b & k[0])
            tiny = wide and a < normal
            c = raised(a, tiny)
            rounded = word(word(c + (add_down if word(b & k[2]) != 0 else add_up)) & k[8])
            out[i] = finish(b, a, lowered(rounded, tiny), k)

    return compiled(directed_fixed)


def _odd_fixed(word: Any, real: Any, wide: bool) -> Loop:
    """Sets the last bit that stays where any bit that is dropped was set."""
    finish = _finisher(word)
    raised, lowered = _scaler(word, real)
    normal = word(1 << (23 if real is np.float32 else 52))

    def odd_fixed(bits: Words, out: Words, k: Any) -> None:
        for i in range(bits.size):
            b = bits[i]
            a = word(b & k[0])
            tiny = wide and a < normal
            c = raised(a, tiny)
            rounded = word(word(c | word(word(c & k[10]) + k[10])) & k[8])
            out[i] = finish(b, a, lowered(rounded, tiny), k)

    return compiled(odd_fixed)


def _stochastic_fixed(word: Any, real: Any, wide: bool) -> Loop:
    finish = _finisher(word)
    raised, lowered = _scaler(word, real)
    normal = word(1 << (23 if real is np.float32 else 52))
    one = word(1)

    def stochastic_fixed(bits: Words, out: Words, k: Any, start: Any, first: Any, second: Any) -> None:
        for i in range(bits.size):
            b = bits[i]
            a = word(b & k[0])
            tiny = wide and a < normal
            c = raised(a, tiny)
            share = word(word(word(word(drawn_at(start + i, first, second)) >> k[11]) + one) << k[12])
            rounded = word(word(c + word(word(k[10] + one) - share)) & k[8])
            out[i] = finish(b, a, lowered(rounded, tiny), k)

    return compiled(stochastic_fixed)


_NARROW: dict[str, Callable[[Any, Any], Loop]] = {
    "nearest": _nearest_narrow, "directed": _directed_narrow, "nearest_away": _away_narrow, "to_odd": _odd_narrow,
    "stochastic": _stochastic_narrow,
}  # fmt: skip
_FIXED: dict[str, Callable[[Any, Any, bool], Loop]] = {
    "nearest": _nearest_fixed, "directed": _directed_fixed, "to_odd": _odd_fixed, "stochastic": _stochastic_fixed
}  # fmt: skip
