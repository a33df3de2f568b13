"""The pieces of work that the bench times, for each format."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from precgui.engine.bench.timing import Work
from precgui.engine.torch_private import int_mm, scaled_mm

FLOATS: dict[str, torch.dtype] = {
    "fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16,
    "fp16": torch.float16,
}  # fmt: skip
FORMATS = (*FLOATS, "e4m3fn", "int8")
_E4M3_MAX = 448.0
CONVERSIONS = (
    ("fp32", torch.float32, "bf16", torch.bfloat16), ("fp32", torch.float32, "fp16", torch.float16),
    ("bf16", torch.bfloat16, "fp32", torch.float32), ("fp32", torch.float32, "e4m3fn", torch.float8_e4m3fn),
    ("e4m3fn", torch.float8_e4m3fn, "fp32", torch.float32), ("fp32", torch.float32, "int8", torch.int8),
)  # fmt: skip


def normal(size: int, seed: int) -> Tensor:
    """size x size standard normal values in FP32 on the CPU, the same every time."""
    return torch.randn(size, size, generator=torch.Generator().manual_seed(seed))


def gemm(fmt: str, size: int, device: torch.device) -> Callable[[], Tensor]:
    """A size^3 matrix product in `fmt`. Operands are standard normal; INT8 and FP8 ones are scaled to their range."""
    a, b = normal(size, 1), normal(size, 2)
    if fmt in FLOATS:
        x, y = a.to(device, FLOATS[fmt]), b.to(device, FLOATS[fmt])
        return lambda: torch.mm(x, y)
    if fmt == "int8":
        (x, _), (y, _) = _to_int8(a.to(device)), _to_int8(b.to(device))
        y = by_columns(y) if device.type == "cuda" else y
        return lambda: int_mm(x, y)
    x, x_scale = _to_e4m3(a.to(device))
    y, y_scale = _to_e4m3(b.to(device))
    y = by_columns(y)
    fast = device.type == "cuda"  # the tensor core's shorter accumulator, as forward products of a run take it
    return lambda: scaled_mm(x, y, x_scale, y_scale, out_dtype=torch.bfloat16, use_fast_accum=fast)


def by_columns(matrix: Tensor) -> Tensor:
    """A matrix stored column by column, as tensor cores need the second operand."""
    return matrix.t().contiguous().t()


def product(fmt: str, size: int, device: torch.device) -> Tensor:
    """The product of a format's operands in FP64 on the CPU, with their scales undone."""
    result = gemm(fmt, size, device)().cpu().double()  # in turn: Metal has no FP64
    if fmt == "int8":
        result *= (_to_int8(normal(size, 1))[1] * _to_int8(normal(size, 2))[1]).double()
    return result


def _to_int8(values: Tensor) -> tuple[Tensor, Tensor]:
    scale = values.abs().max() / 127
    return (values / scale).round().to(torch.int8), scale.cpu()


def _to_e4m3(values: Tensor) -> tuple[Tensor, Tensor]:
    scale = values.abs().max() / _E4M3_MAX
    return (values / scale).to(torch.float8_e4m3fn), scale.reshape(())


def copy(count_bytes: int, device: torch.device) -> Work:
    """Copy one buffer to another."""
    source = torch.zeros(count_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def convert(source: torch.dtype, target: torch.dtype, count: int, device: torch.device) -> Work:
    """Convert `count` values from one format to another."""
    values = torch.ones(count, device=device).to(source)
    result = torch.empty(count, dtype=target, device=device)
    return lambda: result.copy_(values)


def convolution(fmt: str, device: torch.device, small: bool = False) -> tuple[Work, float]:
    """(forward and backward of a 3x3 convolution, its operations). 64 to 64 channels at 32x32, batch 32; on an
    accelerator 256 to 256 channels, batch 256."""
    large = (32, 64, 32) if device.type == "cpu" else (256, 256, 32)
    batch, channels, side = (4, 32, 16) if small else large
    dtype = FLOATS[fmt]
    layer = nn.Conv2d(channels, channels, 3, padding=1, device=device, dtype=dtype)
    x = torch.randn(batch, channels, side, side).to(device, dtype).requires_grad_()
    operations = 3 * 2.0 * batch * side * side * channels * channels * 9
    return lambda: layer(x).backward(x.detach()), operations


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return result


def attention(fmt: str, device: torch.device, small: bool = False) -> tuple[Work, float]:
    """(forward and backward of a causal attention block with its two linear layers, its operations)."""
    large = (4, 256, 512, 8) if device.type == "cpu" else (16, 1024, 1024, 16)
    batch, length, width, heads = (1, 64, 128, 4) if small else large
    dtype = FLOATS[fmt]
    block = _Attention(width, heads).to(device, dtype)
    x = torch.randn(batch, length, width).to(device, dtype).requires_grad_()
    operations = 3 * (2.0 * batch * length * width * 4 * width + 4.0 * batch * length * length * width)
    return lambda: block(x).backward(x.detach()), operations


BLOCKS: dict[str, Callable[[str, torch.device, bool], tuple[Work, float]]] = {
    "convolution": convolution,
    "attention": attention,
}
