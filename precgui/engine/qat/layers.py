"""Layers that compute in FP32 with weights and inputs as they come back from their integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from precgui.engine.qat.straight_through import (
    clipped_input,
    fake_input,
    fake_weight,
    highest,
    input_steps,
    learned_weight,
    weight_integers,
    weight_scale,
)
from precgui.engine.torch_private import BatchNormNd, ConvNd

_INPUT_BITS = {"int8": 8, "int4": 4, "fp32": None}
_MOMENTUM = 0.01  # of the observed range, as in torch's own moving-average observer


class Quantizer(nn.Module):
    """How one layer is quantised: its weights always, its inputs unless `input_bits` is None.

    The range of the inputs is a moving average of their minimum and maximum, taken once a batch while `observing`; with
    `learned_range` it is trained from there once it is used. Nothing is quantised before `active`.
    """

    low: Tensor
    high: Tensor
    batches: Tensor
    scale: nn.Parameter | None

    def __init__(
        self,
        weight: Tensor,
        bits: int,
        input_bits: int | None,
        *,
        per_channel: bool,
        learned: bool,
        learned_range: bool = False,
    ) -> None:
        super().__init__()
        self.bits, self.input_bits = bits, input_bits
        self.axes = tuple(range(1 if per_channel else 0, weight.dim()))
        self.learned_range = learned_range and input_bits is not None
        self.register_buffer("batches", torch.zeros((), device=weight.device))
        for name in ("low", "high"):
            bound = torch.zeros((), device=weight.device)
            if self.learned_range:
                self.register_parameter(name, nn.Parameter(bound))
            else:
                self.register_buffer(name, bound)
        # Esser et al. 2020 begin with this multiple of the mean size of the weights.
        begin = 2 * weight.detach().abs().mean(self.axes, keepdim=True) / highest(bits) ** 0.5
        self.scale = nn.Parameter(begin) if learned else None
        self.active, self.observing = True, True
        self.due, self.has_observed = True, False  # whether this batch is still to be observed; whether any was

    @property
    def label(self) -> str:
        inputs = "fp32" if self.input_bits is None else f"int{self.input_bits}"
        return f"int{self.bits}" if inputs == f"int{self.bits}" else f"int{self.bits} weights, {inputs} inputs"

    def weights(self, weight: Tensor) -> Tensor:
        if not self.active:
            return weight
        if self.scale is None:
            return fake_weight(weight, self.bits, self.axes)
        return learned_weight(weight, self.bits, self._positive_scale())

    def inputs(self, value: Tensor) -> Tensor:
        if self.input_bits is None:
            return value
        if self._must_observe():
            self._observe(value.detach())
        if not self.active:
            return value
        if self.learned_range and self.observing:
            return clipped_input(value, *self._bounds(), self.largest_input)
        return fake_input(value, *self.input_range(), self.largest_input)

    def _must_observe(self) -> bool:
        """A trained range begins with that of the batches before it is used, or of the first one."""
        trained = self.learned_range and self.active and self.has_observed
        return self.training and self.observing and self.due and not trained

    @property
    def largest_input(self) -> int:
        return (1 << (self.input_bits or 0)) - 1

    def input_range(self) -> tuple[Tensor, Tensor]:
        """Step and zero point, the integer that stands for 0, of the inputs."""
        low, high = self._bounds()
        return input_steps(low.detach(), high.detach(), self.largest_input)

    def _bounds(self) -> tuple[Tensor, Tensor]:
        """0 is always in the range, so that padding and ReLU are exact."""
        return self.low.clamp_max(0), self.high.clamp_min(0)

    def integers(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The weights as integers, and their steps, shaped to multiply them."""
        values = weight.detach()
        scale = weight_scale(values, self.bits, self.axes) if self.scale is None else self._positive_scale().detach()
        scale = scale.to(weight.device)
        return weight_integers(values, self.bits, scale), scale

    def _positive_scale(self) -> Tensor:
        assert self.scale is not None
        return self.scale.abs().clamp_min(1e-12)

    @torch.no_grad()
    def _observe(self, value: Tensor) -> None:
        self.due, self.has_observed = False, True
        low, high = value.aminmax()
        share = torch.where(self.batches > 0, _MOMENTUM, 1.0)
        self.low.lerp_(low.clamp_max(0), share)
        self.high.lerp_(high.clamp_min(0), share)
        self.batches.add_(1)


