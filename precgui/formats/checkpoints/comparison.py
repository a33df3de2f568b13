"""Two checkpoints tensor by tensor: the numbers that fine-tuning or quantising moved, in ulps and in dB."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from precgui.formats.arrays import Floats
from precgui.formats.checkpoints.contents import StoredModel
from precgui.formats.checkpoints.gguf_names import gguf_name, in_order_of_transformers, is_transposed
from precgui.formats.checkpoints.survey import ratio_db
from precgui.formats.checkpoints.tensor import CheckpointTensor, Doubles, Singles
from precgui.formats.model import FloatFormat
from precgui.formats.registry import get
from precgui.sentences import L_, Sentence

Numbers = Singles | Doubles
PIECE = 1 << 18  # numbers
_PLAIN = ("fp64", "fp32", "bf16", "fp16")
_CUT = 20  # bits of an FP32 number that a bin of the histogram of ulps leaves out: 8 bins an octave


@dataclass(frozen=True)
class TensorChange:
    """The difference of one tensor. `changed` counts numbers with another value, NaN being equal to NaN.

    nonfinite: how many of these are NaN or infinite on one side; they are in no other figure. signal, noise: sums of
    squares of the first model and of the difference. largest: the largest difference. ulps_of: the format whose ulps
    are counted, that of the first model, or of the other where the first has 8 bits or less; empty where both have.
    largest and the ulps are NaN where no number is finite on both sides and changed, but for a tensor without changes.
    median_ulps: of the numbers that changed, exact up to 15, above cut by at most an eighth.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    other_dtype: str
    changed: int
    nonfinite: int
    signal: float
    noise: float
    largest: float
    ulps_of: str
    median_ulps: float
    largest_ulps: float

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def sqnr_db(self) -> float:
        """Squares of the first model over squares of the difference, in dB; inf where nothing changed.

        NaN where all numbers that changed are not finite.
        """
        return math.nan if self.changed and self.changed == self.nonfinite else ratio_db(self.signal, self.noise)


@dataclass(frozen=True)
class ModelComparison:
    """All tensors that both have, in the order of the first, and those that are not compared."""

    source: str
    other: str
    changes: tuple[TensorChange, ...]
    only_source: tuple[str, ...]
    only_other: tuple[str, ...]
    other_shapes: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    skipped: tuple[tuple[str, str], ...]

    @cached_property
    def unchanged(self) -> int:
        """How many tensors hold the same numbers in both."""
        return sum(not each.changed for each in self.changes)

    @property
    def numbers(self) -> int:
        return sum(each.size for each in self.changes)

    @property
    def changed_numbers(self) -> int:
        return sum(each.changed for each in self.changes)

    @property
    def sqnr_db(self) -> float:
        """That of all compared numbers together, as that of a tensor."""
        if self.changed_numbers and self.changed_numbers == sum(each.nonfinite for each in self.changes):
            return math.nan
        return ratio_db(math.fsum(each.signal for each in self.changes), math.fsum(each.noise for each in self.changes))

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        if not self.changes:
            return L_("No tensor has the same name and shape in both models, so nothing was compared.")
        count, same = len(self.changes), self.unchanged
        if same == count:
            return Sentence("All {count} compared tensors hold the same numbers.", count=count)
        share = self.changed_numbers / max(self.numbers, 1)
        return Sentence(
            "{differing} of {count} compared tensors differ, in {share:.3%} of all numbers; {same} are unchanged.",
            differing=count - same,
            count=count,
            share=share,
            same=same,
        )


class _ComparisonStopped(Exception):
    """The comparison is no longer wanted."""


def compare_models(
    source: StoredModel, other: StoredModel, on_progress: Callable[[float], None], *, threads: int = 1
) -> ModelComparison:
    """Compare every tensor of floats that both have in one shape, in pieces of PIECE numbers for each thread.

    Tensors of a GGUF file are matched with those of transformers by `gguf_name`, and their rows put in the same order.
    on_progress gets the share that is done, in the calling thread; what it raises ends the comparison. Raises
    TensorFileError for files that cannot be read.
    """
    key = gguf_name if source.is_gguf != other.is_gguf else str
    held = {key(each.name): each for each in other.tensors}
    pairs, shapes, skipped = [], [], []
    for each in source.tensors:
        twin = held.get(key(each.name))
        if twin is None:
            continue
        if key is gguf_name and is_transposed(each.name, twin.name):
            skipped.append((each.name, L_("stored as [inputs, outputs] in one of the two")))
        elif each.shape != twin.shape:
            shapes.append((each.name, each.shape, twin.shape))
        elif why := each.why_not or twin.why_not:
            skipped.append((each.name, why))
        else:
            pairs.append((_in_order(source, each), _in_order(other, twin)) if key is gguf_name else (each, twin))
    names = {key(each.name) for each in source.tensors}
    return ModelComparison(
        str(source.source), str(other.source), tuple(_compare_all(pairs, on_progress, threads)),
        tuple(each.name for each in source.tensors if key(each.name) not in held),
        tuple(each.name for name, each in held.items() if name not in names), tuple(shapes), tuple(skipped),
    )  # fmt: skip


def _in_order(model: StoredModel, tensor: CheckpointTensor) -> CheckpointTensor:
    heads = model.heads.get(tensor.name, 0)
    return in_order_of_transformers(tensor, heads) if heads else tensor


