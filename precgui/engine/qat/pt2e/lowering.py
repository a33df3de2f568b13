"""A converted graph on the integer kernels of this processor, without a C++ compiler."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._inductor.constant_folding import constant_fold
from torch._inductor.fx_passes.freezing_patterns import freezing_passes
from torch.utils import _pytree as pytree

from precgui.engine.qat.onednn import integer_kernels

_ATEN = torch.ops.aten
_INTEGER_KERNELS = ("onednn.qlinear", "onednn.qconv")


def lower(converted: fx.GraphModule, inputs: Any) -> fx.GraphModule:
    """The graph for inputs of this very shape, with products on oneDNN's integer kernels.

    As `lower_pt2e_quantized_to_x86` of torchao 0.18, and with `reshape` for `view`: only so torch's patterns find the
    linear layers of inputs with more than two dimensions. Where those kernels are missing or their sums are not exact
    (no VNNI), the graph stays as it is, with products in FP32 of the same integers.
    """
    if integer_kernels() != "exact":
        return converted
    composite = {op: made for op, made in torch.export.default_decompositions().items() if _is_composite(op)}
    lowered = torch.export.export(converted, (inputs,), strict=True).run_decompositions(composite).module()
    for node in list(lowered.graph.nodes):
        if node.target in (_ATEN.view.default, _ATEN._unsafe_view.default):
            node.target = _ATEN.reshape.default
        elif node.target is _ATEN.t.default:
            node.target = _ATEN.permute.default
            node.args = (node.args[0], [1, 0])
    lowered.recompile()
    freezing_passes(lowered, (inputs,))
    constant_fold(lowered)
    return lowered  # type: ignore[no-any-return]


def _is_composite(operation: Any) -> bool:
    return bool(torch._export.utils._is_cia_op(operation))


def native_products(lowered: fx.GraphModule) -> int:
    """How many products run on integer kernels."""
    return sum(str(node.target).startswith(_INTEGER_KERNELS) for node in lowered.graph.nodes)


class Lowered(nn.Module):
    """A converted graph for any number of samples: each size that it is made for has a graph of its own.

    Other sizes run in pieces of the largest, the last one filled up with copies of its last sample.
    """

    def __init__(self, converted: fx.GraphModule, inputs: Any, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.graphs = {}
        for size in sizes:
            self.graphs[size] = lower(converted, pytree.tree_map(lambda v, n=size: _exactly(v, n), inputs))

    @property
    def native(self) -> int:
        return max(map(native_products, self.graphs.values()))

    def forward(self, inputs: Any) -> Any:
        count = len(pytree.tree_leaves(inputs)[0])
        if count in self.graphs:
            return self.graphs[count](inputs)
        size = max(self.graphs)
        pieces = []
        for start in range(0, count, size):
            piece = pytree.tree_map(lambda v, at=start: _exactly(v[at : at + size], size), inputs)
            pieces.append(self.graphs[size](piece))
        return pytree.tree_map(lambda *parts: torch.cat(parts)[:count], *pieces)


def _exactly(value: Tensor, count: int) -> Tensor:
    """The first `count` samples; the last one again where there are fewer."""
    missing = count - len(value)
    return value[:count].clone() if missing <= 0 else torch.cat([value, value[-1:].expand(missing, *value.shape[1:])])
