"""Rounding to formats that are no binary floats with zero: integers, code books, and E8M0, the scales of MX blocks."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import intrinsic

from precgui.engine.compiled_loops import compiled
from precgui.engine.quantize.float_kernels import Loop, Run, Words, drawn_at, stream
from precgui.engine.quantize.plan import DOUBLE, HostFloat, PowerConstants, book_thresholds, power_constants
from precgui.formats.model import CodeBook, FloatFormat, IntFormat
from precgui.formats.rounding import DRAW_BITS, ROUNDINGS, CastPolicy, RoundingMode


class IntegerConstants(NamedTuple):
    """An integer format in the type of the loop."""

    inverse_step: Any
    step: Any
    lowest: Any
    highest: Any


@lru_cache(maxsize=64)
def integer_runner(fmt: IntFormat, machine: HostFloat, rounding: RoundingMode, seed: int) -> Run:
    """A function from the bits of the input to the bits of the output and the place of the first; NaN stays."""
    real = machine.real
    numbers = IntegerConstants(
        *(real(float(value)) for value in (1 / fmt.step, fmt.step, fmt.min_ordinal, fmt.max_ordinal))
    )
    if rounding == "nearest_even":
        nearest = _nearest_integer(machine)
        return lambda bits, out, start: nearest(bits.view(real), out.view(real), numbers)
    if rounding == "stochastic":
        drawn = _stochastic_integer(machine)
        return lambda bits, out, start: drawn(bits.view(real), out.view(real), numbers, stream(seed, start))
    other = _other_integer(machine, ROUNDINGS.index(rounding))
    return lambda bits, out, start: other(bits.view(real), out.view(real), numbers)


@cache
def _nearest_integer(machine: HostFloat) -> Loop:
    zero = machine.real(0)

    def nearest_integer(values: Words, out: Words, k: Any) -> None:
        for i in range(values.size):
            t = np.rint(values[i] * k.inverse_step)
            t = k.lowest if t < k.lowest else t
            t = k.highest if t > k.highest else t
            out[i] = t * k.step + zero  # + 0: an integer has no negative zero

    return compiled(nearest_integer)


@cache
def _other_integer(machine: HostFloat, place: int) -> Loop:
    """The rounding at that place of ROUNDINGS; the number is a constant of the loop, so one branch is left of it."""
    zero, half, one = machine.real(0), machine.real(0.5), machine.real(1)
    up, down, away, odd = (ROUNDINGS.index(name) for name in ("up", "down", "nearest_away", "to_odd"))

    def other_integer(values: Words, out: Words, k: Any) -> None:
        for i in range(values.size):
            t = values[i] * k.inverse_step
            t = k.lowest - one if t < k.lowest - one else t
            t = k.highest + one if t > k.highest + one else t
            a = abs(t)
            whole = np.floor(a)
            outer = zero
            if place == up:
                outer = one if a != whole and t > zero else zero
            elif place == down:
                outer = one if a != whole and t < zero else zero
            elif place == away:
                outer = one if a - whole >= half else zero
            elif place == odd:
                outer = one if a != whole and whole * half == np.floor(whole * half) else zero
            r = whole + outer
            r = -r if t < zero else r
            r = k.lowest if r < k.lowest else r
            r = k.highest if r > k.highest else r
            out[i] = r * k.step + zero

    return compiled(other_integer)


@cache
def _stochastic_integer(machine: HostFloat) -> Loop:
    zero, one, unit = machine.real(0), machine.real(1), machine.real(2.0**-DRAW_BITS)

    def stochastic_integer(values: Words, out: Words, k: Any, extra: Any) -> None:
        for i in range(values.size):
            t = values[i] * k.inverse_step
            t = k.lowest - one if t < k.lowest - one else t
            t = k.highest + one if t > k.highest + one else t
            a = abs(t)
            whole = np.floor(a)
            threshold = machine_real(np.int32(drawn_at(extra[0] + i, extra[1], extra[2]) + word_one)) * unit
            r = whole + one if a - whole >= threshold else whole
            r = -r if t < zero else r
            r = k.lowest if r < k.lowest else r
            r = k.highest if r > k.highest else r
            out[i] = r * k.step + zero

    machine_real, word_one = machine.real, np.uint32(1)
    return compiled(stochastic_integer)


@cache
def book_runner(fmt: CodeBook, machine: HostFloat, rounding: RoundingMode, seed: int) -> Run:
    """`integer_runner` for a code book: compares each number with the least one that rounds to each entry."""
    real = machine.real
    book = tuple(real(float(value)) for value in fmt.values)
    if rounding == "stochastic":
        drawn = _stochastic_book_loop(DOUBLE if _loses_digits(book) else machine)
        return lambda bits, out, start: drawn(bits.view(real), out.view(real), book, stream(seed, start))
    steps = book_thresholds(fmt, machine, rounding)
    run = _book_loop()
    return lambda bits, out, start: run(bits.view(real), out.view(real), steps, book)


@intrinsic
def _entry_reached(context: Any, x: Any, thresholds: Any, book: Any) -> Any:
    """The last entry whose threshold x reaches, by one comparison for each; LLVM makes vector instructions of them."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, thresholds, book = arguments
        reached = builder.extract_value(book, 0)
        for place in range(signature.args[1].count):
            above = builder.fcmp_ordered(">=", x, builder.extract_value(thresholds, place))
            reached = builder.select(above, builder.extract_value(book, place + 1), reached)
        return reached

    return x(x, thresholds, book), generate