def _compare_all(
    pairs: list[tuple[CheckpointTensor, CheckpointTensor]], on_progress: Callable[[float], None], threads: int
) -> list[TensorChange]:
    end, lock = threading.Event(), threading.Lock()
    total, done = max(sum(each.size for each, _ in pairs), 1), 0

    def advance(count: int) -> None:
        nonlocal done
        if end.is_set():
            raise _ComparisonStopped
        with lock:
            done += count

    with ThreadPoolExecutor(max(threads, 1), thread_name_prefix="compare") as pool:
        largest_first = sorted(pairs, key=lambda pair: -pair[0].size)
        futures = {pool.submit(compare_tensors, *pair, advance): pair[0].name for pair in largest_first}
        running: set[Future[TensorChange]] = set(futures)
        try:
            while running:
                finished, running = wait(running, timeout=0.1, return_when=FIRST_COMPLETED)
                for each in finished:
                    each.result()
                on_progress(done / total)
        finally:
            end.set()
            pool.shutdown(cancel_futures=True)
    changes = {name: future.result() for future, name in futures.items()}
    return [changes[each.name] for each, _ in pairs]


def compare_tensors(
    first: CheckpointTensor, second: CheckpointTensor, advance: Callable[[int], None] = lambda _: None
) -> TensorChange:
    """Compare two tensors of one shape. advance gets how many numbers were compared, after each piece."""
    measured = next((each.dtype for each in (first, second) if each.dtype in _PLAIN), "")
    fmt = get(measured) if measured else None
    unit = math.lcm(first.unit, second.unit)
    step = max(PIECE // unit, 1) * unit
    changed, nonfinite, signals, noises = 0, 0, [0.0], [0.0]
    largest, largest_ulps, bins = 0.0, 0.0, np.zeros(1 << (32 - _CUT), np.int64)
    for start in range(0, first.size, step):
        stop = min(start + step, first.size)
        a, b = _numbers(first, start, stop), _numbers(second, start, stop)
        known = np.isfinite(a)
        signals.append(_squares(a[known]))
        differs = (a != b) & ~(np.isnan(a) & np.isnan(b))
        count = int(np.count_nonzero(differs))
        changed += count
        if count:
            a, b = a[differs], b[differs]
            finite = np.isfinite(a) & np.isfinite(b)
            nonfinite += count - int(np.count_nonzero(finite))
            a, b = a[finite], b[finite]
            with np.errstate(over="ignore"):
                gap = np.abs(b.astype(np.float64) - a)
            noises.append(_squares(gap))
            largest = max(largest, float(gap.max(initial=0.0)))
            if isinstance(fmt, FloatFormat):
                ulps = ulps_between(a, b, fmt)
                largest_ulps = max(largest_ulps, float(ulps.max(initial=0.0)))
                prefix = ulps.astype(np.float32).view(np.uint32) >> np.uint32(_CUT)
                bins += np.bincount(prefix, minlength=bins.size)
        advance(stop - start)
    if changed and changed == nonfinite:
        largest = math.nan
    has_ulps = bool(measured) and not math.isnan(largest)
    return TensorChange(
        first.name, first.shape, first.dtype, second.dtype, changed, nonfinite, math.fsum(signals), math.fsum(noises),
        largest, measured, _median(bins) if has_ulps else math.nan, largest_ulps if has_ulps else math.nan,
    )  # fmt: skip


def _numbers(tensor: CheckpointTensor, start: int, stop: int) -> Numbers:
    return tensor.doubles(start, stop) if tensor.doubles else tensor.read(start, stop)


def _squares(values: Numbers) -> float:
    """The sum of squares in FP64; inf where FP64 numbers overflow."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.square(values, dtype=np.float64).sum())


def ulps_between(first: Numbers, second: Numbers, fmt: FloatFormat) -> Floats:
    """How many values of a format lie between finite numbers, the first counted and not the second; with fractions.

    FP64 numbers are counted by their codes: their places on the axis have more digits than FP64 holds.
    """
    if fmt.name != "fp64":
        return np.abs(ordinals(second, fmt) - ordinals(first, fmt))
    a, b = (np.abs(each.astype(np.float64)).view(np.int64) for each in (first, second))
    same_side = np.signbit(first) == np.signbit(second)
    result: Floats = np.where(same_side, np.abs(a - b).astype(np.float64), a.astype(np.float64) + b.astype(np.float64))
    return result


def ordinals(values: Numbers, fmt: FloatFormat) -> Floats:
    """Places of finite numbers on the axis of a format's values, neighbours one apart; fractions between them."""
    magnitude = np.abs(values)
    smallest_normal = magnitude.dtype.type(2.0**fmt.emin)
    codes, digits = (np.int64, 52) if magnitude.dtype == np.float64 else (np.int32, 23)
    bits = magnitude.view(codes).astype(np.int64) - int(smallest_normal.view(codes))
    above = bits.astype(np.float64) * 2.0 ** (fmt.mantissa_bits - digits) + 2.0**fmt.mantissa_bits
    below = magnitude.astype(np.float64) * 2.0 ** (fmt.mantissa_bits - fmt.emin)
    result: Floats = np.copysign(np.where(magnitude >= smallest_normal, above, below), values)
    return result


def _median(bins: NDArray[np.int64]) -> float:
    """The lower edge of the bin that holds the middle number; 0 of none."""
    total = int(bins.sum())
    if not total:
        return 0.0
    place = int(np.searchsorted(np.cumsum(bins), (total + 1) // 2))
    return float((np.array([place], np.uint32) << np.uint32(_CUT)).view(np.float32)[0])
