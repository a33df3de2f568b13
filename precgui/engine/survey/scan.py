"""The scan of a checkpoint: each tensor is read twice, once to count and once to round it in every format.

Memory is one piece a thread, however large a tensor is; the second reading comes from the page cache.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.engine.survey import kernels as k
from precgui.engine.survey.tables import FormatTables, format_tables
from precgui.formats.checkpoints.survey import FIGURES, TensorSurvey, exponents_of, ratio_db
from precgui.formats.checkpoints.tensor import CheckpointTensor, Singles, code_values, line_length, singles
from precgui.formats.weight_formats import WeightFormat, round_one_scale

PIECE = 1 << 20  # numbers
MOST_COLUMNS = 1 << 20
WIDEST = 8
SAMPLED_ROWS = 64  # of a tensor with outliers
_CODES = 1 << 16
_EACH_CODE = 8  # numbers for each code that occurs: with fewer, a pass is faster than the counts
_NO_ROWS, _NO_WORDS = np.zeros((0, 0), np.float32), np.zeros((0, 0), np.uint16)


class _ScanStopped(Exception):
    """Somebody has asked the scan to stop."""


def scan(
    tensors: Sequence[CheckpointTensor], formats: Sequence[WeightFormat], emit: Callable[[TensorSurvey], None], *,
    threads: int = 1, stopped: Callable[[], bool] = lambda: False, done: Collection[str] = (),
) -> bool:  # fmt: skip
    """Survey every readable tensor that is not `done`, largest first; `emit` gets each in the calling thread.

    Returns whether all were surveyed. Raises TensorFileError for files that have changed meanwhile.
    """
    tables, end = format_tables(formats), threading.Event()
    waiting = [each for each in tensors if not each.why_not and each.size and each.name not in done]
    waiting.sort(key=lambda each: -each.size)

    def asked() -> bool:
        return end.is_set() or stopped()

    with ThreadPoolExecutor(max(threads, 1), thread_name_prefix="scan") as pool:
        running: set[Future[TensorSurvey]] = {pool.submit(survey, each, formats, tables, asked) for each in waiting}
        try:
            while running:
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for each in sorted(finished, key=lambda future: future.exception() is not None):  # nothing is lost
                    emit(each.result())
        except _ScanStopped:
            return False
        finally:
            end.set()
    return True


def survey(
    tensor: CheckpointTensor, formats: Sequence[WeightFormat], tables: FormatTables, stopped: Callable[[], bool]
) -> TensorSurvey:
    """Survey one tensor."""
    line = line_length(tensor.shape)
    stretches = list(_stretches(tensor, line))
    count = _count(tensor, line, stretches, stopped)
    norm = (
        np.float32(2.0 ** -min(max(math.floor(math.log2(count.amax)), -126), 126)) if count.amax > 0 else np.float32(1)
    )
    counted = [fmt.group == 0 and _answers(tensor, count) for fmt in formats]
    kept = np.flatnonzero(~np.array(counted, bool)) if counted else np.zeros(0, int)
    wholes, reals, out = tables.wholes[kept], tables.reals[kept], np.zeros((len(kept) + 1, k.SUMS))
    for start, stop in stretches:
        if stopped():
            raise _ScanStopped
        rows, words, peaks = _piece(tensor, count, start, stop, line)
        k.scan_rows(rows, words, peaks, np.float32(count.amax), norm, wholes, reals, tables.values, tables.thresholds,
                    out)  # fmt: skip
    padding = sum(k.padding_of(min(line, stop - start)) * max((stop - start) // line, 1) for start, stop in stretches)
    whole = np.zeros((len(formats) + 1, k.SUMS))
    whole[[*kept, len(formats)]] = out
    for place in np.flatnonzero(counted).tolist():
        whole[place] = _from_counts(formats[place], count, float(norm))
        whole[place, k.ZEROED] += padding
    found = _survey(tensor, formats, count, whole, float(norm), count.zeros_in_scan + padding, line)
    return replace(found, wide_share=_wide_share(tensor, line, found.wide_columns)) if found.wide_columns else found


def _wide_share(tensor: CheckpointTensor, line: int, wide: Sequence[int]) -> float:
    """The share of the error in INT8, with a scale for each row, that is gone without some columns; on some rows."""
    together = math.lcm(line, tensor.unit)
    count = max(tensor.size // together, 1)
    whole = rest = 0.0
    for place in np.unique(np.linspace(0, count - 1, max(min(count, SAMPLED_ROWS * line // together), 1)).astype(int)):
        rows = _finite(tensor.read(place * together, (place + 1) * together)).reshape(-1, line)[:SAMPLED_ROWS]
        whole += _error_in_int8(rows)
        rest += _error_in_int8(np.delete(rows, wide, 1))
    return 1 - rest / whole if whole > 0 else math.nan


def _error_in_int8(rows: Singles) -> float:
    scale = np.abs(rows).max(1, keepdims=True, initial=0) / np.float32(127)
    codes = np.rint(np.divide(rows, scale, out=np.zeros_like(rows), where=scale > 0))
    return float(np.square(rows - codes * scale, dtype=np.float64).sum())


def _piece(
    tensor: CheckpointTensor, count: _Count, start: int, stop: int, line: int
) -> tuple[Singles, NDArray[np.uint16], Singles]:
    """Rows as FP32 numbers or as codes of BF16, the others being none, and their largest magnitudes; columns, too."""
    width = min(line, stop - start)
    from_words = tensor.words is not None and tensor.dtype == "bf16" and count.is_finite
    rows, words = _NO_ROWS, _NO_WORDS
    if from_words and tensor.words is not None:
        words = tensor.words(start, stop).reshape(-1, width)
    else:
        values = tensor.read(start, stop)
        rows = (values if count.is_finite else _finite(values)).reshape(-1, width)
    peaks = np.zeros(max(len(rows), len(words)), np.float32)
    if count.rows is not None:
        peaks[:] = count.rows[start // line]
    elif from_words:
        k.row_peaks_of_words(words, peaks)
    else:
        k.row_peaks(rows, peaks)
    if count.columns is not None and from_words:
        k.column_peaks_of_words(words, count.columns)
    elif count.columns is not None:
        k.column_peaks(rows, count.columns)
    return rows, words, peaks


def _answers(tensor: CheckpointTensor, count: _Count) -> bool:
    """Whether the counts of codes give the figures of a format with one scale for the tensor, for less than a pass."""
    if tensor.words is None and not count.is_exact:
        return False
    return tensor.size > _EACH_CODE * int(np.count_nonzero(count.codes))


def _from_counts(fmt: WeightFormat, count: _Count, norm: float) -> NDArray[np.float64]:
    """The sums of the kernels for a format with one scale for the tensor, from the counts of its codes."""
    found = code_values(count.code)
    used = np.flatnonzero(count.codes)
    often = count.codes[used].astype(np.float64)
    values = np.where(np.isfinite(found[used]), found[used], np.float32(0))
    rounded, cut = round_one_scale(values, fmt, np.float32(count.amax))
    exact = values.astype(np.float64) * norm
    errors = (values - rounded).astype(np.float64) * norm
    sums = np.zeros(k.SUMS)
    sums[k.NOISE], sums[k.CROSS] = (often * errors**2).sum(), (often * errors * exact).sum()
    sums[k.WORST] = np.abs(values - rounded).max(initial=0.0)
    sums[k.ZEROED], sums[k.CLIPPED] = often[rounded == 0].sum(), often[cut].sum()
    return sums


def _finite(values: Singles) -> Singles:
    """The numbers with zeros for those that are not finite."""
    known = np.isfinite(values)
    return values if known.all() else np.where(known, values, np.float32(0))


def _stretches(tensor: CheckpointTensor, line: int) -> Iterator[tuple[int, int]]:
    """Whole lines, as many as a piece holds, or parts of lines that are longer than a piece."""
    together = math.lcm(line, tensor.unit)
    if line <= PIECE or line % tensor.unit:
        step = max(PIECE // together, 1) * together
        yield from ((start, min(start + step, tensor.size)) for start in range(0, tensor.size, step))
        return
    step = max(PIECE // math.lcm(tensor.unit, k.TILE), 1) * math.lcm(tensor.unit, k.TILE)
    for row in range(0, tensor.size, line):
        yield from ((start, min(start + step, row + line)) for start in range(row, row + line, step))


@dataclass
class _Count:
    """Sums over the first reading. `rows`: the largest magnitudes of lines that are read in parts."""

    codes: NDArray[np.int64]
    code: str
    is_exact: bool
    rows: Singles | None
    columns: Singles | None
    amax: float = 0.0
    amin: float = math.inf
    sums: list[float] = field(default_factory=list)
    squares: list[float] = field(default_factory=list)
    zeros: int = 0

    @property
    def is_finite(self) -> bool:
        return not self.codes[~np.isfinite(code_values(self.code))].any()

    @property
    def zeros_in_scan(self) -> int:
        """Zeros, and numbers that the scan takes for zeros."""
        values = code_values(self.code)
        return self.zeros + int(self.codes[~np.isfinite(values)].sum())


def _count(
    tensor: CheckpointTensor, line: int, stretches: list[tuple[int, int]], stopped: Callable[[], bool]
) -> _Count:
    counts = np.zeros((4, _CODES), np.uint32)
    total = np.zeros(_CODES, np.int64)
    matrix = len(tensor.shape) > 1 and line <= min(PIECE, MOST_COLUMNS)
    count = _Count(
        total, tensor.dtype if tensor.words else "bf16", True,
        np.zeros(tensor.size // line, np.float32) if line > PIECE else None,
        np.zeros(line, np.float32) if matrix else None,
    )  # fmt: skip
    for place, (start, stop) in enumerate(stretches):
        if stopped():
            raise _ScanStopped
        if tensor.words is not None:
            words = tensor.words(start, stop)
            k.count_codes(words, counts)
            values = None if count.rows is None else _finite(singles(words, tensor.dtype))
        else:
            values = _count_wide(tensor.read(start, stop), counts, count)
        if values is not None and count.rows is not None:
            row = start // line
            count.rows[row] = max(count.rows[row], np.abs(values).max(initial=0.0))
        if place % 1024 == 1023:  # before a count leaves 32 bits
            total += counts.sum(0, dtype=np.int64)
            counts[:] = 0
    total += counts.sum(0, dtype=np.int64)
    if tensor.words is not None or count.is_exact:
        _from_codes(count)
    return count


def _count_wide(values: Singles, counts: NDArray[np.uint32], count: _Count) -> Singles:
    """Count numbers of more than 16 bits by their upper 16, and add up what these do not tell."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    k.count_codes((bits >> np.uint32(16)).astype(np.uint16), counts)
    count.is_exact = count.is_exact and not (bits & np.uint32(0xFFFF)).any()
    known = _finite(values)
    magnitudes = np.abs(known)
    count.amax = max(count.amax, float(magnitudes.max(initial=0.0)))
    zeros = known.size - int(np.count_nonzero(magnitudes))
    count.zeros += zeros - (known.size - int(np.isfinite(values).sum()))
    if zeros < known.size:
        count.amin = min(count.amin, float(magnitudes[magnitudes > 0].min() if zeros else magnitudes.min()))
    count.sums.append(float(known.sum(dtype=np.float64)))
    count.squares.append(float(np.square(known, dtype=np.float64).sum()))
    return known


