"""The names of torch's dtypes: those of the formats (`bf16`) where they are one, else torch's own (`int64`)."""

from __future__ import annotations

import torch

DIGITS = {torch.bfloat16: 8, torch.float16: 11}  # significant bits of the formats in 16 bits
SHORT_DTYPES = tuple(DIGITS)
FLOAT8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_NAMES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "e4m3fn",
    torch.float8_e5m2: "e5m2",
    torch.float8_e4m3fnuz: "e4m3fnuz",
    torch.float8_e5m2fnuz: "e5m2fnuz",
}


def dtype_name(dtype: torch.dtype) -> str:
    return _NAMES.get(dtype) or str(dtype).removeprefix("torch.")
