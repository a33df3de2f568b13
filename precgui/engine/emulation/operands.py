"""How the operands of a product are rounded.

Each rounding is called with an FP32 tensor and the axis along which the product sums, and gives FP32 values.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from precgui.engine.quantize.blocks import quantize_blocks
from precgui.engine.quantize.elements import quantize

if TYPE_CHECKING:
    from precgui.formats.blocks import ScaleRule
    from precgui.formats.rounding import RoundingMode

TINY = 2.0**-110  # below it a factor would overflow


class OperandQuantizer(Protocol):
    """Rounds a tensor for a product that sums along `axis`; with `axis_free` the axis does not matter."""

    @property
    def axis_free(self) -> bool: ...

    def __call__(self, tensor: Tensor, axis: int) -> Tensor: ...


class Identity:
    """No rounding."""

    axis_free = True

    def __call__(self, tensor: Tensor, axis: int) -> Tensor:
        return tensor


@dataclass(frozen=True)
class TorchCast:
    """Rounded to nearest even by torch's own cast; overflow gives Inf where the format has it."""

    dtype: torch.dtype
    axis_free = True

    def __call__(self, tensor: Tensor, axis: int) -> Tensor:
        return tensor.to(self.dtype).to(torch.float32)


@dataclass
class BatchSeed:
    """Counts batches, so that a forward pass that is computed again rounds as it did the first time."""

    seed: int
    tick: int = 0

    def draw(self, place: str) -> int:
        """A seed for stochastic rounding that belongs to this batch and this place."""
        return (self.seed * 0x9E3779B1 + self.tick * 0x85EBCA6B + zlib.crc32(place.encode())) & (2**62 - 1)


@dataclass(frozen=True)
class RoundingSpec:
    """How values are rounded to a format, and where: the place and the batch give the seed."""

    mode: RoundingMode
    clock: BatchSeed
    place: str

    @property
    def seed(self) -> int | None:
        return self.clock.draw(self.place) if self.mode == "stochastic" else None


NEAREST_EVEN = RoundingSpec("nearest_even", BatchSeed(0), "")


@dataclass(frozen=True)
class FormatCast:
    """Each value on its own, in any format."""

    name: str
    rounding: RoundingSpec = NEAREST_EVEN
    axis_free = True

    def __call__(self, tensor: Tensor, axis: int) -> Tensor:
        return quantize(tensor, self.name, rounding=self.rounding.mode, seed=self.rounding.seed)


@dataclass(frozen=True)
class BlockCast:
    """Blocks along the summed axis share a scale (MX, NVFP4)."""

    name: str
    rounding: RoundingSpec
    rule: ScaleRule = "floor"
    axis_free = False

    def __call__(self, tensor: Tensor, axis: int) -> Tensor:
        mode, seed = self.rounding.mode, self.rounding.seed
        return quantize_blocks(tensor, self.name, rule=self.rule, rounding=mode, seed=seed, axis=axis)


class AmaxScale:
    """The factor that brings the largest value of a tensor to the largest value of a format.

    One factor for the tensor, or with `rowwise` one for each line along the summed axis. With `history` the largest
    value is that of so many batches before (delayed scaling; Micikevicius et al. 2022), so a growing tensor saturates.
    """

    def __init__(self, largest: float, clock: BatchSeed, *, rowwise: bool = False, history: int = 0) -> None:
        self.largest, self._clock, self.rowwise = largest, clock, rowwise
        self._length = history
        self._amax_history: deque[tuple[int, Tensor]] | None = deque(maxlen=history + 1) if history else None

    @property
    def is_delayed(self) -> bool:
        """Whether the factor follows the batches before, and asking for it counts as one."""
        return self._amax_history is not None

    @property
    def history(self) -> list[tuple[int, Tensor]]:
        """The largest values of the last batches, each with the number of its batch; empty without delayed scaling."""
        return list(self._amax_history or ())

    @history.setter
    def history(self, values: Iterable[tuple[int, Tensor]]) -> None:
        if self._amax_history is not None:
            self._amax_history.clear()
            self._amax_history.extend((int(tick), value) for tick, value in values)

    def __call__(self, tensor: Tensor, axis: int) -> Tensor:
        """The factor, shaped to multiply the tensor."""
        return self.factor(self.amax(tensor, axis))

    def factor(self, amax: Tensor) -> Tensor:
        """The factor for a largest value."""
        # A tensor of zeros keeps its zeros; Inf and NaN make the factor 0 or NaN and the tensor NaN.
        return torch.where(amax > 0, self.largest / amax.clamp_min(TINY), torch.where(amax == 0, 1.0, amax))

    def amax(self, tensor: Tensor, axis: int) -> Tensor:
        """The largest value to which the factor belongs, in its shape. With `history` this counts as a visit."""
        if tensor.is_cuda:  # one launch
            lines = {"dim": axis, "keepdim": True} if self.rowwise else {}
            amax: Tensor = torch.linalg.vector_norm(tensor, torch.inf, **lines)
        elif self.rowwise:
            amax = tensor.abs().amax(axis, keepdim=True)
        else:
            low, high = tensor.aminmax()
            amax = torch.maximum(-low, high)
        return amax if self._amax_history is None else self._delayed(self._amax_history, amax)

    def _delayed(self, visited: deque[tuple[int, Tensor]], amax: Tensor) -> Tensor:
        """The largest value of the batches before this one; of this one while there is none before it."""
        tick = self._clock.tick
        before = [value for when, value in visited if when != tick][-self._length :]
        if not torch.is_inference_mode_enabled():
            again = [value for when, value in visited if when == tick]
            if again:
                visited.pop()
            visited.append((tick, torch.stack([amax, *again]).amax(0)))
        return torch.stack(before).amax(0) if before else amax


@dataclass(frozen=True)
class ScaledCast:
    """Scaled to the range of a format, rounded, saturated and scaled back."""

    name: str
    rounding: RoundingSpec
    scale: AmaxScale

    @property
    def axis_free(self) -> bool:
        return not self.scale.rowwise

    def __call__(self, tensor: Tensor, axis: int) -> Tensor:
        factor = self.scale(tensor, axis)
        mode, seed = self.rounding.mode, self.rounding.seed
        return quantize(tensor * factor, self.name, rounding=mode, saturate=True, seed=seed).div_(factor)
