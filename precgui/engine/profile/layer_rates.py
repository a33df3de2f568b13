"""The products of a step, made again one by one in each format: the rates that this model's layers reach here."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from precgui.engine.backend_flags import set_fp32_arithmetic
from precgui.engine.bench.timing import LONG_S, Work, once, repetitions_for, sample_s
from precgui.engine.bench.workloads import FLOATS, by_columns, copy, gemm
from precgui.engine.profile.floors import cpu_s
from precgui.engine.profile.recorded_call import RecordedCall, RecordedUse, TensorSpec
from precgui.engine.torch_private import int_mm, operation_name, scaled_mm, tree_leaves, tree_map_only
from precgui.sentences import L_, Sentence, first_line

FLOPS_SHARE = 0.95  # of a step's FLOPs that the measured products make
MOST_PRODUCTS = 16
ROUNDS, ROUNDS_OF_LONG = 7, 2
_LONGEST_S = 2.0  # a product that takes longer once is not measured
_COPY_BYTES = {"cpu": 1 << 27, "cuda": 1 << 30}  # far larger than the caches
_SQUARE = {"cpu": 1024, "cuda": 4096}
_REFUSALS = (RuntimeError, NotImplementedError, TypeError, ValueError)
_SEED = 0
NARROW = ("e4m3fn", "int8")
_MATRICES = ("mm", "addmm")
_PROBE = 128  # size of the square product from which the time of a large one is estimated
_CHECKED_ROWS = 16
_OUT_BYTES = {"e4m3fn": 2, "int8": 4}  # results are BF16 and INT32


def formats_of(device: torch.device) -> tuple[str, ...]:
    """The formats that the products are made in on this device."""
    if device.type == "cuda":
        return "fp32", "tf32", "bf16", "fp16", *NARROW
    return "fp32", "bf16", "fp16", *NARROW


def rates(
    recorded: Mapping[RecordedCall, RecordedUse],
    device: torch.device,
    say: Callable[[str], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Each large product of a step alone, in turns of all formats in random order.

    `rows` have `operation`, `modules`, `phase`, `shapes`, `calls` a step, `flops` of one call, and by format `seconds`
    of a call (median over the rounds), `spread` (interquartile range over median), `flops_s`, `speedup` over FP32
    (median over rounds) and `flops_per_byte` with every operand and result moved once; or `note` where it was not
    measured. `bandwidth_bytes_s` counts bytes read and written by a copy, `square_flops_s` is a large square product.
    Numbers are normally distributed, and all operands are in the one format: what is around the product, such as casts
    or emulation, is not in it. FP8 and INT8 are products of two matrices by torch's kernels for them.
    """
    formats = formats_of(device)
    say(L_("this model's products, one by one"))
    bandwidth = None if stopped() else _bandwidth(device)
    chosen, share = largest(recorded)
    rows = []
    for call, use in chosen:
        if stopped():
            break
        rows.append(_row(call, use, formats, device, stopped))
    return {
        "formats": list(formats),
        "bandwidth_bytes_s": bandwidth,
        "square_flops_s": {fmt: _square_flops_s(fmt, device) for fmt in formats if not stopped()},
        "flops_share": share,
        "rows": rows,
    }


def largest(recorded: Mapping[RecordedCall, RecordedUse]) -> tuple[list[tuple[RecordedCall, RecordedUse]], float]:
    """The calls that make most of the FLOPs of a step and can be made alone, and the share of the FLOPs they make."""
    total = sum(call.flops * use.calls for call, use in recorded.items()) or 1
    ordered = sorted(recorded.items(), key=lambda item: -item[0].flops * item[1].calls)
    chosen: list[tuple[RecordedCall, RecordedUse]] = []
    share = 0.0
    for call, use in ordered:
        if share >= FLOPS_SHARE or len(chosen) == MOST_PRODUCTS:
            break
        if _alone(call):
            chosen.append((call, use))
            share += call.flops * use.calls / total
    return chosen, share


def _alone(call: RecordedCall) -> bool:
    """Whether any numbers may stand for its operands: attention backward needs those of its forward pass."""
    specs = _specs(call)
    return "attention" not in call.key.partition(" ")[0] and all(spec.dtype.is_floating_point for spec in specs)


def _row(
    call: RecordedCall, use: RecordedUse, formats: tuple[str, ...], device: torch.device, stopped: Callable[[], bool]
) -> dict[str, Any]:
    specs = _specs(call)
    return {
        "operation": _operation(call), "modules": list(use.modules),
        "phase": use.phase, "shapes": [list(spec.size) for spec in specs], "calls": use.calls, "flops": call.flops,
        "formats": _timed(call, formats, device, stopped),
    }  # fmt: skip


