"""Rounding error of each layer of a prepared graph."""

from __future__ import annotations

from typing import Any

from torch import fx

from precgui.engine.qat.pt2e.graph import is_rounded, products
from precgui.engine.qat.straight_through import relative


class _Errors(fx.Interpreter):
    """Each layer with its operands rounded and as they came: errors do not add up from layer to layer."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.found: dict[str, dict[str, float]] = {}
        self._layers = {node: name for name, node in products(graph)}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if name := self._layers.get(n):
            value, weight = (self.env[_unrounded(self.module, node)] for node in n.args[:2])
            plain = n.target(value, weight, *self.fetch_args_kwargs_from_env(n)[0][2:])  # type: ignore[operator]
            self.found[name] = {
                "bits": 8.0,
                "weight_error": relative(self.env[n.args[1]], weight),  # type: ignore[index]
                "output_error": relative(result, plain),
            }
        return result


def _unrounded(graph: Any, node: Any) -> fx.Node:
    return node.args[0] if is_rounded(graph, node) else node  # type: ignore[no-any-return]


def layer_errors(graph: fx.GraphModule, inputs: Any) -> dict[str, dict[str, float]]:
    """For each layer the relative error of its weights and of its result that rounding makes."""
    seen = _Errors(graph)
    seen.garbage_collect_values = False  # operands are looked at after their last use
    seen.run(inputs)
    return seen.found
