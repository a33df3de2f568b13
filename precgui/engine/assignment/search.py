"""Formats for the layers of a config: trained in FP32, scored, planned, and the plans measured on held-out data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from precgui.config import EMULATED, RunConfig, build
from precgui.engine import backend_flags, precisions
from precgui.engine.assignment.knapsack import best_plan, fits, mean_bits
from precgui.engine.assignment.local_search import LocalSearch
from precgui.engine.assignment.sensitivity import Products, Sensitivity, measure_sensitivity
from precgui.engine.casting import cast_floats
from precgui.engine.emulation.layers import layers
from precgui.engine.errors import EngineError, Stopped
from precgui.engine.precisions.low import AnyFormat
from precgui.engine.run_parts import RunParts
from precgui.engine.tasks.base import Batch
from precgui.engine.torch_private import tree_leaves, tree_map
from precgui.engine.train import train_quietly
from precgui.formats.registry import bits_per_value
from precgui.sentences import L_, Sentence, message_of

CALIBRATION_BATCHES = 8
_CHUNK = 64  # held-out samples that are evaluated at once; the spread of their losses is the noise
_MOST_SAMPLES = 1024
_HALVINGS = 6  # of the range of bits, to find the narrowest plan within a rise of the loss

Plan = dict[str, str]


@dataclass(frozen=True)
class MeasuredPlan:
    """A format for each layer; bits of a weight on average, and the rise of the held-out loss over FP32.

    `noise` is half the distance between the rises on two halves of the samples.
    """

    layers: Plan
    bits: float
    rise: float
    noise: float

    @property
    def above_noise(self) -> bool:
        """Whether the rise is more than twice its noise; below that, two plans count as equal."""
        return self.rise > 2 * self.noise


@dataclass(frozen=True)
class Assignment:
    """The best plan; all that were measured for it; each format alone in all layers; the held-out loss in FP32."""

    best: MeasuredPlan
    candidates: list[MeasuredPlan]
    uniform: dict[str, MeasuredPlan]
    fp32_loss: float
    samples: int
    scores: dict[str, dict[str, float]]
    weights: dict[str, int]


def assigned_config(config: RunConfig, plan: Mapping[str, str]) -> RunConfig:
    """The config that trains with these formats in weights and inputs of the layers; gradients and the rest in FP32."""
    options = {"layers": dict(plan), "gradients": "fp32", "products": "layers"}
    tree = config.model_dump() | {"precision_schedule": {}}
    return build(
        tree | {"precision": f"{EMULATED}fp32", "precision_options": tree["precision_options"] | options, "title": ""}
    )


def assign(
    config: RunConfig, formats: Sequence[str], *, bits: float | None = None, rise: float | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Assignment:  # fmt: skip
    """Train `config` in FP32, then find formats for its linear and convolutional layers.

    Either at most `bits` for each weight on average, or the fewest bits with which the held-out loss rises by `rise` at
    most. Raises EngineError for faults that the user can correct, Stopped when `stopped()` became true.
    """
    in_fp32 = build(config.model_dump() | {"precision": "fp32", "precision_schedule": {}})
    parts = train_quietly(in_fp32, stopped)
    with backend_flags.restored():
        return AssignmentSearch(in_fp32, parts, formats, stopped).run(bits, rise)


class AssignmentSearch:
    """The search over one trained model, in `parts`, which is left as it was but for its gradients."""

    def __init__(self, config: RunConfig, parts: RunParts, formats: Sequence[str], stopped: Callable[[], bool]) -> None:
        self.config, self.parts, self.stopped = config, parts, stopped
        self.layers = layers(parts.model, set())
        if not self.layers:
            raise EngineError(L_("the model has no linear or convolutional layer, so there is nothing to assign"))
        self.bits = {name: bits_per_value(name) for name in formats}
        self.weights = {name: layer.get_parameter("weight").numel() for name, layer in self.layers.items()}
        self.held_out = list(_chunks(parts.task.validation_batches()))
        self.calibration = list(itertools.islice(parts.task.train_batches(), CALIBRATION_BATCHES))
        self.exact = self._losses(parts.model.eval(), self.held_out)
        self.evaluations = 0  # plans that the last search measured on the calibration batches
        self.measured: dict[tuple[str, ...], MeasuredPlan] = {}

    def run(self, bits: float | None, rise: float | None) -> Assignment:
        """The assignment for one of the two budgets. Raises EngineError and Stopped."""
        uniform = {name: self.measure(dict.fromkeys(self.layers, name)) for name in self.bits}
        sensitivity = self._sensitivity()
        candidates = self._within(sensitivity, bits) if bits is not None else self._below(sensitivity, rise or 0.0)
        return Assignment(
            min(candidates, key=lambda plan: plan.rise) if bits is not None else candidates[0],
            candidates, uniform, _mean(self.exact), sum(count for _, count in self.exact), sensitivity.total(),
            self.weights,
        )  # fmt: skip

    def _within(self, sensitivity: Sensitivity, budget: float) -> list[MeasuredPlan]:
        """The best plans of the three scores, and the best one near them by its loss on the calibration batches."""

        def pack(table: Mapping[str, Mapping[str, float]]) -> Plan:
            return best_plan(table, self.weights, self.bits, budget)

        tables = (sensitivity.total(), sensitivity.weights, sensitivity.outputs)
        try:
            plans = [pack(table) for table in tables]
        except ValueError as error:
            raise EngineError(
                Sentence("{error}; raise the budget or name a narrower format", error=message_of(error))
            ) from None
        search = LocalSearch(
            self._calibration_loss, lambda plan: fits(plan, self.weights, self.bits, budget), pack, tables[0],
            list(self.bits),
        )  # fmt: skip
        plans.append(search.improve(plans))
        self.evaluations = search.evaluations
        unique = {tuple(plan.values()): plan for plan in plans}
        return [self.measure(plan) for plan in unique.values()]

    def _calibration_loss(self, plan: Plan) -> float:
        if self.stopped():
            raise Stopped
        return _mean(self._losses(self._low_model(plan), self.calibration))

    def _below(self, sensitivity: Sensitivity, most: float) -> list[MeasuredPlan]:
        """Plans whose loss rises by `most` at most, the one of the fewest bits first."""
        low, high = min(self.bits.values()), max(self.bits.values())
        good = [plan for plan in self._within(sensitivity, high) if plan.rise <= most]
        if not good:
            raise EngineError(
                Sentence(
                    "with {high:g} bits a weight the held-out loss rises by more than {most:g}; allow a larger rise "
                    "or name a wider format",
                    high=high,
                    most=most,
                )
            )
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            fitting = [plan for plan in self._within(sensitivity, middle) if plan.rise <= most]
            good += fitting
            low, high = (low, middle) if fitting else (middle, high)
        return sorted(good, key=lambda plan: (plan.bits, plan.rise))

    def _sensitivity(self) -> Sensitivity:
        def one(batch: Batch) -> Callable[[], tuple[Tensor, int]]:
            return lambda: (self._loss(self.parts.model, batch), len(batch[1]))

        return measure_sensitivity(self.parts.model, self.layers, map(one, self.calibration), self._products())

    def _products(self) -> Products:
        precision = AnyFormat(assigned_config(self.config, {}), self.parts.device)
        return {name: precision.arithmetic_in(name) for name in self.bits}

    def measure(self, plan: Plan) -> MeasuredPlan:
        """A plan on the held-out data, each measured once. Raises Stopped."""
        if self.stopped():
            raise Stopped
        key = tuple(plan.values())
        if key not in self.measured:
            losses = self._losses(self._low_model(plan), self.held_out)
            rises = [(a - b, n) for (a, n), (b, _) in zip(losses, self.exact, strict=True)]
            noise = abs(_mean(rises[::2]) - _mean(rises[1::2])) / 2 if len(rises) > 1 else math.inf
            bits = mean_bits(plan, self.weights, self.bits)
            self.measured[key] = MeasuredPlan(plan, bits, _mean(rises), noise)
        return self.measured[key]

    def _low_model(self, plan: Plan) -> nn.Module:
        low = precisions.make(assigned_config(self.config, plan), self.parts.device)
        return low.convert(deepcopy(self.parts.model)).eval()

    @torch.no_grad()
    def _losses(self, model: nn.Module, batches: Iterable[Batch]) -> list[tuple[float, int]]:
        return [(float(self._loss(model, batch)), len(batch[1])) for batch in batches]

    def _loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = cast_floats(batch, torch.float32, self.parts.device)
        return self.parts.task.loss(model(inputs), targets)


def _mean(values: Sequence[tuple[float, int]]) -> float:
    return sum(value * count for value, count in values) / sum(count for _, count in values)


def _chunks(batches: Any) -> Iterator[Batch]:
    """About a thousand samples, few at a time where a batch is made of tensors that have one row per sample."""
    taken = 0
    for inputs, targets in batches:
        size = len(targets)
        leaves = tree_leaves((inputs, targets))
        sliced = all(isinstance(leaf, Tensor) and len(leaf) == size for leaf in leaves)
        step = _CHUNK if sliced else size
        for begin in range(0, size, step):
            part = slice(begin, begin + step)
            yield tree_map(lambda leaf, part=part: leaf[part], (inputs, targets)) if sliced else (
                inputs, targets,
            )  # fmt: skip
            taken += step
            if taken >= _MOST_SAMPLES:
                return
