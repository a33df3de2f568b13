"""Linear layers whose frozen weight is held in another format and unpacked for each product."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from precgui.engine.adapters.packed_weight import PackedWeight, as_unpacked_copy
from precgui.engine.errors import EngineError
from precgui.sentences import L_, Sentence

if TYPE_CHECKING:
    from precgui.config.adapters import BaseConfig

_STORED = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_AUTO_KEPT_BYTES = 256 << 20  # of unpacked weights of a model from forward to backward


class _UnpackedProduct(torch.autograd.Function):
    """x W^T; W is unpacked again in the backward pass, or kept from the forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, source: PackedLinear | StoredLinear, keep: bool) -> Tensor:
        weight = source.dequantised().to(x.dtype)
        ctx.source = source
        if keep and ctx.needs_input_grad[0]:
            ctx.save_for_backward(weight)
        return torch.matmul(x, weight.t())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad = grads[0]
        kept = ctx.saved_tensors  # read once: inside of a checkpoint a second reading raises
        weight = kept[0] if kept else ctx.source.dequantised().to(grad.dtype)
        return torch.matmul(grad, weight), None, None


class PackedLinear(nn.Module):
    """x W^T + b with W as codes; the gradient of x is that of the unpacked matrix, W and b have none."""

    def __init__(self, layer: nn.Linear, base: BaseConfig, *, keep: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.packed = PackedWeight(layer.weight, base.format, base.block, double_quant=base.double_quant)
        self.bias = layer.bias
        self.keep = keep

    def forward(self, input: Tensor) -> Tensor:
        return _product(input, self, self.bias, keep=self.keep)

    def dequantised(self) -> Tensor:
        """The weight in FP32 [outputs, inputs]."""
        return self.packed.unpack()


class StoredLinear(nn.Module):
    """x W^T + b with W in fp32, bf16 or fp16; a narrow W is widened for each product."""

    weight: Tensor

    def __init__(self, layer: nn.Linear, base: BaseConfig, *, keep: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.register_buffer("weight", layer.weight.detach().to(_STORED[base.format]).clone())
        self.bias = layer.bias
        self.keep = keep

    def forward(self, input: Tensor) -> Tensor:
        if self.weight.dtype is torch.float32:
            return nn.functional.linear(input, self.weight, self.bias)
        return _product(input, self, self.bias, keep=self.keep)

    def dequantised(self) -> Tensor:
        """The weight in FP32 [outputs, inputs]; a new tensor where it is narrower."""
        with torch.no_grad(), as_unpacked_copy():
            return self.weight.float()


def _product(input: Tensor, source: PackedLinear | StoredLinear, bias: Tensor | None, *, keep: bool) -> Tensor:
    """The product in the type of autocast where that is on, else in that of the input."""
    kind = input.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else input.dtype
    with torch.autocast(kind, enabled=False):
        result: Tensor = _UnpackedProduct.apply(input.to(dtype), source, keep)
        return result if bias is None else result + bias.to(dtype)


class TorchaoLinear(nn.Module):
    """The base in torchao's NF4, with its double quantisation of the scales."""

    def __init__(self, layer: nn.Linear, base: BaseConfig) -> None:
        super().__init__()
        to_nf4, self._linear = _torchao_nf4()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight = to_nf4(layer.weight.detach().clone(), base.block, 256)
        self.bias = layer.bias

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.weight = fn(self.weight)
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def forward(self, input: Tensor) -> Tensor:
        result: Tensor = self._linear(input, self.weight)
        return result if self.bias is None else result + self.bias.to(result.dtype)

    def dequantised(self) -> Tensor:
        return cast(Tensor, self.weight.get_original_weight()).float()


class BitsandbytesLinear(nn.Module):
    """The base in bitsandbytes' Linear4bit."""

    def __init__(self, layer: nn.Linear, base: BaseConfig) -> None:
        super().__init__()
        self._library: Any = importlib.import_module("bitsandbytes")
        self.in_features, self.out_features = layer.in_features, layer.out_features
        inner = self._library.nn.Linear4bit(
            layer.in_features, layer.out_features, bias=False, compute_dtype=torch.float32, quant_type="nf4",
            compress_statistics=base.double_quant,
        )  # fmt: skip
        inner.load_state_dict({"weight": layer.weight.detach().clone()})
        self.inner = inner.to(layer.weight.device)  # packs
        self.inner.requires_grad_(False)
        self.bias = layer.bias

    def forward(self, input: Tensor) -> Tensor:
        result: Tensor = self.inner(input)
        return result if self.bias is None else result + self.bias.to(result.dtype)

    def dequantised(self) -> Tensor:
        weight: Any = self.inner.weight
        values: Tensor = self._library.functional.dequantize_4bit(weight.data, weight.quant_state)
        return values.float()


def _torchao_nf4() -> tuple[Any, Any]:
    """`to_nf4` and `linear_nf4` where torchao 0.18 has them, or at their place of before."""
    try:
        from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import linear_nf4, to_nf4
    except ImportError:
        from torchao.dtypes.nf4tensor import linear_nf4, to_nf4
    return to_nf4, linear_nf4


def choose_backend(base: BaseConfig, device: torch.device) -> str:
    """The back end that runs. Raises EngineError for one that is not installed or does not have the format."""
    there = {name: importlib.util.find_spec(name) is not None for name in ("bitsandbytes", "torchao")}
    if base.backend == "auto":
        others = [name for name, is_there in there.items() if is_there]
        return others[0] if device.type == "cuda" and base.format == "nf4" and others else "own"
    if base.backend == "own":
        return "own"
    if not there[base.backend]:
        raise EngineError(
            Sentence("base.backend = {backend}: it is not installed; pip install it, or set own", backend=base.backend)
        )
    if base.format != "nf4":
        raise EngineError(
            Sentence(
                "base.backend = {backend} holds nf4 only, not {format}; set own",
                backend=base.backend,
                format=base.format,
            )
        )
    if base.backend == "torchao" and not base.double_quant:
        raise EngineError(L_("base.backend = torchao holds its scales in 8 bits always; set base.double_quant = true"))
    return base.backend


def freeze(layer: nn.Linear, base: BaseConfig, backend: str, *, keep: bool) -> nn.Module:
    """The frozen form of a layer."""
    if base.format in _STORED:
        return StoredLinear(layer, base, keep=keep)
    if backend == "torchao":
        return TorchaoLinear(layer, base)
    return BitsandbytesLinear(layer, base) if backend == "bitsandbytes" else PackedLinear(layer, base, keep=keep)


def keeps_unpacked(base: BaseConfig, weights: int) -> bool:
    """Whether so many FP32 weights stay unpacked from forward to backward."""
    return base.keep_unpacked == "always" or (base.keep_unpacked == "auto" and 4 * weights <= _AUTO_KEPT_BYTES)
