"""Holds weights at zero while a run trains, whatever its precision: when, how many, and how many a format adds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from precgui.config import RunConfig
from precgui.config.refusals import outside_of_run
from precgui.engine.emulation.native_fp8 import NativeLinear
from precgui.engine.errors import EngineError
from precgui.engine.hook import LoopHook, TrainingRun, do_nothing
from precgui.engine.precisions.base import Precision
from precgui.engine.precisions.layer_formats import find_layer_formats
from precgui.engine.pruning import masks
from precgui.engine.pruning.masks import InputNorms
from precgui.engine.pruning.sparse_kernels import has_sparse_kernels, sparse_speed
from precgui.engine.run_parts import RunParts
from precgui.engine.tasks.base import Batch
from precgui.engine.torch_private import ConvNd
from precgui.events import IncidentKind, StepDone, ZerosCounted
from precgui.sanitize import some_names
from precgui.sentences import L_, Sentence

if TYPE_CHECKING:
    from precgui.config.sparsity import PruningConfig

_TINY = torch.finfo(torch.float32).tiny
_COUNTS = 50  # of zeros in a run, beside those where masks are chosen
NO_SPEED = L_(
    "pruned weights are multiplied as zeros by dense kernels: speed and memory say nothing about hardware or "
    "kernels that leave zeros out"
)


@dataclass
class PrunedLayer:
    """One layer. `updated` is the tensor that the optimizer steps: the weight itself or its FP32 master weight.

    `average` is its moving average where one is kept, `share` the share of zeros at the end.
    """

    module: Any
    weight: nn.Parameter
    updated: Tensor
    average: Tensor | None
    share: float
    dropped: Tensor

    @property
    def scored(self) -> Tensor:
        """The weight as the optimizer keeps it; a master weight of which nothing is kept between steps is empty."""
        return (self.updated if self.updated.numel() else self.weight).detach().float()

    def set_zeros(self) -> None:
        for tensor in (self.weight, self.updated, self.average):
            if tensor is not None and tensor.numel():
                tensor.masked_fill_(self.dropped, 0.0)


class Pruning(LoopHook):
    """Masks of the layers of one run: chosen and applied after each update, before the other hooks see its weights."""

    def __init__(self, run: TrainingRun) -> None:
        """Raises EngineError for a schedule outside of the run, a useless pattern, or a model without layers."""
        config, parts, total_steps = run.config, run.parts, run.total_steps
        self._journal = run.journal
        self.method, self.precision = config.pruning.method, parts.precision
        self.schedule: PruningSchedule = pruning_schedule(config.pruning, total_steps)
        self._total_steps = total_steps
        self.layers = _pruned_layers(config, parts)
        self.notes: list[tuple[IncidentKind, str]] = [("emulated", NO_SPEED), *self._left_dense(config)]
        self._norms = InputNorms({name: layer.module for name, layer in self.layers.items()})

    @classmethod
    def make(cls, run: TrainingRun) -> Self | None:
        return None if run.config.pruning.method == "none" else cls(run)

    def begin_run(self) -> None:
        for kind, note in self.notes:
            self._journal.incident(0, kind, "info", note)

    def begin_step(self, step: int, scale: float, batches: Sequence[Batch]) -> None:
        if self.method == "wanda" and self.schedule.is_due(step):
            self._norms.begin()

    @torch.no_grad()
    def correct_update(self, step: int) -> None:
        """Choose masks where they are due, then set the weights that they drop to zero again."""
        if self.schedule.is_due(step):
            self._norms.end()
            for name, layer in self.layers.items():
                layer.dropped = self._mask(name, layer, layer.share * self.schedule.progress(step))
        for layer in self.layers.values():
            layer.set_zeros()

    def reads_now(self, step: int) -> bool:
        return self.counts_at(step)

    def end_step(self, done: StepDone) -> None:
        if self.counts_at(done.step):
            self._journal.emit(self.zeros(done.step, self._journal.now()))

    def end_run(self) -> None:
        self._journal.facts({"pruning": self.facts()})

    def close(self) -> None:
        self._norms.end()

    def state(self) -> dict[str, Any]:
        return {"dropped": {name: layer.dropped for name, layer in self.layers.items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        for name, layer in self.layers.items():
            layer.dropped = state["dropped"][name].to(layer.dropped)

    def leave_step(self) -> Callable[[StepDone], None]:
        return do_nothing

    def _mask(self, name: str, layer: PrunedLayer, share: float) -> Tensor:
        """Weights that are at zero have the least score, so that a mask only grows."""
        weight = layer.scored
        if layer.share == 0:
            return layer.dropped
        scores = weight.abs().nan_to_num(torch.inf)
        if self.method == "wanda":
            scores = scores * self._norms.of_weight(name, weight)
        scores = scores.clamp_min(_TINY).masked_fill_(layer.dropped, 0.0)
        if self.method == "2:4":
            return masks.two_of_four(scores)
        if self.method == "channels":
            return masks.weakest_outputs(scores, round(share * len(weight)))
        choose = masks.smallest_of_rows if self.method == "wanda" else masks.smallest
        return choose(scores, round(share * weight.numel()))

    def _left_dense(self, config: RunConfig) -> list[tuple[IncidentKind, str]]:
        dense = [name for name, layer in self.layers.items() if layer.share == 0]
        return (
            [("note", Sentence("not pruned: {layers}", layers=some_names(dense, 5)))]
            if dense and config.pruning.share
            else []
        )

    def counts_at(self, step: int) -> bool:
        """Whether zeros are counted after this step."""
        regular = step % max(1, self._total_steps // _COUNTS) == 0
        return regular or step == self._total_steps or self.schedule.is_due(step)

    @torch.no_grad()
    def zeros(self, step: int, now_s: float) -> ZerosCounted:
        """The shares of weights that are zero by mask and by rounding, after `step`."""
        counts = [self._rounded_away(layer) for layer in self.layers.values()]
        elements = sum(layer.weight.numel() for layer in self.layers.values())
        masked = sum(int(layer.dropped.sum()) for layer in self.layers.values())
        by_rounding = float("nan") if None in counts else sum(count for count in counts if count is not None) / elements
        return ZerosCounted(step, now_s, masked / elements, by_rounding)

    def _rounded_away(self, layer: PrunedLayer) -> int | None:
        """The weights that are zero in the product only; None where its rounding is not known."""
        rounded = operand(layer.module, self.precision)
        return None if rounded is None else int(((rounded == 0) & (layer.scored != 0)).sum())

    def facts(self) -> dict[str, Any]:
        """Method, schedule and zeros of each layer, as built-in types."""
        of_layers: dict[str, dict[str, Any]] = {
            name: {"weights": layer.weight.numel(), "zeros_by_mask": int(layer.dropped.sum()), "share": layer.share}
            for name, layer in self.layers.items()
        }
        plan = self.schedule
        device = self.precision.device
        if self.method == "2:4" and has_sparse_kernels(device):
            pruned = {name: layer.module for name, layer in self.layers.items() if layer.share}
            for name, ratio in sparse_speed(pruned, device).items():
                of_layers[name]["dense_over_sparse_time"] = ratio
        return {"method": self.method, "start": plan.start, "end": plan.end, "every": plan.every, "layers": of_layers}


def _pruned_layers(config: RunConfig, parts: RunParts) -> dict[str, PrunedLayer]:
    """The linear and convolutional layers whose weights are trained, by name."""
    chosen = {
        name: module
        for name, module in parts.model.named_modules()
        if isinstance(module, nn.Linear | ConvNd) and module.weight.requires_grad
    }
    if not chosen:
        raise EngineError(
            L_("pruning: the model has no linear or convolutional layer that is trained; set method = none")
        )
    shares = _shares(config, parts.model, chosen)
    averages: list[Tensor | None] = list(parts.average.values) if parts.average is not None else []
    averages += [None] * (len(parts.weights) - len(averages))
    pairs = zip(parts.trained(), parts.weights, averages, strict=True)
    copies = {id(own): (own, updated, average) for (_, own), updated, average in pairs}
    return {
        name: PrunedLayer(
            module, *copies[id(module.weight)], shares[name], torch.zeros_like(module.weight, dtype=torch.bool)
        )
        for name, module in chosen.items()
    }  # fmt: skip


def _shares(config: RunConfig, model: nn.Module, chosen: Mapping[str, Any]) -> dict[str, float]:
    """The share of zeros of each layer at the end."""
    pruning = config.pruning
    own = find_layer_formats(model, pruning.layers, chosen, key="pruning.layers", kind=L_("layer that can be pruned"))
    usual = 0.5 if pruning.method == "2:4" else pruning.share
    shares = {name: float(own.get(name, usual)) for name in chosen}
    last = [*chosen][-1]
    if pruning.method == "channels" and last not in own:
        shares[last] = 0.0  # its outputs are what the model returns
    if pruning.method == "2:4":
        for name, share in shares.items():
            if share not in (0.0, 0.5):
                raise EngineError(
                    Sentence(
                        "pruning.layers: {layer} = {share:g}, but 2:4 drops half of a layer or (0) nothing",
                        layer=name,
                        share=share,
                    )
                )
        shares = {
            name: share if masks.takes_two_of_four(chosen[name].weight) else 0.0 for name, share in shares.items()
        }
        if not any(shares.values()):
            raise EngineError(L_("pruning.method = 2:4: no layer has a number of inputs that is a multiple of 4"))
    return shares


@torch.no_grad()
def operand(layer: Any, precision: Precision) -> Tensor | None:
    """The weight as the product of the layer sees it, up to a factor; None where asking would have side effects.

    Stochastic rounding draws for this batch as the product did. Scales that follow the largest values of steps before
    would change by being asked.
    """
    weight: Tensor = layer.weight.detach()
    if isinstance(layer, NativeLinear):
        return None if layer.scales.weight.is_delayed else _native_fp8(layer, weight)
    products = getattr(layer, "products", None)
    if products is not None:
        scale = getattr(products.weight, "scale", None)
        axis = getattr(getattr(layer, "geometry", None), "weight_axis", 1)
        return None if scale is not None and scale.is_delayed else products.weight(weight.float(), axis)
    quantizer = getattr(layer, "quantizer", None)
    if quantizer is not None:
        return quantizer.weights(weight)  # type: ignore[no-any-return]
    dtype = getattr(precision, "dtype", None)  # of autocast
    return weight if dtype is None or _is_kept(layer, precision) else weight.to(dtype)


def _native_fp8(layer: NativeLinear, weight: Tensor) -> Tensor:
    return (weight * layer.scales.weight(weight, 1)).to(torch.float8_e4m3fn).float()


def _is_kept(layer: nn.Module, precision: Precision) -> bool:
    return any(layer is inner for module in precision.fp32_modules.values() for inner in module.modules())


@dataclass(frozen=True)
class PruningSchedule:
    """Masks are chosen after the update of step `start`, counted from 1, then every `every` steps, last at `end`."""

    start: int
    end: int
    every: int

    def is_due(self, step: int) -> bool:
        """Whether masks are chosen after the update of this step."""
        return step == self.end or (self.start <= step < self.end and (step - self.start) % self.every == 0)

    def progress(self, step: int) -> float:
        """The part of the final share that is reached after `step`: 1 - (1 - t)^3 with t from 0 to 1."""
        if step >= self.end:
            return 1.0
        past = max(0.0, (step - self.start) / (self.end - self.start))
        return float(1 - (1 - past) ** 3)


def pruning_schedule(config: PruningConfig, total_steps: int) -> PruningSchedule:
    """The schedule of a run of `total_steps`. Raises EngineError for one that does not lie inside the run."""
    start = max(1, _steps(config.start, total_steps, is_share=config.start < 1))
    last_moment = max(1, _steps(config.end, total_steps, is_share=config.end <= 1))
    end = start if config.method == "2:4" else last_moment
    last = "pruning.start" if config.method == "2:4" else "pruning.end"
    if end > total_steps:
        raise EngineError(outside_of_run(last, end, total_steps))
    if start > end:
        raise EngineError(
            Sentence(
                "pruning.start is step {start}, after pruning.end at step {end}; exchange the two", start=start, end=end
            )
        )
    return PruningSchedule(start, end, max(1, _steps(config.every, total_steps, is_share=config.every < 1)))


def _steps(moment: float, total_steps: int, *, is_share: bool) -> int:
    return round(moment * total_steps) if is_share else int(moment)
