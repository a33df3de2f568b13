"""Weights as packed codes of a number format: the code books are those of `formats.registry`."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from precgui.engine.quantize.elements import quantize
from precgui.formats.arrays import decode_table
from precgui.formats.model import Format
from precgui.formats.registry import get

_BYTE = 8


class CodeTable:
    """The codes of one format of at most 8 bits, in a tensor and packed into bytes without gaps."""

    def __init__(self, name: str) -> None:
        self.format: Format = get(name)
        self.bits: int = self.format.bits
        table = np.zeros(1 << self.bits)
        values = decode_table(self.format)
        table[: len(values)] = values
        self.values = torch.from_numpy(table).float()
        finite = np.flatnonzero(np.isfinite(values) & ~(np.signbit(values) & (values == 0)))
        self._order = torch.from_numpy(finite[np.argsort(values[finite], kind="stable")])
        self._sorted = self.values[self._order].contiguous()
        self.largest = float(np.abs(values[np.isfinite(values)]).max())
        # scaled by the largest magnitude that has both signs: int4 has -8, but no 8
        self.largest = min(float(self._sorted[-1]), -float(self._sorted[0])) or self.largest
        self.lookup = self._lookup()

    def encode(self, scaled: Tensor) -> Tensor:
        """uint8 codes of values that are already divided by their scales; rounded to nearest even, saturated."""
        rounded = quantize(scaled.float(), self.format, saturate=True)
        places = torch.bucketize(rounded, self._sorted).clamp_max_(len(self._sorted) - 1)
        return self._order[places].to(torch.uint8)

    def pack(self, codes: Tensor) -> Tensor:
        """Bytes with `bits` bits a code. The number of codes is a multiple of 8."""
        if _BYTE % self.bits == 0:
            parts = codes.view(-1, _BYTE // self.bits)
            shifts = torch.arange(0, _BYTE, self.bits, dtype=torch.int32)
        else:  # eight codes in `bits` bytes, a byte for each bit of theirs
            planes = torch.arange(self.bits, dtype=torch.int32)
            parts = (codes.view(-1, 1, _BYTE).int() >> planes[:, None]) & 1
            shifts = torch.arange(_BYTE, dtype=torch.int32)
        return (parts.int() << shifts).sum(-1).to(torch.uint8).flatten()

    def unpack(self, packed: Tensor, lookup: Tensor) -> Tensor:
        """The values of all codes, in FP32; `lookup` is the table on the device of the bytes."""
        if _BYTE % self.bits == 0:
            return torch.nn.functional.embedding(packed.int(), lookup).flatten()
        shifts = torch.arange(_BYTE, dtype=torch.int32, device=packed.device)
        planes = torch.arange(self.bits, dtype=torch.int32, device=packed.device)
        bits = (packed.view(-1, self.bits, 1).int() >> shifts) & 1
        codes = (bits << planes[:, None]).sum(1, dtype=torch.int32)
        return torch.nn.functional.embedding(codes.flatten(), lookup).flatten()

    def _lookup(self) -> Tensor:
        """The values that a byte stands for [256, codes a byte], or the value of each code [codes, 1]."""
        if _BYTE % self.bits:
            return self.values[:, None].clone()
        shifts = torch.arange(0, _BYTE, self.bits, dtype=torch.int32)
        codes = (torch.arange(256, dtype=torch.int32)[:, None] >> shifts) & ((1 << self.bits) - 1)
        return self.values[codes.long()].contiguous()


@cache
def code_table(name: str) -> CodeTable:
    """The table of a format of at most 8 bits. Raises UnknownFormatError."""
    return CodeTable(name)
