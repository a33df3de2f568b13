"""The best that this device can do: its ratio of peaks, the time of an operation with nothing to do, padded sizes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from precgui.engine.backend_flags import set_fp32_arithmetic
from precgui.engine.bench.timing import Work, compare, once
from precgui.engine.bench.workloads import FLOATS, gemm
from precgui.engine.profile import kinds
from precgui.engine.profile.operations import OperationRow
from precgui.sentences import Sentence, first_line

CPU_SIZE, ACCELERATOR_SIZE = 1024, 4096
_LONGEST_S = 0.3  # of one product whose ratio is measured
_PADDED = 64  # sizes are padded to multiples of this, which every kernel's tile divides or is divided by
_MULTIPLES = (8, 16, 128)
_ROUNDS, _SAMPLE_S = 9, 0.008
_REFUSALS = (RuntimeError, NotImplementedError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class PeakRatio:
    """How many times faster a large product runs in `format` than in FP32; None with the reason where it cannot be."""

    format: str
    ratio: float | None
    size: int
    note: str = ""


def product_format(precision: str) -> str | None:
    """The format whose products a precision runs, None where they are emulated or quantised."""
    known = {"fp32": "fp32", "fp64": "fp64", "tf32": "tf32", "fp8": "e4m3fn"}
    return known.get(precision) or ("bf16" if precision.startswith("bf16") else
                                    "fp16" if precision.startswith("fp16") else None)  # fmt: skip


def peak_ratio(precision: str, device: torch.device, *, emulated: bool, stopped: Callable[[], bool]) -> PeakRatio:
    """The ratio of rates of one large square product, in turns with FP32."""
    fmt, size = product_format(precision), CPU_SIZE if device.type == "cpu" else ACCELERATOR_SIZE
    if fmt == "fp32":
        return PeakRatio("fp32", 1.0, size)
    if fmt is None or fmt not in FLOATS or emulated:
        return PeakRatio(
            fmt or precision,
            None,
            size,
            Sentence("products of {precision} are emulated on this device", precision=precision),
        )
    try:
        if once(gemm(fmt, 128, device), device) * (size / 128) ** 3 > _LONGEST_S:
            size = 256
        set_fp32_arithmetic(tf32=False)
        if fmt == "tf32":
            return _switched_ratio(size, device)
        ratio = time_ratio(gemm("fp32", size, device), gemm(fmt, size, device), device, stopped)
    except _REFUSALS as refusal:
        return PeakRatio(fmt, None, size, Sentence("torch refuses: {error}", error=first_line(refusal, 160)))
    return PeakRatio(fmt, 1 / ratio, size)


def time_ratio(first: Work, second: Work, device: torch.device, stopped: Callable[[], bool]) -> float:
    """Time of the second work over that of the first, in turns; the smallest CPU times where one thread does it all."""
    if device.type != "cpu" or torch.get_num_threads() > 1:
        return compare([first, second], device, stopped)[-1]
    least = [math.inf, math.inf]
    repetitions = [max(1, math.ceil(_SAMPLE_S / max(cpu_s(work, 1), 1e-7))) for work in (first, second)]
    for _ in range(_ROUNDS):
        for place, work in enumerate((first, second)):
            least[place] = min(least[place], cpu_s(work, repetitions[place]))
    return least[1] / least[0]


def cpu_s(work: Work, repetitions: int) -> float:
    """CPU seconds of this thread for one call."""
    begin = time.thread_time()
    for _ in range(repetitions):
        work()
    return (time.thread_time() - begin) / repetitions


def _switched_ratio(size: int, device: torch.device) -> PeakRatio:
    plain = min(once(gemm("fp32", size, device), device) for _ in range(5))
    set_fp32_arithmetic(tf32=True)
    fast = min(once(gemm("fp32", size, device), device) for _ in range(5))
    set_fp32_arithmetic(tf32=False)
    return PeakRatio("tf32", plain / fast, size)


def call_floors(fmt: str | None, device: torch.device) -> dict[str, float]:
    """Seconds that an operation takes which has next to nothing to do: by kind, and `product:FORMAT` and so on.

    On an accelerator, launches show as gaps between kernels and are not counted.
    """
    if device.type != "cpu":
        return {}
    few, image = torch.zeros(8), torch.zeros(1, 1, 4, 4)
    floors = {"": _floor_s(partial(torch.relu, few)), kinds.CAST: _floor_s(lambda: few.to(torch.bfloat16))}
    for name in dict.fromkeys(("fp32", fmt)):
        if name is None or name not in FLOATS:
            continue
        small, pixels, kernel = (t.to(FLOATS[name]) for t in (torch.zeros(8, 8), image, torch.zeros(1, 1, 3, 3)))
        floors[f"{kinds.PRODUCT}:{name}"] = _floor_s(partial(torch.mm, small, small))
        floors[f"{kinds.CONVOLUTION}:{name}"] = _floor_s(partial(torch.conv2d, pixels, kernel))
    return floors


def _floor_s(work: Callable[[], Any]) -> float:
    return min(cpu_s(work, 200) for _ in range(4))


def floor_of(row: OperationRow, floors: dict[str, float]) -> float:
    """Seconds of one call of that kind with nothing to do."""
    by_format = floors.get(f"{row.kind}:{row.format.partition(' ')[0]}")
    return by_format if by_format is not None else floors.get(row.kind, floors.get("", 0.0))


def matrix_sizes(row: OperationRow) -> tuple[int, int, int, int] | None:
    """(batch, m, k, n) of a matrix product from the shapes of its operands; None for other work."""
    first = 1 if row.operation.startswith(("addmm", "baddbmm")) and len(row.shapes) > 2 else 0  # what is added
    matrices = [shape for shape in row.shapes[first:] if len(shape) >= 2]
    if row.kind != kinds.PRODUCT or len(matrices) < 2:
        return None
    left, right = matrices[:2]  # the result that a compiled step gives stands behind them
    if len(left) != len(right) or left[-1] != right[-2]:
        return None
    return (left[0] if len(left) == 3 else 1), left[-2], left[-1], right[-1]


def odd_sizes(sizes: tuple[int, int, int, int]) -> dict[str, list[int]]:
    """For 8, 16 and 128, those of m, k and n that are no multiple of it."""
    return {str(multiple): [size for size in sizes[1:] if size % multiple] for multiple in _MULTIPLES}


def padding_gain(
    row: OperationRow, device: torch.device, stopped: Callable[[], bool]
) -> tuple[tuple[int, ...], float] | None:
    """The sizes padded to multiples of 64 and the share of the product's time that this saves here (negative: it costs
    more). None where all are multiples of 8 already, or where the product cannot be tried alone."""
    sizes = matrix_sizes(row)
    fmt = row.format.partition(" ")[0]
    if sizes is None or fmt not in FLOATS or not any(size % 8 and size > _PADDED for size in sizes[1:]):
        return None
    padded = (sizes[0], *(-(-size // _PADDED) * _PADDED if size % 8 and size > _PADDED else size for size in sizes[1:]))
    try:
        works = [_product(each, FLOATS[fmt], device) for each in (sizes, padded)]
        ratio = time_ratio(works[0], works[1], device, stopped)
    except _REFUSALS:
        return None
    return padded, 1 - ratio


def _product(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Callable[[], Any]:
    batch, m, k, n = sizes
    left = torch.randn(batch, m, k, device=device).to(dtype)
    right = torch.randn(batch, k, n, device=device).to(dtype)
    if batch == 1:
        left, right = left[0], right[0]
    return lambda: left @ right
