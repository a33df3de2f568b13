"""Rounding on accelerators by the torch form, fused where torch.compile can."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from precgui.engine.quantize.torch_form import MOST_ELEMENTS, called, rounded
from precgui.engine.torch_private import dynamo_limits
from precgui.formats.arrays import quantize_array
from precgui.formats.blocks import ScaleRule
from precgui.formats.model import BlockFormat, Format
from precgui.formats.rounding import CastPolicy, RoundingMode
from precgui.process.spawn import safe_path
from precgui.sentences import first_line

VARIANTS = 64  # methods, roundings and overflow policies are compiled apart; torch gives up after 8 by default


def rounded_on_device(source: Tensor, fmt: Format, cast_policy: CastPolicy, seed: int) -> Tensor:
    """Round a contiguous float32 or float64 tensor where it is; rare combinations take the way over the CPU."""
    result = rounded(source, fmt, cast_policy, seed, fused if source.device.type == "cuda" else called)
    return _over_cpu(source, fmt, cast_policy, seed) if result is None else result


def _over_cpu(source: Tensor, fmt: Format, cast_policy: CastPolicy, seed: int) -> Tensor:
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = source.cpu().numpy()
        rounded = quantize_array(numbers, fmt, cast_policy, seed)
    return torch.from_numpy(np.where(np.isnan(numbers), numbers, rounded)).to(source)


def fused(function: Callable[..., Tensor], *args: Any) -> Tensor:
    """The function as one kernel where this machine can build one, operation by operation elsewhere."""
    return built(function, lambda: _compiled(function)(*args), lambda: function(*args), args[0].device)


def built(kind: Any, kernel: Callable[[], Tensor], plain: Callable[[], Tensor], device: torch.device) -> Tensor:
    """The result of a kernel that is compiled at its first use, or of `plain` where this machine can build none.

    Each new kind of arguments is compiled at its first use, so each call may be the first that fails: no Triton, no
    compiler for its launcher, no headers of Python, a cache that may not be executed. The first failure is logged and
    ends the compiling.
    """
    if _reasons:
        return plain()
    try:
        # Inductor starts processes of Python at first; kernels are launched on the current device.
        with nullcontext() if kind in _called_once else safe_path(), torch.cuda.device(device):
            result = kernel()
        _called_once.add(kind)
        return result
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001  # of compilers, linkers and loaders, which know no common class
        _reasons.append(str(error))
        logging.getLogger(__name__).warning(
            "rounding takes an operation for each of its parts, because no kernel can be built for this GPU: %s",
            first_line(error),
        )
        return plain()


_reasons: list[str] = []  # why kernels cannot be built in this process
_called_once: set[Any] = set()


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
    return tuple(_reasons)


@cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    limits = dynamo_limits()
    limits.recompile_limit = max(limits.recompile_limit, VARIANTS)
    return torch.compile(function, dynamic=True)