def _from_codes(count: _Count) -> None:
    """Extremes, sums and zeros from codes that are the numbers."""
    values = code_values(count.code).astype(np.float64)
    used = np.flatnonzero(count.codes)
    known = used[np.isfinite(values[used])]
    numbers, often = values[known], count.codes[known]
    nonzero = np.abs(numbers[numbers != 0])
    count.amax, count.amin = float(nonzero.max(initial=0.0)), float(nonzero.min(initial=math.inf))
    count.sums, count.squares = [float((numbers * often).sum())], [float((numbers**2 * often).sum())]
    count.zeros = int(often[numbers == 0].sum())


def _survey(
    tensor: CheckpointTensor, formats: Sequence[WeightFormat], count: _Count, out: NDArray[np.float64], norm: float,
    zeros: int, line: int,
) -> TensorSurvey:  # fmt: skip
    values = code_values(count.code)
    used = np.flatnonzero(count.codes)
    often = count.codes[used]
    nan, high, low = (int(often[test(values[used])].sum()) for test in (np.isnan, np.isposinf, np.isneginf))
    size = tensor.size - nan - high - low
    mean, square = (math.fsum(part) / max(size, 1) for part in (count.sums, count.squares))
    exponents = exponents_of(count.code, used.astype(np.uint16), often)
    order = [] if count.columns is None else np.argsort(-count.columns, kind="stable")[:WIDEST].tolist()
    return TensorSurvey(
        tensor.name, tensor.size, _figures(tensor, formats, out, norm, zeros, line), exponents,
        used.astype(np.uint16), np.minimum(often, 0xFFFFFFFF).astype(np.uint32), count.code, count.is_exact,
        count.amax, count.amin if count.amin < math.inf else math.nan, mean, math.sqrt(square),
        _kurtosis(values[used], often, mean), count.zeros, nan, high, low,
        tuple((place, float(count.columns[place])) for place in order) if count.columns is not None else (),
        float(np.median(count.columns)) if count.columns is not None else math.nan,
    )  # fmt: skip


