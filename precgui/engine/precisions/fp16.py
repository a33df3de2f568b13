"""FP16 under autocast and FP16 throughout, with loss scaling; emulated on CPUs, whose own FP16 kernels are slow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from precgui.config.doubts import doubts
from precgui.engine.emulation.labels import ATTENTION
from precgui.engine.emulation.layers import MatmulArithmetic, emulate_products, layers
from precgui.engine.emulation.operands import TorchCast
from precgui.engine.emulation.recurrent import emulate_recurrent, recurrent_layers
from precgui.engine.precisions import fp32_modules
from precgui.engine.precisions.amp import Autocast
from precgui.engine.precisions.pure import TrueHalf
from precgui.sentences import counted

if TYPE_CHECKING:
    from precgui.config import RunConfig

_PRODUCTS: frozenset[Callable[..., Any]] = frozenset(
    {
        torch.nn.functional.scaled_dot_product_attention,
        torch.matmul,
        torch.Tensor.matmul,
        torch.Tensor.__matmul__,
        torch.bmm,
        torch.Tensor.bmm,
        torch.baddbmm,
        torch.einsum,
    }
)


class Fp16ProductMode(TorchFunctionMode):
    """While entered, products that would run in FP16 are emulated: all under autocast, else those of FP16 tensors.

    For products outside of layers (attention, matmul) on a CPU, whose own FP16 kernels are references of no speed.
    Operands are rounded to FP16 and multiplied in FP32, the result is rounded to FP16; gradients are rounded by the
    same casts on their way back.
    """

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _PRODUCTS or not _would_be_half([*args, *kwargs.values()]):
            return func(*args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            rounded = func(*map(_rounded, args), **{key: _rounded(value) for key, value in kwargs.items()})
            return rounded.half()


def _would_be_half(values: list[Any]) -> bool:
    if torch.is_autocast_enabled("cpu"):
        return True
    return any(isinstance(value, Tensor) and value.dtype is torch.float16 for value in values)


def _rounded(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.half().float()
    if isinstance(value, list | tuple):
        return type(value)(map(_rounded, value))
    return value


class FP16Amp(Autocast):
    dtype = torch.float16
    scaling = "dynamic"

    @contextlib.contextmanager
    def forward_context(self) -> Iterator[None]:
        with super().forward_context(), half_products(self.device):
            yield

    def _convert(self, model: nn.Module) -> nn.Module:
        if self.device.type == "cpu":
            self.labels, note = emulate_fp16(model, self.fp32_modules)
            self.notes.append(note)
        return super()._convert(model)


class _FP16Scaler(torch.amp.GradScaler):
    """A scaler that also divides FP16 gradients; torch's own refuses them, because small ones are lost by it."""

    def _unscale_grads_(self, optimizer: Any, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool) -> Any:
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)


class FP16Pure(TrueHalf):
    storage = torch.float16
    scaling = "dynamic"

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.notes += doubts(config)

    def _convert(self, model: nn.Module) -> nn.Module:
        if self.device.type == "cpu":
            self.labels, note = emulate_fp16(model, self.fp32_modules)
            self.notes.append(note)
        return super()._convert(model)

    def forward_context(self) -> contextlib.AbstractContextManager[object]:
        return half_products(self.device)

    def _scaler_type(self) -> type[torch.amp.GradScaler]:
        return _FP16Scaler


def half_products(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """The context for FP16 products outside of layers: on a CPU they are emulated, whose own kernels are slow."""
    return Fp16ProductMode() if device.type == "cpu" else contextlib.nullcontext()


def emulate_fp16(model: nn.Module, kept: dict[str, nn.Module]) -> tuple[dict[str, str], str]:
    """FP16 layers for a CPU, whose weight gradients of FP16 convolutions run a reference kernel (about 150x FP32).

    Returns the labels of the layers and a note on them.
    """
    to_fp16 = TorchCast(torch.float16)
    products = MatmulArithmetic("fp16", to_fp16, to_fp16, to_fp16, result=to_fp16, bias=to_fp16)
    left_out = fp32_modules.members(kept)
    labels = emulate_products(layers(model, left_out), lambda _: products)
    labels |= emulate_recurrent(recurrent_layers(model, left_out), lambda _: products)
    return labels | {ATTENTION: "fp16"}, counted(
        "FP16 is emulated in {count} layer: CPUs have no fast FP16 training kernels, so operands and results are "
        "rounded to FP16 and multiplied in FP32; speed says nothing about FP16 hardware",
        "FP16 is emulated in {count} layers: CPUs have no fast FP16 training kernels, so operands and results are "
        "rounded to FP16 and multiplied in FP32; speed says nothing about FP16 hardware",
        len(labels),
    )
