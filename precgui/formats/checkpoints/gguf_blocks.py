"""The block types of GGUF: bytes to FP32 numbers, with the arithmetic of ggml, so that the results are equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precgui.formats.checkpoints.tensor import Singles, code_values, nibbles

Bytes = NDArray[np.uint8]
_IQ4 = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.float32)


@dataclass(frozen=True)
class BlockType:
    """A type of ggml: numbers and bytes of a block. `decode` takes rows of bytes and gives rows of numbers."""

    name: str
    numbers: int
    nbytes: int
    decode: Callable[[Bytes], Singles] | None = None


def _half(blocks: Bytes, at: int) -> Singles:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _halves(packed: Bytes, group: int) -> Bytes:
    """Codes of 4 bits; in each group of bytes all low halves come before all high ones."""
    parts = packed.reshape(len(packed), -1, 1, group)
    codes: Bytes = ((parts >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)) & np.uint8(0x0F)).reshape(len(packed), -1)
    return codes


def _bits(packed: Bytes) -> Bytes:
    return np.unpackbits(packed, axis=1, bitorder="little")


def _q4_0(blocks: Bytes) -> Singles:
    return _half(blocks, 0) * (_halves(blocks[:, 2:], 16).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Singles:
    return _half(blocks, 0) * _halves(blocks[:, 4:], 16).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Singles:
    codes = _halves(blocks[:, 6:], 16) | (_bits(blocks[:, 2:6]) << 4)
    return _half(blocks, 0) * (codes.astype(np.float32) - 16)


def _q5_1(blocks: Bytes) -> Singles:
    codes = _halves(blocks[:, 8:], 16) | (_bits(blocks[:, 4:8]) << 4)
    return _half(blocks, 0) * codes.astype(np.float32) + _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Singles:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _grouped(codes: NDArray[Any], scale: Singles, offset: Singles | float = 0.0) -> Singles:
    """Codes times the scale of their group, less its offset."""
    parts = codes.reshape(*scale.shape, -1).astype(np.float32)
    shift = offset if isinstance(offset, float) else offset[..., None]
    values: Singles = scale[..., None] * parts - shift
    return values.reshape(len(codes), -1)


def _quarters(packed: Bytes) -> Bytes:
    """Codes of 2 bits, of each 32 bytes first all lowest ones."""
    parts = packed.reshape(len(packed), -1, 1, 32)
    codes: Bytes = ((parts >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)) & np.uint8(3)).reshape(
        len(packed), -1
    )
    return codes


def _q2_k(blocks: Bytes) -> Singles:
    scales, codes = blocks[:, :16], _quarters(blocks[:, 16:80])
    low = _half(blocks, 82) * (scales >> 4).astype(np.float32)
    return _grouped(codes, _half(blocks, 80) * (scales & 0x0F).astype(np.float32), low)


def _q3_k(blocks: Bytes) -> Singles:
    packed = blocks[:, 96:108]
    low = np.concatenate([packed[:, :8] & 0x0F, packed[:, :8] >> 4], 1)
    high = (packed[:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 4, 1)) & 3
    scales = (low | (high.reshape(-1, 16) << 4)).astype(np.float32) - 32
    top = ((blocks[:, None, :32] >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)) & 1).reshape(-1, 256)
    codes = _quarters(blocks[:, 32:96]).astype(np.float32) - np.where(top, np.float32(0), np.float32(4))
    return _grouped(codes, _half(blocks, 108) * scales)


def _scales_and_lows(packed: Bytes) -> tuple[Singles, Singles]:
    """The 8 scales and 8 offsets of 6 bits of Q4_K and Q5_K."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 0x3F, (third & 0x0F) | ((first >> 2) & 0x30)], 1)
    lows = np.concatenate([second & 0x3F, (third >> 4) | ((second >> 2) & 0x30)], 1)
    return scales.astype(np.float32), lows.astype(np.float32)


def _q4_k(blocks: Bytes) -> Singles:
    scales, lows = _scales_and_lows(blocks[:, 4:16])
    return _grouped(_halves(blocks[:, 16:], 32), _half(blocks, 0) * scales, _half(blocks, 2) * lows)


def _q5_k(blocks: Bytes) -> Singles:
    scales, lows = _scales_and_lows(blocks[:, 4:16])
    top = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)) & 1
    codes = _halves(blocks[:, 48:], 32) | (top.reshape(-1, 256) << 4)
    return _grouped(codes, _half(blocks, 0) * scales, _half(blocks, 2) * lows)


def _q6_k(blocks: Bytes) -> Singles:
    codes = _halves(blocks[:, :128], 64) | (_quarters(blocks[:, 128:192]) << 4)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _grouped(codes.astype(np.float32) - 32, _half(blocks, 208) * scales)


def _iq4_nl(blocks: Bytes) -> Singles:
    return _half(blocks, 0) * _IQ4[_halves(blocks[:, 2:], 16)]


def _iq4_xs(blocks: Bytes) -> Singles:
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)
    scales = nibbles(blocks[:, 4:8]) | ((high & 3).astype(np.uint8) << 4)
    return _grouped(_IQ4[_halves(blocks[:, 8:], 16)], _half(blocks, 0) * (scales.astype(np.float32) - 32))


def _mxfp4(blocks: Bytes) -> Singles:
    return code_values("e8m0")[blocks[:, :1]] * code_values("e2m1")[_halves(blocks[:, 1:], 16)]


def _nvfp4(blocks: Bytes) -> Singles:
    scales = code_values("e4m3fn")[blocks[:, :4] & 0x7F]
    return _grouped(
        code_values("e2m1")[_halves(blocks[:, 4:], 8)], np.where(blocks[:, :4] == 0x7F, np.float32(0), scales)
    )


# By the number that stands in the file. Types without `decode` are listed and not read.
BLOCK_TYPES = {
    2: BlockType("Q4_0", 32, 18, _q4_0), 3: BlockType("Q4_1", 32, 20, _q4_1), 6: BlockType("Q5_0", 32, 22, _q5_0),
    7: BlockType("Q5_1", 32, 24, _q5_1), 8: BlockType("Q8_0", 32, 34, _q8_0), 9: BlockType("Q8_1", 32, 40),
    10: BlockType("Q2_K", 256, 84, _q2_k), 11: BlockType("Q3_K", 256, 110, _q3_k),
    12: BlockType("Q4_K", 256, 144, _q4_k), 13: BlockType("Q5_K", 256, 176, _q5_k),
    14: BlockType("Q6_K", 256, 210, _q6_k), 15: BlockType("Q8_K", 256, 292), 16: BlockType("IQ2_XXS", 256, 66),
    17: BlockType("IQ2_XS", 256, 74), 18: BlockType("IQ3_XXS", 256, 98), 19: BlockType("IQ1_S", 256, 50),
    20: BlockType("IQ4_NL", 32, 18, _iq4_nl), 21: BlockType("IQ3_S", 256, 110), 22: BlockType("IQ2_S", 256, 82),
    23: BlockType("IQ4_XS", 256, 136, _iq4_xs), 29: BlockType("IQ1_M", 256, 56), 34: BlockType("TQ1_0", 256, 54),
    35: BlockType("TQ2_0", 256, 66), 39: BlockType("MXFP4", 32, 17, _mxfp4),
    40: BlockType("NVFP4", 64, 36, _nvfp4), 41: BlockType("Q1_0", 128, 18),
}  # fmt: skip
