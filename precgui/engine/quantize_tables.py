"""Rounding to formats that are no binary floats: integers, code books and powers of two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

import numba
import numpy as np

from precgui.engine.quantize_kernels import Loop, Words, compiled, drawn_at
from precgui.engine.quantize_plan import Machine
from precgui.formats.model import CodeBook, IntFormat
from precgui.formats.rounding import DRAW_BITS, ROUNDINGS, Rounding, round_ordinal, stream_keys

Run = Callable[[Any, Any, int], None]


@lru_cache(maxsize=64)
def integer_runner(fmt: IntFormat, machine: Machine, rounding: Rounding, seed: int) -> Run:
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

        def run(bits: Any, out: Any, start: int) -> None:
            first, second = (np.uint32(key) for key in stream_keys(seed, start >> 32))
            drawn(bits.view(real), out.view(real), numbers, np.uint32(start & 0xFFFFFFFF), first, second)

        return run
    other = _other_integer(machine, ROUNDINGS.index(rounding))
    return lambda bits, out, start: other(bits.view(real), out.view(real), numbers)


@cache
def _nearest_integer(machine: Machine) -> Loop:
    zero = machine.real(0)

    def nearest_integer(values: Words, out: Words, k: Any) -> None:
        for i in range(values.size):
            t = np.rint(values[i] * k[0])
            t = k[2] if t < k[2] else t
            t = k[3] if t > k[3] else t
            out[i] = t * k[1] + zero  # + 0: an integer has no negative zero

    return compiled(nearest_integer)


@cache
def _other_integer(machine: Machine, place: int) -> Loop:
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
def _stochastic_integer(machine: Machine) -> Loop:
    zero, one, unit = machine.real(0), machine.real(1), machine.real(2.0**-DRAW_BITS)

    def stochastic_integer(values: Words, out: Words, k: Any, start: Any, first: Any, second: Any) -> None:
        for i in range(values.size):
            t = values[i] * k[0]
            t = k[2] - one if t < k[2] - one else t
            t = k[3] + one if t > k[3] + one else t
            a = abs(t)
            whole = np.floor(a)
            threshold = machine_real(np.int32(drawn_at(start + i, first, second) + word_one)) * unit
            r = whole + one if a - whole >= threshold else whole
            r = -r if t < zero else r
            r = k[2] if r < k[2] else r
            r = k[3] if r > k[3] else r
            out[i] = r * k[1] + zero

    machine_real, word_one = machine.real, np.uint32(1)
    return compiled(stochastic_integer)


@cache
def book_runner(fmt: CodeBook, machine: Machine, rounding: Rounding) -> Run:
    """The same for a code book, by comparison with the least number that rounds to each entry."""
    real = machine.real
    steps = tuple(_least_above(fmt, place, machine, rounding) for place in range(1, len(fmt.values)))
    book = tuple(real(float(value)) for value in fmt.values)
    run = _book_loop(len(book))
    return lambda bits, out, start: run(bits.view(real), out.view(real), steps, book)


def _least_above(fmt: CodeBook, place: int, machine: Machine, rounding: Rounding) -> Any:
    """The smallest machine number that rounds to the entry at `place` or above.

    To nearest, the entries count as they are written; in the other directions as the machine holds them, so that a
    value of the book stays what it is.
    """
    if not rounding.startswith("nearest"):
        held = tuple(Fraction(float(machine.real(float(value)))) for value in fmt.values)
        fmt = replace(fmt, values=held)

    def reaches(number: Any) -> bool:
        return round_ordinal(Fraction(float(number)), fmt, rounding) >= place

    real = machine.real
    low, high = (real(float(fmt.values[n])) for n in (place - 1, place))
    while reaches(low):
        low = np.nextafter(low, real(-np.inf))
    while not reaches(high):
        high = np.nextafter(high, real(np.inf))
    while (middle := low + (high - low) / real(2)) not in (low, high):
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


def _entry_of(place: int) -> Any:
    """A chain of compiled comparisons, the last one with step `place - 1`: what a loop over a tuple does not become."""
    if place == 0:

        @numba.njit(inline="always")
        def first(x: Any, steps: Any, book: Any) -> Any:
            return book[0]

        return first
    before, index = _entry_of(place - 1), place - 1

    @numba.njit(inline="always")
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

    return numba.njit(nogil=True)(nearest_entry)  # not kept on disk: a chain of closures has no stable name


@cache
def power_runner(machine: Machine, lowest: int, highest: int) -> Run:
    """The same for E8M0, powers of two from 2^lowest to 2^highest, in single precision or double.

    Zero, negative numbers and what is too large become NaN; what is too small becomes 2^lowest.
    """
    word = machine.word
    numbers = tuple(
        word(value)
        for value in (
            machine.bits_of(Fraction(2) ** lowest), machine.bits_of(Fraction(3, 2) * Fraction(2) ** lowest),
            machine.bits_of(Fraction(2) ** (lowest + 1)), machine.bits_of(Fraction(3, 2) * Fraction(2) ** highest),
            1 << (machine.mantissa_bits - 1), machine.infinity, machine.nan, machine.sign,
        )
    )  # fmt: skip
    run = _power_loop(machine)
    return lambda bits, out, start: run(bits.view(word), out.view(word), numbers)


@cache
def _power_loop(machine: Machine) -> Loop:
    word = machine.word

    def nearest_power(bits: Words, out: Words, k: Any) -> None:
        for i in range(bits.size):
            b = bits[i]
            r = word(word(b + k[4]) & k[5])
            r = k[2] if b < k[2] else r
            r = k[0] if b < k[1] else r
            out[i] = k[6] if b >= k[3] or b == 0 else r

    return compiled(nearest_power)
