"""Turns a model into a frozen base with adapters, and back into one model."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from precgui.engine.adapters.frozen_linear import (
    PackedLinear,
    StoredLinear,
    TorchaoLinear,
    choose_backend,
    freeze,
    keeps_unpacked,
)
from precgui.engine.adapters.peft_folder import PeftAdapters, read_peft
from precgui.engine.adapters.weights_file import tensors_of
from precgui.engine.errors import EngineError
from precgui.engine.precisions import fp32_modules
from precgui.sanitize import some_names
from precgui.sentences import L_, Sentence

if TYPE_CHECKING:
    from precgui.config import RunConfig
    from precgui.config.adapters import AdapterConfig


class LoraLinear(nn.Module):
    """base(x) + (alpha / rank) B A dropout(x); A [rank, inputs] begins at random, B [outputs, rank] at zero.

    LoRA: Hu et al. 2021, arXiv 2106.09685.
    """

    def __init__(self, base: Any, adapter: AdapterConfig, device: torch.device) -> None:
        super().__init__()
        self.base = base
        self.factor = adapter.alpha / adapter.rank
        self.drop = nn.Dropout(adapter.dropout)
        self.lora_a = nn.Parameter(torch.empty(adapter.rank, base.in_features, device=device))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, adapter.rank, device=device))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))  # as in the authors' loralib

    def forward(self, input: Tensor) -> Tensor:
        thin = nn.functional.linear(self.drop(input), self.lora_a)
        result: Tensor = self.base(input) + nn.functional.linear(thin, self.lora_b) * self.factor
        return result

    @torch.no_grad()
    def begin_with(self, name: str, a: Tensor, b: Tensor) -> None:
        """Take up matrices that were trained before. Raises EngineError where they do not fit the layer."""
        if (a.shape, b.shape) != (self.lora_a.shape, self.lora_b.shape):
            raise EngineError(
                Sentence(
                    "adapter.weights: {layer} takes {a} and {b}, given are {given_a} and {given_b}; they are "
                    "of another model",
                    layer=name,
                    a=list(self.lora_a.shape),
                    b=list(self.lora_b.shape),
                    given_a=list(a.shape),
                    given_b=list(b.shape),
                )
            )
        self.lora_a.copy_(a)
        self.lora_b.copy_(b)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """One layer in FP32: the base as its format holds it, with the adapter added."""
        weight = self.base.dequantised() + self.factor * (self.lora_b.float() @ self.lora_a.float())
        layer = nn.Linear(
            self.base.in_features, self.base.out_features, self.base.bias is not None, device=weight.device
        )
        layer.weight.copy_(weight)
        if self.base.bias is not None:
            layer.bias.copy_(self.base.bias)
        return layer


def add_adapters(model: nn.Module, config: RunConfig, device: torch.device) -> list[str]:
    """Freeze all of the model, in place, hold the target layers in the base's format and put adapters beside them.

    Returns the sentences that say so. Raises EngineError for a pattern without layers or an unusable back end.
    """
    given = read_peft(config.adapter.weights) if config.adapter.weights else None
    if given is not None:
        own = {"rank": given.rank, "alpha": given.alpha, "targets": [*given.layers]}
        config = config.model_copy(update={"adapter": config.adapter.model_copy(update=own)})
    chosen = _targets(model, config)
    if given is not None and (others := given.layers.keys() - chosen.keys()):
        raise EngineError(
            Sentence(
                "adapter.weights: {layers}: the model has no such linear layer", layers=some_names(sorted(others), 3)
            )
        )
    backend = choose_backend(config.base, device)
    weights = sum(layer.weight.numel() for layer in chosen.values())
    keep = keeps_unpacked(config.base, weights)
    model.requires_grad_(False)
    for name, layer in chosen.items():
        base = freeze(layer, config.base, backend, keep=keep)
        adapted = LoraLinear(base, config.adapter, layer.weight.device)
        model.set_submodule(name, adapted)
        if given is not None:
            adapted.begin_with(name, *given.layers[name])
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    notes: list[str] = [
        Sentence(
            "{trained} weights of LoRA of rank {rank} train beside a frozen base: {count} layers, {weights} "
            "weights, held in {format}, back end {backend}",
            trained=trained,
            rank=config.adapter.rank,
            count=len(chosen),
            weights=weights,
            format=config.base.format,
            backend=backend,
        )
    ]
    if config.base.double_quant:
        notes.append(L_("the scales of the base are held in 8 bits"))
    if (bits := bits_per_weight(model)) is not None:
        kept = L_("kept unpacked from forward to backward") if keep else L_("unpacked again in the backward pass")
        notes.append(
            Sentence(
                "the base takes {bits:.3f} bits a weight; its layers are {kept}; products are in FP32 or autocast",
                bits=bits,
                kept=kept,
            )
        )
    return notes


def bits_per_weight(model: nn.Module) -> float | None:
    """Mean bits of a packed weight, scales included; None where nothing is packed by precgui itself."""
    packed = [module.packed for module in model.modules() if isinstance(module, PackedLinear)]
    weights = sum(each.shape[0] * each.shape[1] for each in packed)
    return 8 * sum(each.size_bytes for each in packed) / weights if packed else None


def merged_model(model: nn.Module) -> nn.Module:
    """A copy of the model in which each adapter is part of its layer, in FP32."""
    result = copy.deepcopy(model)
    for name, module in [*result.named_modules()]:
        if isinstance(module, LoraLinear):
            result.set_submodule(name, module.merged())
    return result


def adapter_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All that training changes, by name: adapters, and the buffers of layers that are not a held base."""
    held = tuple(f"{name}.base." for name, module in model.named_modules() if isinstance(module, LoraLinear))
    learned = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    frozen = {id(parameter) for parameter in model.parameters()} - learned
    return {
        name: value
        for name, value in tensors_of(model).items()
        if id(value) not in frozen and not name.startswith(held)
    }


