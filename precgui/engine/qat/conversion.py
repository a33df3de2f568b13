"""A trained model turned to integers, with what it is compared to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from precgui.engine.casting import cast_floats
from precgui.engine.qat.integer_layers import Integer, convert
from precgui.engine.qat.layers import Quantizer
from precgui.engine.qat.straight_through import relative
from precgui.engine.torch_private import BatchNormNd, ConvNd

if TYPE_CHECKING:
    from precgui.engine.tasks.base import Batch, Task


_Layer = ConvNd | Integer


def norms_behind(model: nn.Module, inputs: Any) -> dict[str, str]:
    """The batch norm behind each convolution whose result nothing else uses, by name, from one forward pass."""
    created: dict[int, str] = {}
    taken: dict[str, list[str]] = {}
    kept: list[Tensor] = []  # so that no identity is given twice

    def on_call(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
            for value in args:
                if isinstance(value, Tensor) and id(value) in created:
                    taken.setdefault(created[id(value)], []).append(name)
            if isinstance(module, _Layer) and isinstance(result, Tensor):
                created[id(result)] = name
                kept.append(result)

        return hook

    leaves = [(name, module) for name, module in model.named_modules() if not any(True for _ in module.children())]
    hooks = [module.register_forward_hook(on_call(name)) for name, module in leaves]
    model(inputs)
    for hook in hooks:
        hook.remove()
    only = {name: takers[0] for name, takers in taken.items() if len(takers) == 1}
    return {name: taker for name, taker in only.items() if isinstance(model.get_submodule(taker), BatchNormNd)}


def fold(model: nn.Module, pairs: dict[str, str]) -> None:
    """Take each batch norm named in `pairs` into its layer, in place; the model is in evaluation mode."""
    for name, taker in pairs.items():
        layer, norm = model.get_submodule(name), model.get_submodule(taker)
        assert isinstance(norm, BatchNormNd)
        if norm.running_mean is None or norm.running_var is None:
            continue
        if isinstance(layer, Integer):
            factor, shift = _affine(norm)
            layer.rescale(factor, shift)
        else:
            model.set_submodule(name, fuse_conv_bn_eval(layer, norm))  # type: ignore[type-var]
        model.set_submodule(taker, nn.Identity())


def _affine(norm: BatchNormNd) -> tuple[Tensor, Tensor]:
    """The factor and the shift, by channel, that a batch norm is in evaluation."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    factor = (norm.running_var + norm.eps).rsqrt()
    if norm.affine:
        factor = factor * norm.weight.detach()
    shift = -norm.running_mean * factor
    return factor, shift + norm.bias.detach() if norm.affine else shift


@dataclass(frozen=True)
class Converted:
    """Models on the CPU. Batch norms are folded in both: each side of a ratio runs at its best.

    `state` is what is saved of the integer model, `layers` gives for each layer its bits and the relative error of its
    weights and of its result in the L2 norm, `native` is how many layers run on integer kernels.
    """

    plain: nn.Module
    integer: nn.Module
    state: Mapping[str, Tensor]
    layers: Mapping[str, Mapping[str, float]]
    native: int


def trained_copy(model: nn.Module, task: Task) -> nn.Module:
    """The trained weights in a model without quantisers, on the CPU."""
    plain = task.model()
    names = plain.state_dict().keys()
    plain.load_state_dict({name: value.cpu() for name, value in model.state_dict().items() if name in names})
    return plain.eval()


def convert_layers(
    model: nn.Module, quantizers: Mapping[str, Quantizer], task: Task, batches: Sequence[Batch]
) -> Converted:
    """The model with each layer named in `quantizers` on integers."""
    inputs = cast_floats(batches[0][0], torch.float32)
    plain = trained_copy(model, task)
    integer = convert(trained_copy(model, task), quantizers)
    with torch.inference_mode():
        layers = _layer_errors(plain, integer, quantizers, inputs)
        for one in (plain, integer):
            fold(one, norms_behind(one, inputs))
    native = sum(m.native for m in integer.modules() if isinstance(m, Integer))
    return Converted(plain, integer, integer.state_dict(), layers, native)


def _layer_errors(
    plain: nn.Module, integer: nn.Module, quantizers: Mapping[str, Quantizer], inputs: Any
) -> dict[str, dict[str, float]]:
    """Each layer on the input that it has in the integer model: errors do not add up from layer to layer."""
    errors: dict[str, dict[str, float]] = {}

    def hook_of(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Tensor, ...], result: Tensor) -> None:
            layer: Any = plain.get_submodule(name)
            integers, scale = quantizers[name].integers(layer.weight)
            errors[name] = {
                "bits": float(quantizers[name].bits),
                "weight_error": relative(integers.mul_(scale), layer.weight),
                "output_error": relative(result, layer(*args)),
            }

        return hook

    hooks = [integer.get_submodule(name).register_forward_hook(hook_of(name)) for name in quantizers]
    integer(inputs)
    for hook in hooks:
        hook.remove()
    return errors