def _kurtosis(values: Singles, often: NDArray[np.int64], mean: float) -> float:
    """The fourth moment over the square of the second: 3 for a normal distribution."""
    known = np.isfinite(values)
    centred = values[known].astype(np.float64) - mean
    weights = often[known] / max(int(often[known].sum()), 1)
    second = float((weights * centred**2).sum())
    return float((weights * centred**4).sum()) / second**2 if second > 0 else math.nan


def _figures(
    tensor: CheckpointTensor, formats: Sequence[WeightFormat], out: NDArray[np.float64], norm: float, zeros: int,
    line: int,
) -> Any:  # fmt: skip
    figures = np.full((len(formats), len(FIGURES)), np.nan)
    signal = float(out[-1, k.NOISE])
    for row, fmt, sums in zip(figures, formats, out, strict=False):
        if fmt.misfit(line):
            continue
        noise, cross = float(sums[k.NOISE]), float(sums[k.CROSS])
        after = signal - 2 * cross + noise
        cosine = (
            (signal - cross) / math.sqrt(signal * after) if signal > 0 and after > 0 else 1.0 if noise == 0 else 0.0
        )
        row[:] = (fmt.nbytes(tensor.shape, line), ratio_db(signal, noise), sums[k.WORST], min(cosine, 1.0),
                  sums[k.ZEROED] - zeros, sums[k.CLIPPED])  # fmt: skip
    return figures
