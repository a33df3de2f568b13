"""Products of rounded operands: FP8, block formats and `emulated:FORMAT`; on native kernels where they exist."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import nn

from precgui.config.names import EMULATED
from precgui.engine import accumulation
from precgui.engine.certificate import require_true_fp32
from precgui.engine.emulation import native_fp8
from precgui.engine.emulation.accumulator import Accumulator
from precgui.engine.emulation.functional import (
    FUNCTIONAL,
    FUNCTIONAL_NOTE,
    FunctionalRoundingMode,
    leave_alone,
    rounds_everywhere,
)
from precgui.engine.emulation.layers import MatmulArithmetic, emulate_products, layers
from precgui.engine.emulation.operands import (
    AmaxScale,
    BatchSeed,
    BlockCast,
    FormatCast,
    Identity,
    OperandQuantizer,
    RoundingSpec,
    ScaledCast,
)
from precgui.engine.emulation.recurrent import emulate_recurrent, recurrent_layers
from precgui.engine.emulation.tensor_core import HOPPER
from precgui.engine.errors import EngineError
from precgui.engine.precisions import fp32_modules
from precgui.engine.precisions.base import Precision
from precgui.engine.precisions.layer_formats import find_layer_formats
from precgui.formats.model import CodeBook, FloatFormat, IntFormat
from precgui.formats.registry import blocks, get
from precgui.hardware.product_sums import sums_text
from precgui.sanitize import some_names
from precgui.sentences import Sentence, counted

if TYPE_CHECKING:
    from precgui.config import RunConfig

Role = Literal["weight", "activation", "gradient"]
ROLES: tuple[Role, ...] = ("weight", "activation", "gradient")
_NARROW_BITS = 8  # floats of so few bits have a range that gradients leave


class LowPrecisionMatmul(Precision):
    """FP32 weights; the operands of the products in linear and convolutional layers are rounded to `formats`."""

    keeps = True
    has_layer_formats = True
    formats: dict[Role, str]

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.clock = BatchSeed(config.seed)
        self._elsewhere: FunctionalRoundingMode | None = None
        self._of_layers: dict[str, str] = {}  # formats of layers that have one of their own

    @property
    def batch_count(self) -> int:
        return self.clock.tick

    def continue_from(self, batch_count: int) -> None:
        self.clock.tick = batch_count

    def convert_input(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        self.clock.tick += 1
        return super().convert_input(inputs, targets)

    def _convert(self, model: nn.Module) -> nn.Module:
        require_true_fp32(self.device)  # products of rounded operands are exact in FP32 only
        chosen = layers(model, fp32_modules.members(self.fp32_modules))
        self._of_layers = find_layer_formats(model, self.options.layers, self._rounded_layers(model, chosen))
        if not chosen and not rounds_everywhere(self.config):
            raise EngineError(
                Sentence(
                    "precision {precision}: the model has no linear or convolutional layer to round",
                    precision=self.config.precision,
                )
            )
        self._turn(chosen)
        if rounds_everywhere(self.config):
            self._convert_other_operations(model)
        elif left := [name for name, module in model.named_modules() if _multiplies_elsewhere(module)]:
            self.notes.append(
                Sentence(
                    "products inside {modules} stay in FP32; precision_options.products = all rounds them, too",
                    modules=some_names(left, 3),
                )
            )
        return model

    def _rounded_layers(self, model: nn.Module, chosen: Collection[str]) -> list[str]:
        recurrent = recurrent_layers(model, fp32_modules.members(self.fp32_modules))
        return [*chosen, *(recurrent if rounds_everywhere(self.config) else ())]

    def _convert_other_operations(self, model: nn.Module) -> None:
        """Round operands in recurrent layers and in functional operations, except inside modules kept in FP32."""
        self.labels |= emulate_recurrent(
            recurrent_layers(model, fp32_modules.members(self.fp32_modules)), self._products
        )
        self.notes.append(FUNCTIONAL_NOTE)
        for module in self.fp32_modules.values():
            leave_alone(module)
        self._elsewhere = FunctionalRoundingMode(self._products(FUNCTIONAL), compiled=self.config.train.compile)

    def forward_context(self) -> contextlib.AbstractContextManager[object]:
        return self._elsewhere or contextlib.nullcontext()

    def _turn(self, chosen: dict[str, nn.Module]) -> None:
        self.labels = emulate_products(chosen, self._products)
        for label, count in Counter(self.labels.values()).items():
            self.notes.append(
                counted(
                    "{format} is emulated in {count} layer: operands are rounded and multiplied in FP32; "
                    "speed says nothing about hardware that has the format",
                    "{format} is emulated in {count} layers: operands are rounded and multiplied in FP32; "
                    "speed says nothing about hardware that has the format",
                    count,
                    format=label,
                )
            )
        self.notes += unscaled_notes(self._unscaled())

    def _unscaled(self) -> Collection[str]:
        """The formats to which operands are cast as in `emulated:FORMAT`."""
        return self._of_layers.values()

    def _products(self, layer: str) -> MatmulArithmetic:
        if own := self._of_layers.get(layer):
            return self.arithmetic_in(own)(layer)
        rounds = {role: self._round(role, f"{layer}.{role}") for role in ROLES}
        return MatmulArithmetic(self._label(self.formats), **rounds, accumulator=self._accumulator(layer))

    def arithmetic_in(self, name: str) -> Callable[[str], MatmulArithmetic]:
        """The products of a layer, by its name, with operands in one format, as in `emulated:FORMAT`."""
        formats: dict[Role, str] = {"weight": name, "activation": name, "gradient": self.options.gradients or name}

        def of_layer(layer: str) -> MatmulArithmetic:
            rounds = {role: self._to(formats[role], f"{layer}.{role}") for role in ROLES}
            return MatmulArithmetic(self._label(formats), **rounds, accumulator=self._accumulator(layer))

        return of_layer

    def _label(self, formats: Mapping[Role, str]) -> str:
        names = list(dict.fromkeys(formats[role] for role in ROLES))
        summed = f" summed in {self.options.accumulator}" if self.options.accumulator else ""
        if len(names) == 1:
            return names[0] + summed
        if formats["weight"] == formats["activation"]:
            return f"{names[0]} (gradients {formats['gradient']})" + summed
        return "/".join(formats[role] for role in ROLES) + summed

    def _round(self, role: Role, place: str) -> OperandQuantizer:
        return self._to(self.formats[role], place)

    def _to(self, name: str, place: str) -> OperandQuantizer:
        """Rounding to a format: blocks with their scales, floats unscaled, integers and code books scaled by tensor."""
        rounding = RoundingSpec(self.options.rounding, self.clock, place)
        if name == "fp32":
            return Identity()
        if name in blocks():
            return BlockCast(name, rounding, self.options.scale_rule)
        if isinstance(get(name), FloatFormat):
            return FormatCast(name, rounding)
        return ScaledCast(name, rounding, AmaxScale(largest(name), self.clock))

    def _accumulator(self, layer: str) -> Accumulator | None:
        if self.options.accumulator is None:
            return None
        to_format = self._to(self.options.accumulator, f"{layer}.sum")
        return Accumulator(lambda total: to_format(total, -1), self.options.accumulator_block)


class AnyFormat(LowPrecisionMatmul):
    """emulated:FORMAT, with a format of its own for weights, activations, gradients and stored weights on request."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        super().__init__(config, device)
        name, options = config.precision.removeprefix(EMULATED), config.precision_options
        self.formats = {
            "weight": options.weights or name,
            "activation": options.activations or name,
            "gradient": options.gradients or name,
        }
        self._stored: list[tuple[nn.Parameter, OperandQuantizer]] = []

    def _unscaled(self) -> Collection[str]:
        return [*self.formats.values(), *self._of_layers.values()]

    def weights(self, model: nn.Module) -> list[nn.Parameter]:
        if self.options.updates is not None:
            kept = {p for module in self.fp32_modules.values() for p in module.parameters()}
            self._stored = [
                (p, self._to(self.options.updates, f"{name}.stored"))
                for name, p in model.named_parameters()
                if p.requires_grad and p not in kept
            ]
            self.notes.append(
                Sentence("weights are rounded to {updates} after each step", updates=self.options.updates)
            )
            self._store()
        return super().weights(model)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        skipped = super().step(optimizer)
        if not skipped:
            self._store()
        return skipped

    @torch.no_grad()
    def _store(self) -> None:
        for parameter, to_format in self._stored:
            parameter.copy_(to_format(parameter.detach(), -1))


