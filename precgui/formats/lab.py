"""The rounding experiments: gradients that vanish, sums that stop growing, softmax and dot products in a format."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import ArrayLike, NDArray

from precgui.formats.arrays import Floats, quantize_array
from precgui.formats.model import FloatFormat, Format
from precgui.formats.rounding import CastPolicy, RoundingMode

DEFAULT = CastPolicy()
PROGRESS_STEPS = 128


def gradients(count: int, typical: float, decades: float, seed: int = 0) -> Floats:
    """Log-normal magnitudes with random signs: `typical` is the median, `decades` the standard deviation of log10."""
    rng = np.random.default_rng(seed)
    signs = rng.choice([-1.0, 1.0], count)
    values: Floats = signs * typical * 10.0 ** rng.normal(0.0, decades, count)
    return values


@dataclass(frozen=True)
class ScaleCurve:
    """Shares of values that become zero and that overflow, for each power of two as loss scale."""

    exponents: NDArray[np.int_]
    underflow: Floats
    overflow: Floats


def scale_curve(values: ArrayLike, fmt: Format, lowest: int = 0, highest: int = 32) -> ScaleCurve:
    """The share of a set of gradients that is lost at each loss scale 2^lowest ... 2^highest."""
    array = np.asarray(values, dtype=np.float64)
    array = array[array != 0]
    exponents = np.arange(lowest, highest + 1)
    rounded = [quantize_array(np.ldexp(array, int(k)), fmt) for k in exponents]
    underflow = np.array([np.mean(part == 0) if part.size else 0.0 for part in rounded])
    overflow = np.array([np.mean(~np.isfinite(part)) if part.size else 0.0 for part in rounded])
    return ScaleCurve(exponents, underflow, overflow)


def running_sums(
    increments: ArrayLike, fmt: Format, rounding: RoundingMode = "nearest_even", trials: int = 1, seed: int = 0,
    on_progress: Callable[[float], None] = lambda _: None,
) -> Floats:  # fmt: skip
    """Every partial sum, rounded after each addition: one row for each trial, which differ in their draws.

    A first column of zeros is the empty sum. `on_progress` is called with the share that is done.
    """
    steps = np.asarray(increments, dtype=np.float64)
    sums = np.zeros((trials, steps.size + 1))
    if rounding == "nearest_even":
        q = rounder(fmt)
        sums[:] = list(accumulate(steps.tolist(), lambda total, step: q(total + step), initial=0.0))
        return sums
    cast_policy = CastPolicy(rounding)
    for n, step in enumerate(steps, 1):
        if n % PROGRESS_STEPS == 0:
            on_progress(n / steps.size)
        sums[:, n] = quantize_array(sums[:, n - 1] + step, fmt, cast_policy, seed * 1_000_003 + n)
    return sums


def kahan_sums(increments: ArrayLike, fmt: Format) -> Floats:
    """Every partial sum of compensated summation (Kahan 1965), all operations rounded to the format."""
    steps = np.asarray(increments, dtype=np.float64)
    sums, total, lost, q = [0.0], 0.0, 0.0, rounder(fmt)
    for step in steps.tolist():
        corrected = q(q(step) - lost)
        grown = q(total + corrected)
        lost = q(q(grown - total) - corrected)
        total = grown
        sums.append(grown)
    return np.array(sums)


def rounder(fmt: Format) -> Callable[[float], float]:
    """Nearest-even rounding of one double at a time, faster than the array form for a single value."""
    if not isinstance(fmt, FloatFormat) or not fmt.signed or fmt.mantissa_bits > 51 or fmt.emax > 1000:
        return lambda value: float(quantize_array(value, fmt))
    emin, bits, largest = fmt.emin, fmt.mantissa_bits, float(fmt.max_finite)
    beyond = math.inf if fmt.has_inf else math.nan if fmt.has_nan else largest

    def rounded(value: float) -> float:
        if not math.isfinite(value):
            return value if math.isnan(value) else math.copysign(beyond, value)
        quantum = max(math.frexp(value)[1] - 1, emin) - bits
        result = math.ldexp(round(math.ldexp(value, -quantum)), quantum)
        return math.copysign(beyond if abs(result) > largest else result, value)

    return rounded


def stagnation(increment: float, fmt: Format) -> float | None:
    """Where a sum of equal positive increments stops growing under nearest-even; None if it overflows before."""
    q = rounder(fmt)
    step, total = q(increment), 0.0
    if step <= 0:
        return 0.0
    while True:
        exponent = math.frexp(max(total, step))[1]
        jump = max(math.ldexp(1.0, exponent) - total, step)
        grown = q(total + step)
        if grown == total:
            return total
        if not math.isfinite(grown):
            return None
        per_step = grown - total
        whole = max(int(jump / per_step) - 1, 0)
        total = q(grown + whole * per_step)


def dot_product(left: ArrayLike, right: ArrayLike, fmt: Format, accumulator: Format) -> float:
    """Operands rounded to `fmt`, products exact, added up from left to right in the accumulator."""
    a, b = (quantize_array(part, fmt) for part in (left, right))
    total, q = 0.0, rounder(accumulator)
    for term in (a * b).tolist():
        total = q(total + term)
    return total


def softmax(logits: ArrayLike, fmt: Format, *, shifted: bool) -> Floats:
    """Softmax with every intermediate result rounded to `fmt`; `shifted` subtracts the maximum first."""
    x = quantize_array(logits, fmt)
    if shifted:
        x = quantize_array(x - np.max(x), fmt)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        powers = quantize_array(np.exp(x), fmt)
        total, q = 0.0, rounder(fmt)
        for power in powers.tolist():
            total = q(total + power)
        return quantize_array(powers / total if total else np.full_like(powers, np.nan), fmt)


def exact_softmax(logits: ArrayLike) -> Floats:
    """Softmax in double precision, shifted by the largest logit."""
    x = np.asarray(logits, dtype=np.float64)
    powers = np.exp(x - np.max(x))
    result: Floats = powers / np.sum(powers)
    return result


def _gelu(x: Floats) -> Floats:
    """Gaussian error linear unit by its tanh form (Hendrycks and Gimpel 2016)."""
    inner: Floats = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return 0.5 * x * (1 + inner)


FUNCTIONS: dict[str, Callable[[Floats], Floats]] = {
    "x": lambda x: x,
    "x²": np.square,
    "exp(x)": np.exp,
    "tanh(x)": np.tanh,
    "sigmoid(x)": lambda x: 1 / (1 + np.exp(-x)),
    "GELU(x)": _gelu,
    "sqrt(|x|)": lambda x: np.sqrt(np.abs(x)),
    "sin(x)": np.sin,
    "1/x": lambda x: np.divide(1.0, x, out=np.full_like(x, np.nan), where=x != 0),
}


def function_values(name: str, x: ArrayLike, fmt: Format, cast_policy: CastPolicy = DEFAULT) -> tuple[Floats, Floats]:
    """f(x) in double precision and Q(f(Q(x))) in the format."""
    function = FUNCTIONS[name]
    array = np.asarray(x, dtype=np.float64)
    with np.errstate(all="ignore"):
        return function(array), quantize_array(function(quantize_array(array, fmt, cast_policy)), fmt, cast_policy)
