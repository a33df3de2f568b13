"""Layers whose inputs come from one norm or linear layer alone, which can take over a scale of their input channels.

As AWQ and SmoothQuant do: the outputs of the layer before are divided by the scale, the weights multiplied, and the
function stays. Found by following tensors through one run of the model, and proved by another with random scales.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from precgui.engine.adapters.weights_file import narrowest, tensors_of
from precgui.engine.ptq.layer_matrix import weight_of
from precgui.formats.weight_formats import WeightFormat

# Operations through which a positive factor of each channel passes, by name.
_PASSING = frozenset((
    "relu", "relu_", "leaky_relu", "dropout", "contiguous", "to", "float", "type_as", "clone", "view", "reshape",
    "flatten", "unflatten", "transpose", "permute", "unsqueeze", "squeeze",
))  # fmt: skip
_PRODUCTS = frozenset(("mul", "__mul__", "__rmul__", "multiply"))
_MIXTURES = frozenset(("matmul", "__matmul__", "bmm"))  # of values, by the weights of attention
_ATTENTION, _LINEAR, _PART = "scaled_dot_product_attention", "linear", "__getitem__"
_SAME = 1e-3  # of the norm of the outputs


@dataclass(frozen=True)
class ScaleFold:
    """`source` is the norm or linear layer whose outputs are the inputs of `layers` and of nothing else; names."""

    source: str
    layers: tuple[str, ...]
    source_is_linear: bool


@dataclass(frozen=True)
class FoldedScale:
    """The factors of the columns of a fold, and the parameters of its source that absorb them, with their new numbers.

    The weight of a linear source is not among these: its rows are divided before they are quantised.
    """

    fold: ScaleFold
    scale: Tensor
    absorbed: tuple[tuple[nn.Parameter, Tensor], ...]

    @classmethod
    @torch.no_grad()
    def of(cls, fold: ScaleFold, model: nn.Module, scale: Tensor) -> FoldedScale:
        """The scale folded into the source, whose numbers stay in the type that keeps them, such as BF16."""
        source = model.get_submodule(fold.source)
        weight, bias, absorbed = weight_of(source), getattr(source, "bias", None), []
        if not fold.source_is_linear:
            low = _in_own_type(weight, weight / scale)
            scale = torch.where(low == 0, scale, weight / low)  # what the rounding of the norm leaves to the columns
            absorbed.append((weight, low))
        if isinstance(bias, nn.Parameter):
            absorbed.append((bias, _in_own_type(bias, bias / scale)))
        return cls(fold, scale, tuple(absorbed))


def _in_own_type(old: Tensor, new: Tensor) -> Tensor:
    """New numbers in the narrowest type that holds the old ones, unless they leave its range."""
    low = new.to(narrowest(old.detach()).dtype).float()
    fits = bool(torch.isfinite(low).all()) and not bool(((low == 0) & (new != 0)).any())
    return low if fits else new


@dataclass(frozen=True)
class ScalePlaces:
    """Where files keep scales of input channels: in the layers before, or `beside` the weight in some formats."""

    model: nn.Module
    folds: tuple[ScaleFold, ...]
    beside: Callable[[WeightFormat], bool]


def scale_folds(model: nn.Module, layers: Mapping[str, nn.Module], run: Callable[[], object]) -> list[ScaleFold]:
    """The folds of linear layers of a model; `run` gives its outputs for the same inputs each time."""
    linear = {
        name: layer for name, layer in layers.items() if isinstance(layer, nn.Linear) and not _shares(model, layer)
    }
    norms = {name: module for name, module in model.named_modules() if name not in layers and _is_norm(module)}
    trace = _Trace(linear)
    with torch.no_grad(), contextlib.ExitStack() as stack:
        for name, module in {**norms, **linear}.items():
            stack.callback(module.register_forward_hook(trace.origin_hook(name)).remove)
        for name, module in norms.items():
            if _shares(model, module):
                trace.spoil(name)
        with trace:
            run()
    folds = [
        ScaleFold(source, tuple(used), source in linear)
        for source, used in trace.consumers.items()
        if trace.is_whole(source)
    ]
    folds = [fold for fold in folds if _width(model, fold) == {linear[name].in_features for name in fold.layers}]
    return _proved(model, folds, run)


def _shares(model: nn.Module, module: nn.Module) -> bool:
    """Whether a parameter of the module has a second name, such as that of an embedding."""
    owners = Counter(id(value) for value in tensors_of(model).values())
    return any(owners[id(value)] > 1 for value in module.parameters(recurse=False))


def _is_norm(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, nn.Parameter) and weight.dim() == 1 and not list(module.children())


def _width(model: nn.Module, fold: ScaleFold) -> set[int]:
    return {len(weight_of(model.get_submodule(fold.source)))}


class _Trace(TorchFunctionMode):
    """Follows the outputs of layers through the operations of a run. Its tensors live until it is gone."""

    def __init__(self, layers: Mapping[str, nn.Linear]) -> None:
        super().__init__()
        self._owner = {id(weight_of(layer)): name for name, layer in layers.items()}
        self._origins: dict[int, str] = {}
        self._alive: list[Tensor] = []
        self._spoiled: set[str] = set()
        self._runs: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self.consumers: dict[str, list[str]] = {}

    def origin_hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        """A forward hook that notes the output of a layer."""

        def after(_: nn.Module, __: Any, output: Any) -> None:
            self._runs[name] += 1
            if isinstance(output, Tensor):
                self._note(output, name)

        return after

    def spoil(self, source: str) -> None:
        """The outputs of a layer are used for something else, too."""
        self._spoiled.add(source)

    def is_whole(self, source: str) -> bool:
        """Whether a layer ran once and its outputs went to layers alone, each of which ran once."""
        once = self._runs[source] == 1 and all(self._calls[name] == 1 for name in self.consumers[source])
        return once and source not in self._spoiled

    def _note(self, tensor: Tensor, name: str) -> None:
        self._origins[id(tensor)] = name
        self._alive.append(tensor)

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name, given = getattr(func, "__name__", ""), [*args, *kwargs.values()]
        if name == _LINEAR and (layer := self._owner.get(id(_at(args, kwargs, 1, "weight")))):
            self._calls[layer] += 1
            if origin := self._origin(_at(args, kwargs, 0, "input")):
                self.consumers.setdefault(origin, []).append(layer)
            return result
        met = [origin for each in _tensors(given) if (origin := self._origin(each))]
        if not met or not any(True for _ in _tensors([result])):  # a shape, a type
            return result
        passed = self._passed(name, args, kwargs, met) if isinstance(result, Tensor) else None
        if name == _PART and isinstance(result, Tensor) and result.shape[-1:] == args[0].shape[-1:]:  # all channels
            passed = self._origin(args[0])
        for origin in met:
            if origin != passed or met.count(origin) > 1:
                self.spoil(origin)
        if passed is not None and isinstance(result, Tensor):
            self._note(result, passed)
        return result

    def _passed(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], met: Sequence[str]) -> str | None:
        """The origin whose factors go through an operation into its result."""
        if name in _PASSING:
            return self._origin(_at(args, kwargs, 0, "input"))
        if name in _PRODUCTS:
            return met[-1]
        if name in _MIXTURES:
            return self._origin(_at(args, kwargs, 1, "other"))
        return self._origin(_at(args, kwargs, 2, "value")) if name == _ATTENTION else None

    def _origin(self, value: Any) -> str | None:
        return self._origins.get(id(value)) if isinstance(value, Tensor) else None


def _at(args: Sequence[Any], kwargs: Mapping[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def _tensors(values: Sequence[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _proved(model: nn.Module, folds: list[ScaleFold], run: Callable[[], object]) -> list[ScaleFold]:
    """The folds that leave the outputs of the model as they are, with random scales: all at once, or one by one."""
    exact = run()
    if not isinstance(exact, Tensor) or not folds:
        return []
    if _keeps(model, folds, run, exact):
        return folds
    alone = [fold for fold in folds if _keeps(model, [fold], run, exact)]
    return alone if _keeps(model, alone, run, exact) else []


@torch.no_grad()
def _keeps(model: nn.Module, folds: Sequence[ScaleFold], run: Callable[[], object], exact: Tensor) -> bool:
    generator = torch.Generator().manual_seed(0)
    changed = {id(each): each for fold in folds for name in (fold.source, *fold.layers)
               for each in model.get_submodule(name).parameters(recurse=False)}  # fmt: skip
    kept = {key: each.detach().clone() for key, each in changed.items()}
    try:
        for fold in folds:
            source = model.get_submodule(fold.source)
            drawn = torch.randn(len(weight_of(source)), generator=generator)
            scale = (0.5 * drawn).exp().to(weight_of(source).device)
            for each in source.parameters(recurse=False):
                each.div_(scale.view(-1, *(1,) * (each.dim() - 1)))
            for name in fold.layers:
                weight_of(model.get_submodule(name)).mul_(scale)
        found = run()
    finally:
        for key, each in changed.items():
            each.copy_(kept[key])
    assert isinstance(found, Tensor)
    return bool((found - exact).norm() <= _SAME * exact.norm())