def _timed(
    call: RecordedCall, formats: tuple[str, ...], device: torch.device, stopped: Callable[[], bool]
) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = {}
    works: dict[str, tuple[Work, int]] = {}
    longest_s = 0.0
    for fmt in formats:
        try:
            work = _work(call, fmt, device)
            set_fp32_arithmetic(tf32=fmt == "tf32")
            estimate_s = once(work, device)
        except NotMeasuredError as reason:
            results[fmt] = {"note": Sentence("not measured: {reason}", reason=reason)}
            continue
        except _REFUSALS as refusal:
            results[fmt] = {"note": Sentence("torch refuses: {error}", error=first_line(refusal, 160))}
            continue
        if estimate_s > _LONGEST_S:
            results[fmt] = {"note": Sentence("not measured: about {seconds:.1f} s a call", seconds=estimate_s)}
            continue
        works[fmt] = work, repetitions_for(estimate_s)
        longest_s = max(longest_s, estimate_s)
    rounds = _rounds(works, device, ROUNDS_OF_LONG if longest_s > LONG_S / 4 else ROUNDS, stopped)
    for fmt in works:
        results[fmt] = _result(call, fmt, rounds)
    return results


def _work(call: RecordedCall, fmt: str, device: torch.device) -> Work:
    if fmt not in NARROW:
        return synthetic_call(call, fmt, device)
    sizes = _matrix_sizes(call)
    if (expected_s := estimated_s(sizes, fmt, device)) > _LONGEST_S:
        raise NotMeasuredError(Sentence("about {seconds:.1f} s a call, by a kernel for reference", seconds=expected_s))
    return narrow_product(sizes, fmt, device)


def _matrix_sizes(call: RecordedCall) -> tuple[int, int, int]:
    return matrix_sizes(_operation(call), [spec.size for spec in _specs(call)])


def _operation(call: RecordedCall) -> str:
    return operation_name(call.func)


def _specs(call: RecordedCall) -> list[TensorSpec]:
    return [leaf for leaf in tree_leaves((call.args, call.kwargs)) if isinstance(leaf, TensorSpec)]


def _bytes(call: RecordedCall, fmt: str) -> int:
    """Bytes of the operands and the result, each once."""
    if fmt in NARROW:
        return operand_bytes(_matrix_sizes(call), fmt)
    return call.elements * FLOATS[fmt].itemsize


def _rounds(
    works: Mapping[str, tuple[Work, int]], device: torch.device, rounds: int, stopped: Callable[[], bool]
) -> list[dict[str, float]]:
    draw, measured = random.Random(_SEED), []
    for _ in range(rounds):
        seconds = {}
        for fmt in draw.sample(list(works), len(works)):
            set_fp32_arithmetic(tf32=fmt == "tf32")
            seconds[fmt] = _seconds(*works[fmt], device)
        measured.append(seconds)
        if stopped():
            break
    set_fp32_arithmetic(tf32=False)
    return measured


def _seconds(work: Work, repetitions: int, device: torch.device) -> float:
    """Seconds of one call; CPU time where one thread does all the work, so that other programs matter less."""
    if device.type == "cpu" and torch.get_num_threads() == 1:
        return cpu_s(work, repetitions)
    return sample_s(work, device, repetitions)


def _result(call: RecordedCall, fmt: str, rounds: list[dict[str, float]]) -> dict[str, Any]:
    samples = [seconds[fmt] for seconds in rounds]
    median = statistics.median(samples)
    quarters = statistics.quantiles(samples, n=4) if len(samples) > 3 else None
    ratios = [seconds["fp32"] / seconds[fmt] for seconds in rounds if "fp32" in seconds]
    return {
        "seconds": median,
        "spread": (quarters[2] - quarters[0]) / median if quarters else None,
        "flops_s": call.flops / median,
        "speedup": statistics.median(ratios) if ratios else None,
        "flops_per_byte": call.flops / _bytes(call, fmt),
    }


def synthetic_call(call: RecordedCall, fmt: str, device: torch.device) -> Work:
    """The call with normally distributed operands of the same geometry, floating-point ones in `fmt`."""
    draw = torch.Generator().manual_seed(_SEED)

    def operand(spec: TensorSpec) -> Tensor:
        values = torch.empty_strided(spec.size, spec.stride, dtype=torch.float32)
        values.normal_(generator=draw)
        return torch.empty_strided(spec.size, spec.stride, dtype=FLOATS[fmt], device=device).copy_(values)

    args, kwargs = tree_map_only(TensorSpec, operand, (call.args, call.kwargs))
    return lambda: call.func(*args, **kwargs)


