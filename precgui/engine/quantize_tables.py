"""Nearest-even rounding to formats that are no binary floats: integers, code books and powers of two."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import numba
import numpy as np

from precgui.engine.quantize_kernels import Loop, Words, compiled
from precgui.engine.quantize_plan import Machine
from precgui.formats.model import CodeBook, IntFormat
from precgui.formats.rounding import round_ordinal


@cache
def integer_runner(fmt: IntFormat, machine: Machine) -> Callable[[Any, Any], None]:
    """A function from the bits of the input to the bits of the output; NaN stays."""
    real = machine.real
    numbers = tuple(
        real(float(value)) for value in (1 / fmt.step, fmt.step, Fraction(fmt.min_ordinal), Fraction(fmt.max_ordinal))
    )
    run = _integer_loop(machine)
    return lambda bits, out: run(bits.view(real), out.view(real), numbers)


@cache
def _integer_loop(machine: Machine) -> Loop:
    zero = machine.real(0)

    def nearest_integer(values: Words, out: Words, k: Any) -> None:
        for i in range(values.size):
            t = np.rint(values[i] * k[0])
            t = k[2] if t < k[2] else t
            t = k[3] if t > k[3] else t
            out[i] = t * k[1] + zero  # + 0: an integer has no negative zero

    return compiled(nearest_integer)


@cache
def book_runner(fmt: CodeBook, machine: Machine) -> Callable[[Any, Any], None]:
    """The same for a code book, by comparison with the least number that rounds to each entry."""
    real = machine.real
    steps = tuple(_least_above(fmt, place, machine) for place in range(1, len(fmt.values)))
    book = tuple(real(float(value)) for value in fmt.values)
    run = _book_loop(len(book))
    return lambda bits, out: run(bits.view(real), out.view(real), steps, book)


def _least_above(fmt: CodeBook, place: int, machine: Machine) -> Any:
    """The smallest machine number that rounds to the entry at `place` or above."""
    middle = (fmt.values[place - 1] + fmt.values[place]) / 2
    guess = machine.real(float(middle))
    while round_ordinal(Fraction(float(guess)), fmt, "nearest_even") >= place:
        guess = np.nextafter(guess, machine.real(-np.inf))
    while round_ordinal(Fraction(float(guess)), fmt, "nearest_even") < place:
        guess = np.nextafter(guess, machine.real(np.inf))
    return guess


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
def power_runner(machine: Machine, lowest: int, highest: int) -> Callable[[Any, Any], None]:
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
    return lambda bits, out: run(bits.view(word), out.view(word), numbers)


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
