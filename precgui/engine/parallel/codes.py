"""Gradients as codes of 8 bits or fewer: blocks of values that share one FP32 scale, packed into bytes."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from precgui.engine.quantize.elements import quantize
from precgui.formats.model import CodeBook, IntFormat
from precgui.formats.registry import get

_NATIVE = {
    "e4m3fn": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
}
_SCALE_BYTES = 4
_TINY = 2.0**-126  # the least normal FP32 number


class BlockCodec:
    """Encodes FP32 values as bytes and back. The scale of a block brings its largest magnitude to the format's.

    A block with NaN or Inf decodes to NaN, so that a step that must be skipped is. Blocks of zeros stay zeros.
    """

    def __init__(self, name: str, block: int) -> None:
        self.format, self.block = get(name), block
        self.dtype = _NATIVE.get(self.format.name)
        self.is_integer = isinstance(self.format, IntFormat)
        bits = self.format.bits
        self.codes_per_byte = 8 // bits if 8 % bits == 0 else 1
        self.largest = self._largest()

    def _largest(self) -> float:
        """The largest magnitude of both signs, so that no scaled value overflows; of integers, in their steps."""
        if isinstance(self.format, IntFormat):
            return float(self.format.max_ordinal)
        return min(float(self._values[-1]), -float(self._values[0]))

    @cached_property
    def _values(self) -> Tensor:
        """All finite values of the format, ascending, FP32 [at most 256]."""
        fmt = self.format
        if isinstance(fmt, CodeBook):
            values = sorted({float(value) for value in fmt.values})
        else:
            values = sorted({float(fmt.value(n)) for n in range(fmt.min_ordinal, fmt.max_ordinal + 1)})
        assert len(values) <= 256 and all(a < b for a, b in pairwise(values))
        return torch.tensor(values, dtype=torch.float32)

    def padded_size(self, numel: int, parts: int) -> int:
        """The number of values that `parts` messages of whole blocks hold."""
        unit = self.block * parts * self.codes_per_byte
        return -(-numel // unit) * unit

    def message_bytes(self, values: int) -> int:
        """Bytes of so many values, a multiple of the block, with their scales."""
        return values // self.codes_per_byte + values // self.block * _SCALE_BYTES

    def encode(self, values: Tensor) -> Tensor:
        """FP32 [rows, n], n a multiple of the block, as bytes [rows, message_bytes(n)]: codes, then scales."""
        blocks = values.view(values.shape[0], -1, self.block)
        scale = self._scale(blocks)
        codes = self._codes(blocks / torch.where(scale == 0, 1.0, scale)[..., None]).view(values.shape[0], -1)
        return torch.cat((self._packed(codes), scale.view(torch.uint8)), 1)

    def decode(self, message: Tensor) -> Tensor:
        """Bytes [rows, m] as FP32 [rows, n]."""
        rows, size = message.shape
        per_block = self.block // self.codes_per_byte + _SCALE_BYTES
        blocks = size // per_block
        codes = self._unpacked(message[:, : size - blocks * _SCALE_BYTES])
        scale = message[:, size - blocks * _SCALE_BYTES :].contiguous().view(torch.float32)
        return (self._real(codes).view(rows, blocks, self.block) * scale[..., None]).view(rows, -1)

    def _scale(self, blocks: Tensor) -> Tensor:
        """One of each block, [rows, blocks]; NaN and Inf of the block are in it, and 0 stands for a block of zeros.

        A format without a zero has signs alone: its scale is the mean magnitude (Seide et al. 2014).
        """
        if not self.is_integer and self.dtype is None and not bool((self._values == 0).any()):
            return blocks.abs().mean(2)
        peak = blocks.abs().amax(2)
        return torch.where(peak == 0, 0.0, (peak / self.largest).clamp_min(_TINY))

    def _codes(self, scaled: Tensor) -> Tensor:
        """Scaled values as one code each, uint8. NaN may become any code: the scale of its block is not finite."""
        if self.dtype is not None:
            return scaled.to(self.dtype).view(torch.uint8)
        if self.is_integer:
            rounded = scaled.nan_to_num(0.0).round().clamp(-self.largest, self.largest)
            return (rounded + self.largest).to(torch.uint8)
        table = self._values.to(scaled.device)
        rounded = quantize(scaled.nan_to_num(0.0), self.format, saturate=True)
        return torch.searchsorted(table, rounded.contiguous()).clamp_max(len(table) - 1).to(torch.uint8)

    def _real(self, codes: Tensor) -> Tensor:
        if self.dtype is not None:
            return codes.contiguous().view(self.dtype).float()
        if self.is_integer:
            return codes.float() - self.largest
        return self._values.to(codes.device)[codes.int()]

    def _packed(self, codes: Tensor) -> Tensor:
        if self.codes_per_byte == 1:
            return codes
        parts = codes.view(codes.shape[0], -1, self.codes_per_byte)
        packed = parts[..., 0].clone()
        for place in range(1, self.codes_per_byte):
            packed |= parts[..., place] << (place * self.format.bits)
        return packed

    def _unpacked(self, packed: Tensor) -> Tensor:
        if self.codes_per_byte == 1:
            return packed
        mask = (1 << self.format.bits) - 1
        parts = [packed >> (place * self.format.bits) & mask for place in range(self.codes_per_byte)]
        return torch.stack(parts, 2).view(packed.shape[0], -1)
