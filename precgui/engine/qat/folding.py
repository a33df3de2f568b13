"""Batch norm of a trained model taken into the convolution before it, which changes no integer: only their steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from precgui.engine.qat.integer_layers import Integer
from precgui.engine.torch_private import BatchNormNd, ConvNd

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
            _replace(model, name, fuse_conv_bn_eval(layer, norm))  # type: ignore[type-var]
        _replace(model, taker, nn.Identity())


def _affine(norm: BatchNormNd) -> tuple[Tensor, Tensor]:
    """The factor and the shift, by channel, that a batch norm is in evaluation."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    factor = (norm.running_var + norm.eps).rsqrt()
    if norm.affine:
        factor = factor * norm.weight.detach()
    shift = -norm.running_mean * factor
    return factor, shift + norm.bias.detach() if norm.affine else shift


def _replace(model: nn.Module, name: str, new: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, new)
