"""Rounding to powers of two without zero and without sign: E8M0, the scales of MX blocks."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from precgui.engine.quantize.float_kernels import Loop, Run, Words, compiled, drawn_at, stream
from precgui.engine.quantize.plan import HostFloat, PowerConstants, power_constants
from precgui.formats.model import FloatFormat
from precgui.formats.rounding import DRAW_BITS, CastPolicy


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