def peft_adapters(model: nn.Module) -> PeftAdapters:
    """The adapters of a model. Raises EngineError where its training moves more than them."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)}
    matrices = {f"{name}.{part}" for name in found for part in ("lora_a", "lora_b")}
    if others := adapter_tensors(model).keys() - matrices:
        raise EngineError(
            Sentence(
                "train.save_to: training moves {parameters}, too, for which a PEFT folder has no place; set "
                "adapter.save_to instead",
                parameters=some_names(sorted(others), 3),
            )
        )
    one = next(iter(found.values()))
    rank = len(one.lora_a)
    layers = {name: (module.lora_a.detach(), module.lora_b.detach()) for name, module in found.items()}
    return PeftAdapters(rank, one.factor * rank, layers)


def parts_of_memory(model: nn.Module) -> dict[str, dict[str, Any]]:
    """The tensors of frozen layers and adapters by part of the ledger and name."""
    parts: dict[str, dict[str, Any]] = {"base": {}, "base_scales": {}, "adapters": {}}
    for name, module in model.named_modules():
        if isinstance(module, LoraLinear):
            parts["adapters"] |= {f"{name}.lora_a": module.lora_a, f"{name}.lora_b": module.lora_b}
        elif isinstance(module, PackedLinear):
            packed = module.packed
            parts["base"][name] = packed.codes
            parts["base_scales"][name] = [packed.scales, packed.factors, packed.mean, packed.lookup]
        elif isinstance(module, StoredLinear):
            parts["base"][name] = module.weight
        elif isinstance(module, TorchaoLinear):
            weight = module.weight
            parts["base"][name] = weight.quantized_data
            parts["base_scales"][name] = [weight.quantized_scalers, weight.quantization_factor]
    return parts


def _targets(model: nn.Module, config: RunConfig) -> dict[str, nn.Linear]:
    """The linear layers that a pattern matches, by name, also through a module around them."""
    around = fp32_modules.find(model, config.adapter.targets, key="adapter.targets")
    chosen = {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.Linear and any(name == each or name.startswith(f"{each}.") for each in around)
    }
    if not chosen:
        known = [name for name, module in model.named_modules() if type(module) is nn.Linear]
        raise EngineError(_no_target(", ".join(around), ", ".join(known[:8])))
    return chosen


def _no_target(modules: str, layers: str) -> Sentence:
    if not modules:
        return Sentence(
            "adapter.targets: no linear layer in nothing; the model has {layers}", layers=layers or Sentence("none")
        )
    if not layers:
        return Sentence("adapter.targets: no linear layer in {modules}; the model has none", modules=modules)
    return Sentence(
        "adapter.targets: no linear layer in {modules}; the model has {layers}", modules=modules, layers=layers
    )
