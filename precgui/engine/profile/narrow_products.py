"""FP8 and INT8 products with the sizes of a recorded one, by torch's kernels for scaled and for integer matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from precgui.engine.bench.timing import Work, once
from precgui.engine.bench.workloads import by_columns, gemm
from precgui.engine.torch_private import int_mm, scaled_mm
from precgui.sentences import L_

NARROW = ("e4m3fn", "int8")
_MATRICES = ("mm", "addmm")
_PROBE = 128  # size of the square product from which the time of a large one is estimated
_CHECKED_ROWS = 16
_OUT_BYTES = {"e4m3fn": 2, "int8": 4}  # results are BF16 and INT32
_SEED = 0


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