class FakeLinear(nn.Linear):
    quantizer: Quantizer

    def forward(self, input: Tensor) -> Tensor:
        q = self.quantizer
        return nn.functional.linear(q.inputs(input), q.weights(self.weight), self.bias)


class _FakeConvolution(ConvNd):
    quantizer: Quantizer

    def forward(self, input: Tensor) -> Tensor:
        q = self.quantizer
        return self._conv_forward(q.inputs(input), q.weights(self.weight), self.bias)


class FakeConv1d(_FakeConvolution, nn.Conv1d):
    pass


class FakeConv2d(_FakeConvolution, nn.Conv2d):
    pass


class FakeConv3d(_FakeConvolution, nn.Conv3d):
    pass


_FAKE: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: FakeLinear,
    nn.Conv1d: FakeConv1d,
    nn.Conv2d: FakeConv2d,
    nn.Conv3d: FakeConv3d,
}


def quantizable(model: nn.Module, left_out: set[nn.Module]) -> dict[str, nn.Module]:
    """The layers that can be quantised, by name, without those left out."""
    return {name: m for name, m in model.named_modules() if type(m) in _FAKE and m not in left_out}


def quantise(chosen: dict[str, nn.Module], quantizer: Callable[[str, Tensor], Quantizer]) -> dict[str, Quantizer]:
    """Turn each layer into its quantised form, in place, with the same parameters. Returns the quantizers."""
    created = {}
    for name, module in chosen.items():
        layer: Any = module
        created[name] = quantizer(name, layer.weight)
        layer.__class__ = _FAKE[type(module)]
        layer.quantizer = created[name]
    return created


@dataclass(frozen=True)
class LayerQuantization:
    """How the layers of a model are quantised; see the section `qat` of a config."""

    bits: int
    ends: str
    activations: str
    per_channel: bool
    learned_scales: bool
    learned_ranges: bool


def quantise_model(model: nn.Module, left_out: set[nn.Module], quantization: LayerQuantization) -> dict[str, Quantizer]:
    """Turn the layers of a model, in place, without those left out. Returns the quantizers by name."""
    chosen = quantizable(model, left_out)
    ends = [name for name in (next(iter(chosen), ""), next(reversed(chosen), "")) if name]
    if quantization.bits < 8 and quantization.ends == "fp32":
        chosen = {name: layer for name, layer in chosen.items() if name not in ends}

    def quantizer(name: str, weight: Tensor) -> Quantizer:
        at_end = name in ends and quantization.ends == "int8"
        bits = 8 if at_end else quantization.bits
        inputs = 8 if at_end or quantization.bits == 8 else _INPUT_BITS[quantization.activations]
        learned = quantization.learned_scales and bits > 2
        return Quantizer(
            weight,
            bits,
            inputs,
            per_channel=quantization.per_channel,
            learned=learned,
            learned_range=quantization.learned_ranges,
        )

    return quantise(chosen, quantizer)


def begin_batch(quantizers: Mapping[str, Quantizer]) -> None:
    """A forward pass that is computed again, for a checkpoint, is of the same batch."""
    for quantizer in quantizers.values():
        quantizer.due = True


def follow_epoch(
    model: nn.Module,
    quantizers: Mapping[str, Quantizer],
    epoch: int,
    *,
    start: int,
    last_observed: int | None,
    last_counted: int | None,
) -> None:
    """Applies the rules of an epoch that begins: whether layers round, ranges are observed and batch norms count."""
    for quantizer in quantizers.values():
        quantizer.active = epoch >= start
        quantizer.observing = last_observed is None or epoch <= last_observed
    if last_counted is not None and epoch > last_counted:
        for module in model.modules():
            if isinstance(module, BatchNormNd):
                module.eval()
