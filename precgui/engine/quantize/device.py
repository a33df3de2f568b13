"""Rounding on accelerators by the torch form, fused where torch.compile can."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor

from precgui.engine.quantize.plan import SINGLE, make_plan
from precgui.engine.quantize.torch_form import round_tensor, rounded
from precgui.engine.torch_private import dynamo_limits
from precgui.formats.arrays import quantize_array
from precgui.formats.model import FloatFormat, Format
from precgui.formats.rounding import CastPolicy
from precgui.spawn import safe_path

VARIANTS = 64  # ways, roundings and overflow policies are compiled apart; torch gives up after 8 by default


def rounded_on_device(source: Tensor, fmt: Format, convention: CastPolicy, seed: int) -> Tensor:
    """Round a contiguous float32 or float64 tensor where it is; rare combinations take the way over the CPU."""
    result = rounded(source, fmt, convention, seed, fused(source.device.type))
    return _over_cpu(source, fmt, convention, seed) if result is None else result


def _over_cpu(source: Tensor, fmt: Format, convention: CastPolicy, seed: int) -> Tensor:
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = quantize_array(source.cpu().numpy(), fmt, convention, seed)
    return torch.from_numpy(rounded).to(source)


@cache
def fused(device: str) -> Callable[..., Tensor]:
    """`round_tensor`, as one kernel where torch can build one for the device, operation by operation elsewhere."""
    if device != "cuda" or not torch.cuda.is_available():
        return round_tensor
    limits = dynamo_limits()
    limits.recompile_limit = max(limits.recompile_limit, VARIANTS)
    compiled = torch.compile(round_tensor, dynamic=True)
    try:
        plan = make_plan(_probe_format(), CastPolicy(), SINGLE)
        with safe_path():  # Inductor starts processes of Python
            compiled(torch.ones(1024, device=device), plan, "nearest_even", 0, 0)
    except (RuntimeError, ImportError, OSError) as error:  # no Triton, or no compiler for its launcher
        logging.getLogger(__name__).info("rounding is not fused on this machine: %s", error)
        return round_tensor
    return compiled


def _probe_format() -> FloatFormat:
    return FloatFormat("e4m3", "", 4, 3, 7)
