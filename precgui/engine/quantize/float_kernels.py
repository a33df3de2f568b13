"""Rounding loops over the bits of an array, compiled by numba; they run at the speed of a copy.

A loop takes bits as unsigned integers; what is special in a rounding is a rule, one inlined function. A loop holds only
what LLVM turns into vector instructions: no branch that stays, no integer wider than the word.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from precgui.engine.compiled_loops import compiled
from precgui.engine.quantize.plan import ADDING, HostFloat, RoundingPlan
from precgui.formats.rounding import DRAW_BITS, MIX_A, MIX_B, STRIDE, stream_keys

Words = NDArray[Any]
Loop = Callable[..., None]
Run = Callable[[Words, Words, int], None]  # bits of the input, bits of the output, the place of the first element
A, B, W, ONE = np.uint32(MIX_A), np.uint32(MIX_B), np.uint32(STRIDE), np.uint32(1)
TILE = 4096  # elements that stay in the first cache
S8, S15, S16 = np.uint32(32 - DRAW_BITS), np.uint32(15), np.uint32(16)


class LoopConstants(NamedTuple):
    """Bit patterns of a plan in the word of its machine float, as the loops read them.

    kept, half, dropped: masks of the bits that stay, and of those that are rounded off: half of them, all of them.
    draw_right, draw_left: how far a random number of DRAW_BITS is shifted to lie on the dropped bits. first_negative:
    the smallest word that `negative` replaces; zero_sign: the sign that a result of 0 keeps.
    """

    magnitude: Any
    infinity: Any
    sign: Any
    clamp: Any
    lowest_binade: Any
    magic_exponent: Any
    ulp_offset: Any
    dropped_bits: Any
    kept: Any
    half: Any
    dropped: Any
    draw_right: Any
    draw_left: Any
    largest: Any
    over_up: Any
    over_down: Any
    inf_up: Any
    inf_down: Any
    negative: Any
    first_negative: Any
    zero_sign: Any


@lru_cache(maxsize=256)
def constants(plan: RoundingPlan) -> LoopConstants:
    """The constants of a plan in the word type of its machine float."""
    machine = plan.machine
    every = (1 << machine.bits) - 1
    values = (
        machine.sign - 1, machine.infinity, machine.sign,
        plan.clamp, plan.lowest_binade, plan.magic_exponent, plan.ulp_offset,
        plan.dropped_bits, plan.kept, plan.half, plan.dropped,
        max(DRAW_BITS - plan.dropped_bits, 0), max(plan.dropped_bits - DRAW_BITS, 0),
        plan.largest, plan.over_up, plan.over_down, plan.inf_up, plan.inf_down,
        plan.negative or 0, machine.sign if plan.negative is not None else every,
        machine.sign if plan.keeps_zero_sign else 0,
    )  # fmt: skip
    return LoopConstants(*(machine.word(value & every) for value in values))


def stream(seed: int, start: int) -> tuple[Any, ...]:
    """Counters and keys of stochastic rounding for the elements from `start` on, in blocks of 2^32."""
    return tuple(np.uint32(number) for number in (start & 0xFFFFFFFF, *stream_keys(seed, start >> 32)))


def is_plain(plan: RoundingPlan) -> bool:
    """Whether overflow and infinity of both signs become one magnitude, in a format with a sign and a negative zero."""
    beyond = {plan.over_up, plan.over_down, plan.inf_up, plan.inf_down}
    return len(beyond) == 1 and plan.negative is None and plan.keeps_zero_sign


@cache
def loop(machine: HostFloat, rounding: str, method: str, plain: bool) -> Loop:
    """The compiled loop for a rounding (a key of the tables below) and a method of `plan`.

    `plain`: `is_plain` of the plan, for which fewer instructions do. The loop is called with the bits of the input and
    of the output, the `constants` and a tuple of what the rule needs besides: nothing, which numbers go outwards, or
    for stochastic rounding the place of the first element and two keys.
    """
    word, real = machine.word, machine.real
    finish = _plain_finisher(word) if plain else _finisher(word)
    if method in ADDING:
        return _add_subtract(word, real, _ADDED[rounding](word, real), finish, method == "add_subtract_below")
    rule = _MASKED[rounding](word)
    masked = _bit_mask_scaled if method == "bit_mask_scaled" else _bit_mask
    return masked(word, real, rule, finish)


def _finisher(word: Any) -> Any:
    """Applies overflow, infinity, NaN and the sign after a magnitude `a` of the bits `b` was rounded."""

    @register_jitable(inline="always")
    def finish(b: Any, a: Any, rounded: Any, k: Any) -> Any:
        s = word(b & k.sign)
        r = (k.over_down if s != 0 else k.over_up) if rounded > k.largest else rounded
        r = (k.inf_down if s != 0 else k.inf_up) if a == k.infinity else r
        r = k.negative if b >= k.first_negative and r != 0 else r
        s = word(0) if k.first_negative == k.sign else s
        r = a if a > k.infinity else r
        return word(r | (s if r != 0 else word(s & k.zero_sign)))

    return finish


def _plain_finisher(word: Any) -> Any:
    """`_finisher` for plain plans, in which every loop rounds infinity to more than the largest value."""

    @register_jitable(inline="always")
    def finish(b: Any, a: Any, rounded: Any, k: Any) -> Any:
        r = k.over_up if rounded > k.largest else rounded
        r = a if a > k.infinity else r
        return word(r | word(b & k.sign))

    return finish


@register_jitable(inline="always")
def drawn_at(place: Any, first: Any, second: Any) -> Any:
    """`formats.rounding.draw` for one element of a block of 2^32."""
    w = np.uint32(np.uint32(np.uint32(place) * W) + first)
    w = np.uint32(np.uint32(np.uint32(w ^ np.uint32(w >> S16)) * A) + second)
    w = np.uint32(np.uint32(w ^ np.uint32(w >> S15)) * B)
    return np.uint32(np.uint32(w ^ np.uint32(w >> S15)) >> S8)


Rule = Callable[..., Any]


def _add_subtract(word: Any, real: Any, rule: Rule, finish: Any, below: bool) -> Loop:
    """Magnitudes rounded by adding `big` and taking it away; `gap` is the distance of neighbours in that place.

    below: the format is as precise as the type or more, so that only what is below `big` has bits to lose.
    """

    def add_subtract(bits: Words, out: Words, k: Any, extra: Any) -> None:
        for i in range(bits.size):
            b = bits[i]
            a = word(b & k.magnitude)
            c = min(a, k.clamp)
            binade = k.lowest_binade if below else max(word(c & k.infinity), k.lowest_binade)
            big, step = word(binade + k.magic_exponent), word(binade - k.ulp_offset)
            big = word(0) if below and c >= big else big
            x = word(c).view(real)
            rounded = rule(x, word(big).view(real), step, word(b & k.sign), i, extra)
            out[i] = finish(b, a, real(rounded).view(word), k)

    return compiled(add_subtract)


def _nearest_added(word: Any, real: Any) -> Rule:
    @register_jitable(inline="always")
    def nearest(x: Any, big: Any, step: Any, sign: Any, place: Any, extra: Any) -> Any:
        return (x + big) - big

    return nearest


def _directed_added(word: Any, real: Any) -> Rule:
    """Numbers with the sign bit `extra[0]` take the outer neighbour, the others the inner one."""

    @register_jitable(inline="always")
    def directed(x: Any, big: Any, step: Any, sign: Any, place: Any, extra: Any) -> Any:
        gap = word(step).view(real)
        near = (x + big) - big
        inner = near - gap if near > x else near
        outer = near if near > x else near + gap
        return outer if sign == extra[0] and inner < x else inner

    return directed


def _away_added(word: Any, real: Any) -> Rule:
    """Rounds to nearest, ties away from zero."""

    @register_jitable(inline="always")
    def away(x: Any, big: Any, step: Any, sign: Any, place: Any, extra: Any) -> Any:
        gap = word(step).view(real)
        near = (x + big) - big
        remainder = x - near
        return near + gap if remainder + remainder == gap else near

    return away


def _odd_added(word: Any, real: Any) -> Rule:
    """The neighbour whose last bit is 1; that bit is the last one of x + big."""
    one = word(1)

    @register_jitable(inline="always")
    def odd(x: Any, big: Any, step: Any, sign: Any, place: Any, extra: Any) -> Any:
        gap = word(step).view(real)
        grown = x + big
        near = grown - big
        is_odd = word(real(grown).view(word) & one)
        other = near + gap if near < x else near - gap
        return other if near != x and is_odd == 0 else near

    return odd


def _stochastic_added(word: Any, real: Any) -> Rule:
    one_draw = word(DRAW_BITS << (23 if real is np.float32 else 52))  # as a difference of exponents

    @register_jitable(inline="always")
    def stochastic(x: Any, big: Any, step: Any, sign: Any, place: Any, extra: Any) -> Any:
        gap, fine = word(step).view(real), word(step - one_draw).view(real)
        near = (x + big) - big
        inner = near - gap if near > x else near
        threshold = real(np.int32(drawn_at(extra[0] + place, extra[1], extra[2]) + ONE)) * fine
        return inner + gap if x - inner >= threshold else inner

    return stochastic


def _bit_mask(word: Any, real: Any, rule: Rule, finish: Any) -> Loop:
    """Magnitudes rounded by an addition to their bits and a mask."""

    def bit_mask(bits: Words, out: Words, k: Any, extra: Any) -> None:
        for i in range(bits.size):
            b = bits[i]
            a = word(b & k.magnitude)
            out[i] = finish(b, a, word(rule(a, word(b & k.sign), k, i, extra) & k.kept), k)

    return compiled(bit_mask)


def _bit_mask_scaled(word: Any, real: Any, rule: Rule, finish: Any) -> Loop:
    """The same for formats that go on below the type, in tiles: one with subnormals has them scaled up meanwhile."""
    least_nonzero, normal = _least_nonzero(word), word(1 << (23 if real is np.float32 else 52))
    usual, scaled = _usual_tile(word, rule, finish), _scaled_tile(word, real, rule, finish)

    def bit_mask_scaled(bits: Words, out: Words, k: Any, extra: Any) -> None:
        for start in range(0, bits.size, TILE):
            x, y = bits[start : start + TILE], out[start : start + TILE]
            if least_nonzero(x, k) >= normal:
                usual(x, y, k, extra, start)
            else:
                scaled(x, y, k, extra, start)

    return compiled(bit_mask_scaled)


def _least_nonzero(word: Any) -> Any:
    one = word(1)

    @register_jitable
    def least_nonzero(x: Any, k: Any) -> Any:
        least = k.magnitude
        for i in range(x.size):
            least = min(least, word(word(x[i] & k.magnitude) - one))  # of zero: the largest word
        return word(least + one)

    return least_nonzero


def _usual_tile(word: Any, rule: Rule, finish: Any) -> Any:
    @register_jitable
    def usual(x: Any, y: Any, k: Any, extra: Any, start: Any) -> None:
        for i in range(x.size):
            b = x[i]
            a = word(b & k.magnitude)
            y[i] = finish(b, a, word(rule(a, word(b & k.sign), k, start + i, extra) & k.kept), k)

    return usual


def _scaled_tile(word: Any, real: Any, rule: Rule, finish: Any) -> Any:
    up = real(2.0 ** (64 if real is np.float32 else 128))
    down, normal = real(1.0) / up, word(1 << (23 if real is np.float32 else 52))

    @register_jitable
    def scaled(x: Any, y: Any, k: Any, extra: Any, start: Any) -> None:
        for i in range(x.size):
            b = x[i]
            a = word(b & k.magnitude)
            tiny = a < normal
            c = real(word(a).view(real) * up).view(word) if tiny else a
            rounded = word(rule(c, word(b & k.sign), k, start + i, extra) & k.kept)
            lowered = real(word(rounded).view(real) * down).view(word) if tiny else rounded
            y[i] = finish(b, a, lowered, k)

    return scaled


def _nearest_masked(word: Any) -> Rule:
    one = word(1)

    @register_jitable(inline="always")
    def nearest(c: Any, sign: Any, k: Any, place: Any, extra: Any) -> Any:
        return word(c + k.half + word(word(c >> k.dropped_bits) & one))

    return nearest


def _directed_masked(word: Any) -> Rule:
    """`extra`: what is added to the bits of a positive and of a negative number before they are cut."""

    @register_jitable(inline="always")
    def directed(c: Any, sign: Any, k: Any, place: Any, extra: Any) -> Any:
        return word(c + (extra[1] if sign != 0 else extra[0]))

    return directed


def _odd_masked(word: Any) -> Rule:
    """Sets the last bit that stays where any bit that is dropped was set."""

    @register_jitable(inline="always")
    def odd(c: Any, sign: Any, k: Any, place: Any, extra: Any) -> Any:
        return word(c | word(word(c & k.dropped) + k.dropped))

    return odd


def _stochastic_masked(word: Any) -> Rule:
    one = word(1)

    @register_jitable(inline="always")
    def stochastic(c: Any, sign: Any, k: Any, place: Any, extra: Any) -> Any:
        drawn = word(drawn_at(extra[0] + place, extra[1], extra[2]))
        share = word(word(word(drawn >> k.draw_right) + one) << k.draw_left)
        return word(c + word(word(k.dropped + one) - share))

    return stochastic


_ADDED: dict[str, Callable[[Any, Any], Rule]] = {
    "nearest": _nearest_added, "directed": _directed_added, "nearest_away": _away_added, "to_odd": _odd_added,
    "stochastic": _stochastic_added,
}  # fmt: skip
_MASKED: dict[str, Callable[[Any], Rule]] = {
    "nearest": _nearest_masked, "directed": _directed_masked, "to_odd": _odd_masked, "stochastic": _stochastic_masked
}  # fmt: skip