_reached: Any = _entry_reached


@cache
def _book_loop() -> Loop:
    def nearest_entry(values: Words, out: Words, thresholds: Any, book: Any) -> None:
        for i in range(values.size):
            x = values[i]
            out[i] = x if np.isnan(x) else _reached(x, thresholds, book)

    return compiled(nearest_entry)


def _loses_digits(book: tuple[Any, ...]) -> bool:
    """Whether a number's distance from the entry on the side of zero may not be exact in the type of the book."""
    for low, high in pairwise(book):
        inner, outer = sorted((abs(float(low)), abs(float(high))))
        gap = Fraction(float(high)) - Fraction(float(low))
        across, far = low < 0 < high, inner and outer - inner > 2.0 ** math.frexp(inner)[1]
        if across or far or Fraction(float(high - low)) != gap:
            return True
    return False


@intrinsic
def _rounded_once(context: Any, a: Any, b: Any, c: Any) -> Any:
    """a x b + c, rounded once: its sign is that of the exact result."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return a(a, b, c), generate


_fused: Any = _rounded_once


@intrinsic
def _neighbours(context: Any, x: Any, book: Any) -> Any:
    """The two entries around x, which lies within the book, by a binary search without branches."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, book = arguments
        entries = [builder.extract_value(book, place) for place in range(signature.args[1].count)]
        answers: list[Any] = []

        def pivot(first: int, size: int, depth: int = 0) -> Any:
            """The entry in the middle of the `size` gaps that the answers have left, of those from `first` on."""
            middle = first + size // 2
            if depth == len(answers):
                return entries[min(middle, len(entries) - 1)]
            above, below = pivot(middle, size // 2, depth + 1), pivot(first, size // 2, depth + 1)
            return builder.select(answers[depth], above, below)

        low, high, levels = entries[0], entries[-1], (len(entries) - 2).bit_length()
        for _ in range(levels):
            middle = pivot(0, 1 << levels)
            above = builder.fcmp_ordered(">=", x, middle)
            low, high = builder.select(above, middle, low), builder.select(above, high, middle)
            answers.append(above)
        return context.make_tuple(builder, signature.return_type, (low, high))

    return types.UniTuple(x, 2)(x, book), generate  # type: ignore[no-untyped-call]


_around: Any = _neighbours


@cache
def _stochastic_book_loop(machine: HostFloat) -> Loop:
    """`machine` is the one in which distances are compared with the draw."""
    exact = machine.real
    scale, one = exact(1 << DRAW_BITS), np.uint32(1)

    def stochastic_entry(values: Words, out: Words, book: Any, extra: Any) -> None:
        for i in range(values.size):
            x = values[i]
            t = book[0] if x < book[0] else x
            t = book[-1] if t > book[-1] else t
            low, high = _around(t, book)
            inner, outer = (low if t > 0 else high), (high if t > 0 else low)
            moved = abs(exact(t) - exact(inner)) * scale
            threshold = exact(np.int32(drawn_at(extra[0] + i, extra[1], extra[2]) + one))
            away = _fused(threshold, exact(high) - exact(low), -moved) <= 0
            out[i] = x if np.isnan(x) else outer if away else inner

    return compiled(stochastic_entry)


@lru_cache(maxsize=64)
def power_runner(fmt: FloatFormat, machine: HostFloat, cast_policy: CastPolicy, seed: int) -> Run:
    """A function from the bits of the input to the bits of the output and the place of the first; NaN stays.

    What is too small becomes the smallest power; zero and negative numbers become NaN, or the smallest power where
    the convention saturates.
    """
    numbers = PowerConstants(*map(machine.word, power_constants(fmt, machine, cast_policy)))
    run = _power_loop(machine, cast_policy.rounding == "stochastic")
    if cast_policy.rounding == "stochastic":
        return lambda bits, out, start: run(bits, out, numbers, stream(seed, start))
    return lambda bits, out, start: run(bits, out, numbers, ())


@cache
def _power_loop(machine: HostFloat, drawn: bool) -> Loop:
    """Subnormals of the type are doubled before rounding, which makes them normal, and halved afterwards."""
    word, one = machine.word, machine.word(1)
    less = word(max(DRAW_BITS - machine.mantissa_bits, 0))
    more = word(max(machine.mantissa_bits - DRAW_BITS, 0))

    def power(bits: Words, out: Words, k: Any, extra: Any) -> None:
        for i in range(bits.size):
            b = bits[i]
            c = max(b, k.lowest)
            tiny = c < k.normal
            added = k.added
            if drawn:
                share = word(drawn_at(extra[0] + i, extra[1], extra[2]))
                added = word(added - word(word(word(share >> less) + one) << more))
            r = word(word((word(c + c) if tiny else c) + added) & k.infinity)
            r = word(r >> one) if tiny else r
            r = k.over if r > k.largest else r
            r = k.infinite if b == k.infinity else r
            r = k.negative if b >= k.sign or b == 0 else r
            out[i] = b if word(b & word(k.sign - one)) > k.infinity else r

    return compiled(power)
