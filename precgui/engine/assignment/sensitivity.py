"""How much the loss minds each layer in each format: the empirical Fisher information of the rounding error."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from precgui.engine.emulation.layers import MatmulArithmetic, emulate_products

Table = dict[str, dict[str, float]]  # by layer, then by format
Products = Mapping[str, Callable[[str], MatmulArithmetic]]  # by format, then by layer


def _table() -> Table:
    return defaultdict(lambda: defaultdict(float))


@dataclass
class Sensitivity:
    """Half of the sum of squared gradient times squared error, of the weights and of the outputs of each layer.

    Both estimate the second-order rise of the loss (empirical Fisher information for the Hessian). They order layers;
    they do not say how much the loss rises. `first_order` is gradient times error of the outputs, with its sign.
    """

    weights: Table = field(default_factory=_table)
    outputs: Table = field(default_factory=_table)
    first_order: Table = field(default_factory=_table)

    def total(self) -> Table:
        """The sum of both."""
        return {
            layer: {name: value + self.outputs[layer][name] for name, value in row.items()}
            for layer, row in self.weights.items()
        }


def measure_sensitivity(
    model: nn.Module, layers: Mapping[str, nn.Module], losses: Iterable[Callable[[], tuple[Tensor, int]]],
    products: Products,
) -> Sensitivity:  # fmt: skip
    """The sensitivity of each of `layers` to each format of `products`, one backward pass for each of `losses`.

    Each of `losses` computes the mean loss of a batch with `model` in FP32 and gives it with the number of samples,
    which are the first dimension of every layer's output. Gradients of the model are overwritten.
    """
    result = Sensitivity()
    for compute in losses:
        with _calls(layers) as calls:
            model.zero_grad(set_to_none=True)
            loss, samples = compute()
            loss.backward()
        for name, layer in layers.items():
            for label, arithmetic in products.items():
                _add(result, name, layer, label, arithmetic(name), calls[name], samples)
    model.zero_grad(set_to_none=True)
    return result


@torch.no_grad()
def _add(
    result: Sensitivity, name: str, layer: nn.Module, label: str, arithmetic: MatmulArithmetic,
    calls: list[tuple[Tensor, Tensor]], samples: int,
) -> None:  # fmt: skip
    weight = layer.get_parameter("weight")
    if weight.grad is not None:
        error = arithmetic.weight(weight, 0 if getattr(layer, "transposed", False) else 1) - weight
        result.weights[name][label] += float((weight.grad.square() * error.square()).sum()) * samples / 2
    low = copy(layer)  # the same parameters, other products
    emulate_products({name: low}, lambda _: arithmetic)
    for inputs, output in calls:
        if output.grad is not None:
            change = (output.grad * (low(inputs) - output)).flatten(1).sum(1) * samples
            result.outputs[name][label] += float(change.square().mean()) / 2
            result.first_order[name][label] += float(change.mean())


@contextlib.contextmanager
def _calls(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, list[tuple[Tensor, Tensor]]]]:
    """Input and output of every call of each layer inside; the outputs keep their gradients."""
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers}

    def remember(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if output.requires_grad:
                output.retain_grad()
                calls[name].append((inputs[0].detach(), output))

        return hook

    with contextlib.ExitStack() as stack:
        for name, layer in layers.items():
            stack.callback(layer.register_forward_hook(remember(name)).remove)
        yield calls
