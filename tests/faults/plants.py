"""Faults to plant: each with its magnitudes, the rules that name it, the module and whether precision is to blame."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.faults.training import Edit, Setting, cross_entropy

FP16_LARGEST = 65504.0


@dataclass(frozen=True)
class Plant:
    """A fault. `rules` are those that may name it, `module` the part of the model ("" for the whole), `blame` whether
    precision is the cause (None: may be left open). `twin` is the same training without the fault."""

    name: str
    setting: Setting
    twin: Setting
    rules: tuple[str, ...]
    blame: bool | None
    module: str = ""
    weak: bool = False  # a magnitude of doubt: whether it does harm is measured, as of all
    tags: tuple[str, ...] = field(default=())


class Times(nn.Module):
    """The output of a module times a factor."""

    def __init__(self, inner: nn.Module, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = inner, factor

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) * self.factor
        return out


class Compressed(nn.Module):
    """A linear layer, large inside: x * k / k overflows FP16 between the two modules."""

    def __init__(self, inner: nn.Module, factor: float) -> None:
        super().__init__()
        self.large, self.factor = Times(inner, factor), factor

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.large(x) / self.factor
        return out


class SquareNorm(nn.Module):
    """RMS norm that squares in the format of its input, times a factor before."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.factor
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6 * self.factor**2)


class Root(nn.Module):
    """sqrt of |x| clamped at zero: its derivative at 0 is infinite, times 0 it is NaN."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(torch.relu(x) * 1.0 + 0.0)


class StoredLow(nn.Module):
    """A layer whose weights are stored in another dtype; its input is cast, its output cast back."""

    def __init__(self, inner: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner, self.dtype = inner.to(dtype), dtype

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x.to(self.dtype)).to(x.dtype)
        return out


class Log(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.log(torch.relu(x))


def _at(model: nn.Module, path: str) -> tuple[Any, str]:
    parent, _, name = path.rpartition(".")
    return model.get_submodule(parent), name


def swap(path: str, make: Callable[[nn.Module], nn.Module]) -> Edit:
    """Put another module in the place of one."""

    def edit(model: nn.Module) -> None:
        owner, name = _at(model, path)
        setattr(owner, name, make(getattr(owner, name)))

    return edit


@torch.no_grad()
def _scaled(model: nn.Module, path: str, factor: float) -> None:
    model.get_submodule(path).weight.mul_(factor)


def store_low(*names: str, dtype: torch.dtype = torch.bfloat16) -> Edit:
    """Linear layers of these names in all blocks and attentions are stored in another dtype."""

    def edit(model: nn.Module) -> None:
        for path, module in list(model.named_modules()):
            if isinstance(module, nn.Linear) and path.rpartition(".")[2] in names:
                swap(path, lambda inner: StoredLow(inner, dtype))(model)

    return edit


def scale_weights(path: str, factor: float) -> Edit:
    return lambda model: _scaled(model, path, factor)


def kill(path: str, bias: float) -> Edit:
    """A bias so low that the ReLU behind it passes nothing."""

    def edit(model: nn.Module) -> None:
        with torch.no_grad():
            model.get_submodule(path).bias.fill_(bias)

    return edit


def bad_data(steps: Callable[[int], bool], value: float) -> Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]:
    def data(step: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if steps(step) and inputs.is_floating_point():
            inputs = inputs.clone()
            inputs[0, 0] = value
        return inputs, targets

    return data


def nan_loss(every: int, first: int) -> Callable[[Tensor, Tensor], Tensor]:
    """NaN in the targets' weights of some batches, as a sample without any label gives with a mean over none."""
    calls = [0]

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        calls[0] += 1
        whole = cross_entropy(outputs, targets)
        return whole * (float("nan") if calls[0] >= first and (calls[0] - first) % every == 0 else 1.0)

    return loss


def low_loss(dtype: torch.dtype, factor: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Sum in a low format of a loss that is large, as a squared error without a mean is."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        wrong = F.one_hot(targets, outputs.shape[-1]).to(dtype) - outputs.to(dtype).softmax(-1)
        return (wrong.square() * factor).sum().to(dtype).float() / wrong.shape[0]

    return loss


def small_loss(factor: float) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss that is small by its unit: gradients of FP16 vanish, those of FP32 do not; Adam does not mind."""
    return lambda outputs, targets: cross_entropy(outputs, targets) * factor


def root_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """A penalty whose derivative is 0 / 0: the root of a sum that is exactly zero."""
    return cross_entropy(outputs, targets) + torch.sqrt((outputs.float() - outputs.float()).sum()) * 0.1


def log_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """0 * log(0) of a target distribution written by hand."""
    wanted = F.one_hot(targets, outputs.shape[-1]).float()
    return cross_entropy(outputs, targets) + (wanted * torch.log(wanted)).sum() * 0.0


def held_back(name: str) -> bool:
    """A third of all trainings, by name: not looked at while thresholds were chosen."""
    return zlib.crc32(name.encode()) % 3 == 0
