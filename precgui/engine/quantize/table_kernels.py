"""RoundingMode to formats that are no binary floats: integers and code books."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numba.extending import intrinsic, register_jitable

from precgui.engine.quantize.float_kernels import Loop, Run, Words, compiled, drawn_at, stream
from precgui.engine.quantize.plan import DOUBLE, HostFloat, book_thresholds
from precgui.formats.model import CodeBook, IntFormat
from precgui.formats.rounding import DRAW_BITS, ROUNDINGS, RoundingMode


@lru_cache(maxsize=64)
def integer_runner(fmt: IntFormat, machine: HostFloat, rounding: RoundingMode, seed: int) -> Run:
    """A function from the bits of the input to the bits of the output and the place of the first; NaN stays."""
    real = machine.real
    numbers = tuple(
        real(float(value)) for value in (1 / fmt.step, fmt.step, Fraction(fmt.min_ordinal), Fraction(fmt.max_ordinal))
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
            t = np.rint(values[i] * k[0])
            t = k[2] if t < k[2] else t
            t = k[3] if t > k[3] else t
            out[i] = t * k[1] + zero  # + 0: an integer has no negative zero

    return compiled(nearest_integer)


@cache
def _other_integer(machine: HostFloat, place: int) -> Loop:
    """The rounding at that place of ROUNDINGS; the number is a constant of the loop, so one branch is left of it."""
    zero, half, one = machine.real(0), machine.real(0.5), machine.real(1)
    up, down, away, odd = (ROUNDINGS.index(name) for name in ("up", "down", "nearest_away", "to_odd"))

    def other_integer(values: Words, out: Words, k: Any) -> None:
        for i in range(values.size):
            t = values[i] * k[0]
            t = k[2] - one if t < k[2] - one else t
            t = k[3] + one if t > k[3] + one else t
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
            r = k[2] if r < k[2] else r
            r = k[3] if r > k[3] else r
            out[i] = r * k[1] + zero

    return compiled(other_integer)


@cache
def _stochastic_integer(machine: HostFloat) -> Loop:
    zero, one, unit = machine.real(0), machine.real(1), machine.real(2.0**-DRAW_BITS)

    def stochastic_integer(values: Words, out: Words, k: Any, extra: Any) -> None:
        for i in range(values.size):
            t = values[i] * k[0]
            t = k[2] - one if t < k[2] - one else t
            t = k[3] + one if t > k[3] + one else t
            a = abs(t)
            whole = np.floor(a)
            threshold = machine_real(np.int32(drawn_at(extra[0] + i, extra[1], extra[2]) + word_one)) * unit
            r = whole + one if a - whole >= threshold else whole
            r = -r if t < zero else r
            r = k[2] if r < k[2] else r
            r = k[3] if r > k[3] else r
            out[i] = r * k[1] + zero

    machine_real, word_one = machine.real, np.uint32(1)
    return compiled(stochastic_integer)


@cache
def book_runner(fmt: CodeBook, machine: HostFloat, rounding: RoundingMode, seed: int) -> Run:
    """The same for a code book: each number is compared with the least one that rounds to each entry."""
    real = machine.real
    book = tuple(real(float(value)) for value in fmt.values)
    if rounding == "stochastic":
        drawn = _stochastic_book_loop(len(book), DOUBLE if _loses_digits(book) else machine)
        return lambda bits, out, start: drawn(bits.view(real), out.view(real), book, stream(seed, start))
    steps = book_thresholds(fmt, machine, rounding)
    run = _book_loop(len(book))
    return lambda bits, out, start: run(bits.view(real), out.view(real), steps, book)


def _entry_of(place: int) -> Any:
    """A chain of compiled comparisons, the last one with step `place - 1`: what a loop over a tuple does not become."""
    if place == 0:

        @register_jitable
        def first(x: Any, steps: Any, book: Any) -> Any:
            return book[0]

        return first
    before, index = _entry_of(place - 1), place - 1

    @register_jitable
    def entry(x: Any, steps: Any, book: Any) -> Any:
        lower = before(x, steps, book)
        return book[place] if x >= steps[index] else lower

    return entry


@cache
def _book_loop(entries: int) -> Loop:
    entry = _entry_of(entries - 1)

    def nearest_entry(values: Words, out: Words, steps: Any, book: Any) -> None:
        for i in range(values.size):
            x = values[i]
            out[i] = x if np.isnan(x) else entry(x, steps, book)

    return compiled(nearest_entry)  # not kept on disk: a chain of closures has no stable name


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


def _pivot(first: int, size: int, last: int, level: int, depth: int = 0) -> Any:
    """The entry that a search through `size` gaps from `first` on compares with after `level` answers."""
    middle = first + size // 2
    if depth == level:
        place = min(middle, last)

        @register_jitable
        def entry(answers: Any, book: Any) -> Any:
            return book[place]

        return entry
    low, high = (_pivot(start, size // 2, last, level, depth + 1) for start in (first, middle))

    @register_jitable
    def chosen(answers: Any, book: Any) -> Any:
        below, above = low(answers, book), high(answers, book)
        return above if answers[depth] else below

    return chosen


def _around(last: int, level: int, size: int) -> Any:
    """Compiled: the answers of the first `level` steps of a binary search for x, and the entries around it so far."""
    if level == 0:

        @register_jitable
        def begin(x: Any, book: Any) -> Any:
            return (), book[0], book[last]

        return begin
    before, pivot = _around(last, level - 1, size), _pivot(0, size, last, level - 1)

    @register_jitable
    def around(x: Any, book: Any) -> Any:
        answers, low, high = before(x, book)
        middle = pivot(answers, book)
        above = x >= middle
        return (*answers, above), (middle if above else low), (high if above else middle)

    return around


@cache
def _stochastic_book_loop(entries: int, machine: HostFloat) -> Loop:
    """`machine` is the one in which distances are compared with the draw."""
    last, exact = entries - 1, machine.real
    levels = (last - 1).bit_length()
    around = _around(last, levels, 1 << levels)
    scale, one = exact(1 << DRAW_BITS), np.uint32(1)

    def stochastic_entry(values: Words, out: Words, book: Any, extra: Any) -> None:
        for i in range(values.size):
            x = values[i]
            t = book[0] if x < book[0] else x
            t = book[last] if t > book[last] else t
            _, low, high = around(t, book)
            inner, outer = (low if t > 0 else high), (high if t > 0 else low)
            moved = abs(exact(t) - exact(inner)) * scale
            threshold = exact(np.int32(drawn_at(extra[0] + i, extra[1], extra[2]) + one))
            away = _fused(threshold, exact(high) - exact(low), -moved) <= 0
            out[i] = x if np.isnan(x) else outer if away else inner

    return compiled(stochastic_entry)
