"""Rounding on the CPU: picks the loop, splits the array over threads, falls back to the array form of `formats`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.engine.quantize.float_kernels import Run, constants, is_plain, loop, stream
from precgui.engine.quantize.plan import (
    ADDING,
    DOUBLE,
    SHARES,
    SINGLE,
    HostFloat,
    RoundingPlan,
    make_plan,
)
from precgui.engine.quantize.table_kernels import book_runner, integer_runner, power_runner
from precgui.formats.arrays import quantize_array
from precgui.formats.model import CodeBook, FloatFormat, Format, IntFormat
from precgui.formats.rounding import CastPolicy

PIECE = 1 << 20  # elements; smaller arrays are rounded in the calling thread
SLOW_PIECE = 1 << 16
Array = NDArray[Any]


def round_into(source: Array, out: Array, fmt: Format, cast_policy: CastPolicy, seed: int, threads: int) -> None:
    """Round a flat contiguous float32 or float64 array into another one, which may be the same."""
    machine = SINGLE if source.dtype == np.float32 else DOUBLE
    plan = make_plan(fmt, cast_policy, machine) if isinstance(fmt, FloatFormat) and fmt.has_zero else None
    table = _table_runner(fmt, cast_policy, machine, seed) if plan is None else None
    if table is not None:
        _in_threads(table, source, out, machine, threads)
    elif plan is None or plan.method == "none":
        _round_slowly(source, out, fmt, cast_policy, seed)
    elif plan.method == "identity":
        _exchange_specials(source, out, plan)
    else:
        _in_threads(_runner(plan, cast_policy, seed), source, out, machine, threads)


def _table_runner(fmt: Format, cast_policy: CastPolicy, machine: HostFloat, seed: int) -> Run | None:
    """The loop for a format that is no binary float; None where only the slow way serves."""
    rounding = cast_policy.rounding
    drawn = seed if rounding == "stochastic" else 0
    if isinstance(fmt, IntFormat):
        return integer_runner(fmt, machine, rounding, drawn)
    if isinstance(fmt, CodeBook):
        ordered = fmt.has_zero or rounding != "toward_zero"  # else the gap around zero is entered from both sides
        return book_runner(fmt, machine, rounding, drawn) if ordered else None
    return power_runner(fmt, machine, cast_policy, drawn)


def _in_threads(run: Run, source: Array, out: Array, machine: HostFloat, threads: int) -> None:
    bits, target = source.view(machine.word), out.view(machine.word)
    cuts = _cuts(bits.size, threads)
    if len(cuts) == 1:
        run(bits, target, 0)
        return
    with ThreadPoolExecutor(len(cuts)) as pool:
        list(pool.map(lambda cut: run(bits[cut], target[cut], cut.start), cuts))


def _cuts(size: int, threads: int) -> list[slice]:
    """Bounds of equal pieces, one a thread; no piece crosses a multiple of 2^32, where the keys of the draws change."""
    count = max(1, min(threads, size // PIECE))
    edges = {round(size * i / count) for i in range(count + 1)} | set(range(0, size, 1 << 32))
    ordered = sorted(edges)
    return [slice(a, b) for a, b in pairwise(ordered)] or [slice(0, 0)]


def _runner(plan: RoundingPlan, cast_policy: CastPolicy, seed: int) -> Run:
    numbers, rounding, machine = constants(plan), cast_policy.rounding, plan.machine
    if rounding == "stochastic":
        return _stochastic_runner(plan, numbers, seed)
    if rounding in SHARES and (plan.method not in ADDING or rounding != "nearest_away"):
        directed, moves = loop(machine, "directed", plan.method, is_plain(plan)), _moves(rounding, plan)
        return lambda bits, out, start: directed(bits, out, numbers, moves)
    plain = loop(machine, "nearest" if rounding == "nearest_even" else rounding, plan.method, is_plain(plan))
    return lambda bits, out, start: plain(bits, out, numbers, ())


def _moves(rounding: str, plan: RoundingPlan) -> tuple[Any, ...]:
    """The argument by which the loop decides which numbers are rounded away from zero."""
    word = plan.machine.word
    if plan.method in ADDING:
        return (word({"toward_zero": 1, "up": 0, "down": plan.machine.sign}[rounding]),)
    return tuple(word(_added(share, plan)) for share in SHARES[rounding])


def _added(share: float, plan: RoundingPlan) -> int:
    """The addend to the bits for which values from `share` of the gap on carry into the outer neighbour."""
    return 0 if share > 1 else plan.dropped if share == 0 else plan.dropped - plan.half


def _stochastic_runner(plan: RoundingPlan, numbers: Any, seed: int) -> Run:
    stochastic = loop(plan.machine, "stochastic", plan.method, is_plain(plan))

    return lambda bits, out, start: stochastic(bits, out, numbers, stream(seed, start))


def _round_slowly(source: Array, out: Array, fmt: Format, cast_policy: CastPolicy, seed: int) -> None:
    """Round by the array form of `formats`, in pieces that fit the cache; stochastic rounding in one piece."""
    piece = source.size if cast_policy.rounding == "stochastic" else SLOW_PIECE
    for start in range(0, source.size, piece or 1):
        part = slice(start, start + piece)
        with np.errstate(over="ignore"):
            rounded = quantize_array(source[part], fmt, cast_policy, seed)
            rounded[np.isnan(source[part])] = np.nan  # as the loops keep it, in formats without NaN, too
            out[part] = rounded


def _exchange_specials(source: Array, out: Array, plan: RoundingPlan) -> None:
    """A copy in which only infinities and negative zeros become those of the format, which holds all other numbers."""
    machine: HostFloat = plan.machine
    limit = np.array(plan.inf_up, machine.word).view(machine.real)
    out[:] = (
        source if plan.inf_up == machine.infinity else np.where(np.isinf(source), np.copysign(limit, source), source)
    )
    if not plan.keeps_zero_sign:
        with np.errstate(invalid="ignore"):  # signalling NaN
            out += machine.real(0)  # -0 + 0 is 0
