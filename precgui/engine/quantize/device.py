"""Rounding on accelerators: by one Triton kernel on a GPU of CUDA, by torch operations elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from precgui.engine.quantize.torch_form import MOST_ELEMENTS, rounded
from precgui.formats.arrays import quantize_array
from precgui.formats.blocks import ScaleRule
from precgui.formats.model import BlockFormat, Format
from precgui.formats.rounding import CastPolicy, RoundingMode
from precgui.sentences import first_line

Result = TypeVar("Result")


def rounded_on_device(source: Tensor, fmt: Format, cast_policy: CastPolicy, seed: int) -> Tensor:
    """Round a contiguous float32 or float64 tensor where it is, operation by operation; rare ones over the CPU."""
    result = rounded(source, fmt, cast_policy, seed)
    return _over_cpu(source, fmt, cast_policy, seed) if result is None else result


def _over_cpu(source: Tensor, fmt: Format, cast_policy: CastPolicy, seed: int) -> Tensor:
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = source.cpu().numpy()
        rounded = quantize_array(numbers, fmt, cast_policy, seed)
    return torch.from_numpy(np.where(np.isnan(numbers), numbers, rounded)).to(source)


def elements_on_device(
    dense: Tensor, fmt: Format, cast_policy: CastPolicy, seed: int, plain: Callable[[], Tensor]
) -> Tensor:
    """Round a contiguous tensor on a CUDA device by one kernel; by `plain` where there is none."""

    def kernel() -> Tensor:
        from precgui.engine.quantize import triton_elements

        result = triton_elements.rounded_elements(dense, fmt, cast_policy, seed)
        return plain() if result is None else result

    return built("elements", kernel, plain, dense.device)


def together_on_device(
    sources: Sequence[Tensor], targets: Sequence[Tensor], fmt: Format, cast_policy: CastPolicy, seeds: Sequence[int]
) -> bool:
    """Round contiguous FP32 tensors of one CUDA device into others by one kernel; False where there is none."""

    def kernel() -> bool:
        from precgui.engine.quantize import triton_elements

        return triton_elements.round_together(sources, targets, fmt, cast_policy, seeds)

    return built("together", kernel, lambda: False, sources[0].device)


def built(kind: str, kernel: Callable[[], Result], plain: Callable[[], Result], device: torch.device) -> Result:
    """The result of a kernel that is compiled at its first use, or of `plain` where this machine can build none.

    Each new kind of arguments is compiled at its first use, so each call may be the first that fails: no Triton, no
    compiler for its launcher, no headers of Python, a cache that may not be executed. The first failure is logged. One
    of Triton's own ends the compiling of its kind, any other, as of the machine, that of all kinds.
    """
    if kind in _reasons or _EVERY_KIND in _reasons:
        return plain()
    try:
        with torch.cuda.device(device):  # on the current device kernels are launched
            return kernel()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001  # of compilers, linkers and loaders, which know no common class
        if not _reasons:
            logging.getLogger(__name__).warning(
                "rounding takes an operation for each of its parts, because no kernel can be built for this GPU: %s",
                first_line(error),
            )
        _reasons[kind if type(error).__module__.startswith("triton") else _EVERY_KIND] = str(error)
        return plain()


_EVERY_KIND = ""
_reasons: dict[str, str] = {}  # why kernels of a kind cannot be built in this process


def blocks_on_device(
    tensor: Tensor, chosen: BlockFormat, rule: ScaleRule, rounding: RoundingMode, seed: int, largest: float | None,
    plain: Callable[[], Tensor],
) -> Tensor:  # fmt: skip
    """Round blocks along the last axis of a tensor on a CUDA device by one kernel; by `plain` where there is none."""

    def kernel() -> Tensor:
        from precgui.engine.quantize import triton_blocks

        return triton_blocks.rounded_blocks(tensor, chosen, rule, rounding, seed, largest)

    padded = tensor.numel() // max(tensor.shape[-1], 1) * (tensor.shape[-1] + chosen.block)  # or less
    if tensor.dtype == torch.float64 or (rounding == "stochastic" and padded > MOST_ELEMENTS):
        return plain()
    return built("blocks", kernel, plain, tensor.device)


def failures() -> tuple[str, ...]:
    """Why no kernel can be built in this process, as the compilers said; empty as long as none has failed."""
    return tuple(_reasons.values())
