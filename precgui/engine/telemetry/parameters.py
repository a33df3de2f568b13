"""The tensors that belong to a parameter: its value, its gradient, its optimizer state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_

from torch import Tensor, nn
from torch.optim import Optimizer

Named = list[tuple[str, Tensor]]


def tensor_count(model: nn.Module, copies: Callable[[], Named] | None = None) -> int:
    """Parameters, modules, buffers that are recorded, and `copies` of weights that are kept outside the model.

    Optimizer states and further outputs of a module come on top of it.
    """
    buffers = sum(buffer.is_floating_point() for buffer in model.buffers())
    outside = len(copies()) if copies is not None else 0
    return sum(1 for _ in model.parameters()) + sum(1 for _ in model.modules()) + buffers + outside


@dataclass(frozen=True)
class Weight:
    """A parameter of the model and what the optimizer updates in its stead (the same one, or an FP32 copy)."""

    name: str
    own: nn.Parameter
    updated: nn.Parameter

    @property
    def value(self) -> Tensor:
        """The more exact of the two, as far as it is held between steps."""
        return self.updated if self.updated.numel() == self.own.numel() else self.own


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """All parameters of an optimizer, in the order of its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def updated_by(weights: Sequence[Weight], optimizer: Optimizer | None) -> list[Weight]:
    """The weights that an optimizer updates, all of them for None."""
    if optimizer is None:
        return list(weights)
    parameters = parameters_of(optimizer)
    if len(parameters) == len(weights) and all(map(is_, parameters, [weight.updated for weight in weights])):
        return list(weights)  # as in most loops, in each step
    own = {id(parameter) for parameter in parameters}
    return [weight for weight in weights if id(weight.updated) in own]


def gradients(weights: Sequence[Weight]) -> Named:
    return [(w.name, gradient) for w in weights if (gradient := w.updated.grad) is not None]


def values(weights: Sequence[Weight]) -> Named:
    return [(w.name, w.own) for w in weights]


def exact_values(weights: Sequence[Weight]) -> Named:
    return [(w.name, w.value) for w in weights]


def states(weights: Sequence[Weight], optimizers: Sequence[Optimizer]) -> Named:
    """The optimizer state of each weight, but for step counters: `fc.weight.exp_avg`."""
    return [
        (f"{weight.name}.{name}", state)
        for weight in weights
        for optimizer in optimizers
        for name, state in optimizer.state.get(weight.updated, {}).items()
        if isinstance(state, Tensor) and state.is_floating_point() and state.numel() == weight.own.numel()
        and (state.dim() or name != "step")
    ]  # fmt: skip