class BlockScaled(LowPrecisionMatmul):
    """A block format for all three operands."""

    name: ClassVar[str]

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.formats = {"weight": self.name, "activation": self.name, "gradient": self.name}


class MXFP8(BlockScaled):
    name = "mxfp8_e4m3"


class MXFP6(BlockScaled):
    name = "mxfp6_e2m3"


class MXFP4(BlockScaled):
    name = "mxfp4"


class NVFP4(BlockScaled):
    name = "nvfp4"


class FP8(LowPrecisionMatmul):
    """E4M3 for weights and activations, E5M2 for gradients, scaled to their range."""

    formats: ClassVar[dict[Role, str]] = {"weight": "e4m3fn", "activation": "e4m3fn", "gradient": "e5m2"}  # type: ignore[misc]

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self._scales: list[AmaxScale] = []  # in the order in which the layers were converted

    @property
    def has_history(self) -> bool:
        return self.options.fp8_amax == "delayed"

    def _turn(self, chosen: dict[str, nn.Module]) -> None:
        native = self._native(chosen)
        as_hopper = self.options.fp8_sums == "hopper"
        multiply = HOPPER.scaled_mm if as_hopper else native_fp8.on_tensor_cores
        for layer in native.values():
            scales = native_fp8.Scales(*(self._scale(r) for r in ("activation", "weight", "gradient")))
            native_fp8.use_native(layer, scales, multiply)
        if native and as_hopper:
            self.notes.append(
                counted(
                    "FP8 is emulated in {count} layer (E4M3 forward, E5M2 gradients), and its products are added as "
                    "Hopper's tensor cores add them: sums keep {bits} bits, truncated, and those of gradients are "
                    "added in FP32 after every {terms} terms; speed says nothing about hardware that has the format",
                    "FP8 is emulated in {count} layers (E4M3 forward, E5M2 gradients), and its products are added as "
                    "Hopper's tensor cores add them: sums keep {bits} bits, truncated, and those of gradients are "
                    "added in FP32 after every {terms} terms; speed says nothing about hardware that has the format",
                    len(native),
                    bits=HOPPER.bits,
                    terms=HOPPER.promoted_every,
                )
            )
        elif as_hopper:
            self.notes.append(
                Sentence(
                    "precision_options.fp8_sums = hopper changes nothing here: no linear layer has sizes that are "
                    "multiples of {multiple}",
                    multiple=native_fp8.MULTIPLE,
                )
            )
        elif native:
            self.notes.append(
                counted(
                    "FP8 is native in {count} layer (E4M3 forward, E5M2 gradients)",
                    "FP8 is native in {count} layers (E4M3 forward, E5M2 gradients)",
                    len(native),
                )
            )
            self.notes += sums_notes(self.device)
        if remainder := {name: layer for name, layer in chosen.items() if name not in native}:
            super()._turn(remainder)
        if as_hopper:
            self.labels |= dict.fromkeys(native, HOPPER.label)

    def _native(self, chosen: dict[str, nn.Module]) -> dict[str, nn.Module]:
        """The layers that run on FP8 kernels, which round to nearest and add in their own way, or as if on them."""
        there = self.options.fp8_sums == "hopper" or native_fp8.available(self.device)
        plain = self.options.rounding == "nearest_even" and self.options.accumulator is None
        if not plain or not there:
            return {}
        return {n: layer for n, layer in chosen.items() if n not in self._of_layers and native_fp8.fits(layer)}

    def _scale(self, role: Role) -> AmaxScale:
        history = self.options.fp8_history if self.options.fp8_amax == "delayed" else 0
        scale = AmaxScale(
            largest(self.formats[role]), self.clock, rowwise=self.options.fp8_scaling == "rowwise", history=history
        )
        self._scales.append(scale)
        return scale

    def state(self) -> dict[str, Any]:
        return super().state() | {"largest": [scale.history for scale in self._scales]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        for scale, history in zip(self._scales, state["largest"], strict=True):
            scale.history = history

    def _round(self, role: Role, place: str) -> OperandQuantizer:
        return ScaledCast(self.formats[role], RoundingSpec(self.options.rounding, self.clock, place), self._scale(role))


@functools.cache
def sums_notes(device: torch.device) -> list[str]:
    """A sentence on how this device adds FP8 products, where that is not in FP32; measured once in a process."""
    rows = []
    for fmt, fast in (("e4m3fn", True), ("e5m2", False)):
        operands = accumulation.OPERANDS[fmt]
        try:
            rows.append(asdict(accumulation.measure(accumulation.multiply_on(device, operands, fast=fast), operands)))
        except RuntimeError:  # no kernel for these sizes; the run has its own
            return []
    if all(row["bits"] is None or row["bits"] >= accumulation.FP32_BITS for row in rows):
        return []
    forward, backward = map(sums_text, rows)
    return [
        Sentence(
            "FP8 products forward: {forward}; FP8 products of gradients: {backward}", forward=forward, backward=backward
        )
    ]


def _multiplies_elsewhere(module: nn.Module) -> bool:
    """Whether a module is known to have products that are not those of linear and convolutional layers."""
    return isinstance(module, nn.RNNBase) or type(module).__name__.endswith("Attention")


def unscaled_notes(names: Collection[str]) -> list[str]:
    """A sentence for each float of up to 8 bits among the formats to which operands are cast without a scale."""
    notes: list[str] = []
    for name in dict.fromkeys(names):
        fmt = None if name in blocks() else get(name)
        if isinstance(fmt, FloatFormat) and fmt.bits <= _NARROW_BITS:
            notes.append(
                Sentence(
                    "operands are cast to {name} without a scale: it has no value between 0 and {min_positive:g} "
                    "and none above {max_finite:g}, so small gradients become 0; fp8, mxfp8, mxfp6, mxfp4 and nvfp4 "
                    "scale theirs",
                    name=name,
                    min_positive=float(fmt.min_positive),
                    max_finite=float(fmt.max_finite),
                )
            )
    return notes


def largest(name: str) -> float:
    """The largest finite value of a format."""
    fmt = get(name)
    if isinstance(fmt, CodeBook):
        return float(fmt.values[-1])
    assert isinstance(fmt, FloatFormat | IntFormat)
    return float(fmt.max_finite) if isinstance(fmt, FloatFormat) else float(fmt.value(fmt.max_ordinal))
