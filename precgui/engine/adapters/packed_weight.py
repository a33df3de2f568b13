"""A frozen weight as packed codes and scales, unpacked for each product."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from precgui.engine.quantize.elements import quantize
from precgui.formats.arrays import decode_table
from precgui.formats.blocks import quantize_blocks_array
from precgui.formats.model import Format
from precgui.formats.registry import blocks, get

_SCALES_IN_GROUP = 256  # of scales in 8 bits, as in QLoRA (Dettmers et al. 2023)
_INT8_LARGEST = 127
_MX_BIAS = 127  # of e8m0
_BYTE = 8
_unpacking: list[bool] = []


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


def is_unpacking() -> bool:
    """Whether the tensors that are made now are an unpacked copy of a weight."""
    return bool(_unpacking)


@contextlib.contextmanager
def as_unpacked_copy() -> Iterator[None]:
    """Tensors that are made inside are an unpacked copy of a weight: a part of their own in the ledger."""
    _unpacking.append(True)
    try:
        yield
    finally:
        _unpacking.pop()


class PackedWeight(nn.Module):
    """A matrix [outputs, inputs] in a format of the registry of at most 8 bits; blocks run along the rows as stored.

    Element formats have an FP32 scale for each block, which brings its largest value to the largest of the format, or
    (`double_quant`) 8 bits for the scale's distance from the mean. The scale of a block of zeros is 0, with
    `double_quant` the mean of the others. Block formats (mx, nvfp4) have scales of their own.
    """

    codes: Tensor
    scales: Tensor
    lookup: Tensor
    factors: Tensor | None
    mean: Tensor | None

    def __init__(self, weight: Tensor, name: str, block: int, *, double_quant: bool) -> None:
        super().__init__()
        self.name, self.shape = name, tuple(weight.shape)
        self._own_scales = blocks().get(name)
        self.block = self._own_scales.block if self._own_scales else block
        self._element = self._own_scales.element if self._own_scales else name
        self.register_buffer("factors", None)
        self.register_buffer("mean", None)
        table = code_table(self._element)
        flat = weight.detach().float().flatten()
        values = nn.functional.pad(flat, (0, -flat.numel() % self.block)).view(-1, self.block)
        scaled, scales = self._scaled(values)
        self.register_buffer("codes", table.pack(table.encode(scaled).flatten()))
        self.register_buffer("lookup", table.lookup.clone(), persistent=False)
        if double_quant and self._own_scales is None:
            self._hold_in_8_bits(scales)
        else:
            self.register_buffer("scales", scales)

    def _scaled(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Values divided by the scale of their block [blocks, block], and the scales as they are held."""
        own = self._own_scales
        if own is None:
            scales = values.abs().amax(1) / code_table(self._element).largest
            return values / torch.where(scales > 0, scales, 1.0)[:, None], scales
        result = quantize_blocks_array(values.numpy(), self.name)
        factors = torch.from_numpy(result.scales).float()
        elements = torch.from_numpy(result.elements).float()
        if not own.two_level:
            return elements, (torch.log2(factors) + _MX_BIAS).round().to(torch.uint8)
        self.mean = torch.tensor(float(result.tensor_scale))
        local = factors / (result.tensor_scale or 1.0)  # a matrix of zeros has none
        return elements, local.to(torch.float8_e4m3fn).view(torch.uint8)

    def _hold_in_8_bits(self, scales: Tensor) -> None:
        in_use = scales > 0  # codes of a block of zeros are zero with any scale: it takes no part in mean and factors
        mean = torch.where(in_use, scales, 0.0).sum() / in_use.sum().clamp_min(1)
        offsets = torch.where(in_use, scales - mean, 0.0)
        groups = nn.functional.pad(offsets, (0, -len(scales) % _SCALES_IN_GROUP)).view(-1, _SCALES_IN_GROUP)
        factors = groups.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / _INT8_LARGEST
        held = (groups / factors[:, None]).round().clamp(-_INT8_LARGEST, _INT8_LARGEST).to(torch.int8)
        self.register_buffer("scales", held.flatten()[: len(scales)].clone())
        self.factors, self.mean = factors, mean

    def block_scales(self) -> Tensor:
        """The factor of each block, in FP32."""
        if self.factors is not None and self.mean is not None:
            spread = self.factors.repeat_interleave(_SCALES_IN_GROUP)[: len(self.scales)]
            return self.scales.float() * spread + self.mean
        if self._own_scales is None:
            return self.scales
        if self.mean is not None:
            return self.scales.view(torch.float8_e4m3fn).float() * self.mean
        return torch.exp2(self.scales.float() - _MX_BIAS)

    def unpack(self) -> Tensor:
        """The matrix in FP32; a new tensor each time."""
        with torch.no_grad(), as_unpacked_copy():
            values = code_table(self._element).unpack(self.codes, self.lookup)
            values = values.view(-1, self.block).mul_(self.block_scales()[:, None]).view(-1)
            return values[: math.prod(self.shape)].view(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of codes, scales and what belongs to them; without the table of the format."""
        held = (self.codes, self.scales, self.factors, self.mean)
        return sum(part.numel() * part.element_size() for part in held if part is not None)

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.size_bytes / math.prod(self.shape)