def _bandwidth(device: torch.device) -> float | None:
    """Bytes a second that a copy reads and writes."""
    count = _COPY_BYTES.get(device.type, 1 << 27)
    seconds = _alone_s(copy(count, device), device)
    return None if seconds is None else 2 * count / seconds


def _square_flops_s(fmt: str, device: torch.device) -> float | None:
    """FLOPs per second of a large square product, or of a small one where the large one takes too long."""
    size = _SQUARE.get(device.type, 1024)
    set_fp32_arithmetic(tf32=fmt == "tf32")
    small_s = _alone_s(gemm(fmt, 128, device), device)
    if small_s is None:
        return None
    if small_s * (size / 128) ** 3 > LONG_S:
        size = 256
    seconds = _alone_s(gemm(fmt, size, device), device)
    set_fp32_arithmetic(tf32=False)
    return None if seconds is None else 2 * size**3 / seconds


def _alone_s(work: Work, device: torch.device) -> float | None:
    """Seconds of a call by the clock of the rounds, their median; None where torch refuses it."""
    try:
        repetitions = repetitions_for(once(work, device))
        return statistics.median(_seconds(work, repetitions, device) for _ in range(ROUNDS))
    except _REFUSALS:
        return None


class NotMeasuredError(ValueError):
    """The product cannot be measured in this format; the message is the reason, without a full stop."""


def matrix_sizes(operation: str, shapes: list[tuple[int, ...]]) -> tuple[int, int, int]:
    """m, k, n of a recorded product m x k by k x n. Raises NotMeasuredError where it is no product of two matrices."""
    operands = [shape for shape in shapes if len(shape) == 2]
    if operation not in _MATRICES or len(operands) < 2:
        raise NotMeasuredError(L_("torch has FP8 and INT8 kernels for products of two matrices only"))
    (m, k), (_, n) = operands[-2:]
    return m, k, n


def narrow_product(sizes: tuple[int, int, int], fmt: str, device: torch.device) -> Work:
    """The product alone, with one scale for each operand and, in FP8, a result in BF16; a bias is not added.

    Operands lie as the kernel takes them. Raises NotMeasuredError where its results are wrong on this processor, and
    whatever torch raises where it has no kernel for the sizes or the device.
    """
    m, k, n = sizes
    draw = torch.Generator().manual_seed(_SEED)
    a, b = torch.randn(m, k, generator=draw), torch.randn(k, n, generator=draw)
    columns = device.type == "cuda" or fmt == "e4m3fn"
    if fmt == "int8":
        x, y = (_to_range(values, 127).round().to(torch.int8).to(device) for values in (a, b))
        y = by_columns(y) if columns else y
        _check(int_mm(x, y), x, y)
        return lambda: int_mm(x, y)
    x, y = (_to_range(values, 448.0).to(torch.float8_e4m3fn).to(device) for values in (a, b))
    y, scale, fast = by_columns(y), torch.ones((), device=device), device.type == "cuda"
    return lambda: scaled_mm(x, y, scale, scale, out_dtype=torch.bfloat16, use_fast_accum=fast)


def _to_range(values: Tensor, largest: float) -> Tensor:
    return values / values.abs().max() * largest


def _check(product: Tensor, x: Tensor, y: Tensor) -> None:
    """Compare some rows with the exact sums of integers."""
    exact = x[:_CHECKED_ROWS].cpu().double() @ y.cpu().double()
    if not torch.equal(product[:_CHECKED_ROWS].cpu().double(), exact):
        raise NotMeasuredError(L_("torch's INT8 products are wrong on this processor, which clamps their sums"))


def estimated_s(sizes: tuple[int, int, int], fmt: str, device: torch.device) -> float:
    """Seconds of one such product, from a small square one: kernels for reference can take minutes on a large one."""
    m, k, n = sizes
    return once(gemm(fmt, _PROBE, device), device) * (m / _PROBE) * (k / _PROBE) * (n / _PROBE)


def operand_bytes(sizes: tuple[int, int, int], fmt: str) -> int:
    """Bytes of both operands and of the result."""
    m, k, n = sizes
    return m * k + k * n + m * n * _OUT_BYTES[fmt]
