"""The state of a converted graph, taken out and put back."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from precgui.engine.qat.pt2e.graph import value_of

_SCALED = (
    torch.ops.quantized_decomposed.quantize_per_tensor.default,
    torch.ops.quantized_decomposed.dequantize_per_tensor.default,
)


def state(converted: fx.GraphModule) -> dict[str, Tensor]:
    """All that a converted graph computes with: the tensors by name, and the scales that it holds as numbers."""
    nodes = [node for node in converted.graph.nodes if node.op == "get_attr" and node.users]
    kept = {str(node.target): value_of(converted, node).detach().cpu().contiguous() for node in nodes}
    scaled = _scaled(converted)
    kept["activations.scale"] = torch.tensor([node.args[1] for node in scaled], dtype=torch.float64)
    kept["activations.zero"] = torch.tensor([node.args[2] for node in scaled], dtype=torch.int64)
    return kept


def _scaled(converted: fx.GraphModule) -> list[fx.Node]:
    return [node for node in converted.graph.nodes if node.target in _SCALED]


def set_state(converted: fx.GraphModule, saved: dict[str, Tensor]) -> None:
    """Put back what `state` took from a graph of the same model. Raises ValueError when it does not fit."""
    own = state(converted)
    if own.keys() != saved.keys():
        odd = sorted(own.keys() ^ saved.keys())
        raise ValueError(f"{odd[0]} is only in {'the model' if odd[0] in own else 'the file'}")
    for name, value in own.items():
        if value.shape != saved[name].shape or value.dtype != saved[name].dtype:
            raise ValueError(f"{name} has another shape or type than in the model")
    for node in converted.graph.nodes:
        if node.op == "get_attr" and node.users:
            value_of(converted, node).detach().copy_(saved[str(node.target)])
    scales, zeros = saved["activations.scale"].tolist(), saved["activations.zero"].tolist()
    for node, scale, zero in zip(_scaled(converted), scales, zeros, strict=True):
        node.update_arg(1, scale)
        node.update_arg(2, zero)
    converted.recompile()
