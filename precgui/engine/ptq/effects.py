"""The measured effect of formats on a trained model: whole, by layer, and how well cheap scores order the layers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from precgui.engine.assignment.sensitivity import Sensitivity, measure_sensitivity
from precgui.engine.emulation.layers import MatmulArithmetic
from precgui.engine.emulation.operands import Identity
from precgui.engine.errors import EngineError, Stopped
from precgui.engine.ptq.calibration import inputs_seen
from precgui.engine.ptq.held_out import HeldOut, LossChange
from precgui.engine.ptq.layer_matrix import matrix_layers, rows_of, weight_of
from precgui.engine.ptq.methods import Method, passes_of, quantise_layers
from precgui.engine.ptq.quantised_layers import KvRounding, QuantisedLayer, applied
from precgui.engine.ptq.rounding import RowRounding, round_rows
from precgui.engine.ptq.scale_folds import ScalePlaces, scale_folds
from precgui.engine.tasks.base import Batch
from precgui.formats.checkpoints.target_forms import keeps_input_scale
from precgui.formats.weight_formats import WeightFormat
from precgui.sentences import L_, message_of

Rounded = Literal["weights", "inputs", "k", "v"]  # inputs: weights and inputs
CALIBRATION_BATCHES = 8
SCORES = ("output_fisher", "weight_fisher", "first_order", "first_and_second", "sqnr", "weight_error")


@dataclass(frozen=True)
class WholeEffect:
    """All layers in one format by one method; `change` is None with the reason in `why_not`.

    nbytes: of the weights of these layers with their scales; `left_out` are layers whose rows have no such form.
    """

    format: str
    method: str
    rounded: Rounded
    nbytes: int
    change: LossChange | None
    left_out: tuple[str, ...] = ()
    why_not: str = ""


@dataclass(frozen=True)
class LayerEffect:
    """One layer alone in one format, rounded to nearest; scores by name."""

    layer: str
    format: str
    nbytes: int
    change: LossChange
    scores: Mapping[str, float]


class EffectMeter:
    """Measures a model, which is left as it was."""

    def __init__(
        self, held_out: HeldOut, calibration: Sequence[Batch], formats: Sequence[WeightFormat],
    ) -> None:  # fmt: skip
        """Raises EngineError for a model without layers that can be quantised."""
        self.held_out, self.calibration = held_out, list(calibration)
        self.formats = {fmt.name: fmt for fmt in formats}
        self.layers = matrix_layers(held_out.model)
        if not self.layers:
            raise EngineError(L_("the model has no linear or convolutional layer, so there is nothing to quantise"))

    @property
    def passes(self) -> list[Callable[[], object]]:
        """Runs of the model on the calibration batches. Raises Stopped."""

        def run(batch: object) -> object:
            if self.held_out.stopped():
                raise Stopped
            return self.held_out.batch_loss(batch)  # type: ignore[arg-type]

        return passes_of(run, self.calibration)

    @property
    def plain_bytes(self) -> int:
        """Bytes of the weights of the layers as they are."""
        return sum(map(self._plain_bytes, self.layers))

    def weight(self, layer: str) -> nn.Parameter:
        return weight_of(self.layers[layer])

    def nbytes(self, layer: str, fmt: WeightFormat) -> int:
        """Bytes of a layer's weight in a format, scales included."""
        rows = rows_of(self.layers[layer])
        return fmt.nbytes(tuple(rows.shape), rows.shape[1])

    def quantised(
        self, formats: Mapping[str, WeightFormat], method: Method, *, inputs: bool, places: ScalePlaces | None = None,
    ) -> dict[str, QuantisedLayer]:  # fmt: skip
        """Layers in these formats by a method; `places` for scales as in `quantise_layers`. Raises Stopped."""
        chosen = {name: self.layers[name] for name in formats}
        return quantise_layers(chosen, formats, method, inputs=inputs, passes=self.passes, places=places)

    def inputs_seen(self) -> dict[str, int | None]:
        """How many inputs of the calibration data reach each layer. Raises Stopped."""
        return inputs_seen(self.layers, self.passes)

    def scale_places(self, target: str) -> ScalePlaces:
        """Where files of a target keep scales of input channels of this model."""
        first = _one_sample(self.calibration[0])
        folds = scale_folds(self.held_out.model, self.layers, lambda: self.held_out.outputs(first))
        return ScalePlaces(self.held_out.model, tuple(folds), partial(keeps_input_scale, target))

    def measure(self, quantised: Mapping[str, QuantisedLayer]) -> LossChange:
        """The change with these layers. Raises Stopped."""
        with applied(self.layers, quantised):
            return self.held_out.measure()

    def whole(self, methods: Sequence[Method], rounded: Sequence[Rounded]) -> Iterator[WholeEffect]:
        """Each format in all layers, weights or inputs, too, by each method; keys and values. Raises Stopped."""
        for fmt in self.formats.values():
            for part in rounded:
                if part in ("k", "v"):
                    yield self._of_cache(fmt, part)
                else:
                    yield from (self._of_layers(fmt, method, part) for method in methods)

    def _of_layers(self, fmt: WeightFormat, method: Method, part: Rounded) -> WholeEffect:
        low = self.quantised(dict.fromkeys(self.layers, fmt), method, inputs=part == "inputs")
        left_out = tuple(name for name in self.layers if name not in low)
        size = sum(self.nbytes(name, fmt) if name in low else self._plain_bytes(name) for name in self.layers)
        if not low:
            return WholeEffect(fmt.name, method, part, size, None, left_out, L_("no layer has rows of such groups"))
        return WholeEffect(fmt.name, method, part, size, self.measure(low), left_out)

    def _plain_bytes(self, layer: str) -> int:
        weight = weight_of(self.layers[layer])
        return weight.numel() * weight.element_size()

    def _of_cache(self, fmt: WeightFormat, part: Rounded) -> WholeEffect:
        size = self.plain_bytes
        mode = KvRounding([part], fmt)
        try:
            with mode:
                change = self.held_out.measure()
        except ValueError as error:
            return WholeEffect(fmt.name, "rtn", part, size, None, (), message_of(error))
        if not mode.calls:
            return WholeEffect(fmt.name, "rtn", part, size, None, (), L_("no attention was found"))
        return WholeEffect(fmt.name, "rtn", part, size, change)

    def chosen_layers(self, most: int) -> list[str]:
        """All layers, or `most` of them spread evenly."""
        names = list(self.layers)
        if len(names) <= most:
            return names
        return [names[round(n * (len(names) - 1) / max(most - 1, 1))] for n in range(most)]

    def singles(self, names: Sequence[str], *, inputs: bool) -> Iterator[LayerEffect]:
        """Each of these layers alone in each format, with its scores by one backward pass. Raises Stopped."""
        scores = self.scores(inputs=inputs)
        for name in names:
            for fmt in self.formats.values():
                low = self.quantised({name: fmt}, "rtn", inputs=inputs)
                if low:
                    change = self.measure(low)
                    yield LayerEffect(name, fmt.name, self.nbytes(name, fmt), change, scores[name][fmt.name])

    def scores(self, *, inputs: bool) -> dict[str, dict[str, dict[str, float]]]:
        """By layer, format and name of the score; higher is worse. One backward pass for each calibration batch."""
        fitting = {name: layer for name, layer in self.layers.items() if self.forms(layer)}
        labels = {fmt.name for layer in fitting.values() for fmt in self.forms(layer)}
        products = {label: self._arithmetic_in(self.formats[label], inputs=inputs) for label in labels}
        with torch.enable_grad(), _all_gradients(self.held_out.model):
            found = measure_sensitivity(self.held_out.model, fitting, map(self._one_loss, self.calibration), products)
        return {
            name: {
                fmt.name: _scores_of(found, name, fmt.name, inputs=inputs) | _of_weights(rows_of(layer), fmt)
                for fmt in self.forms(layer)
            }
            for name, layer in fitting.items()
        }

    def unfit(self) -> set[str]:
        """Layers whose rows have none of the formats."""
        return {name for name, layer in self.layers.items() if not self.forms(layer)}

    def forms(self, layer: nn.Module) -> list[WeightFormat]:
        """The formats that the rows of a layer have."""
        line = rows_of(layer).shape[1]
        return [fmt for fmt in self.formats.values() if not fmt.misfit(line)]

    def _one_loss(self, batch: Batch) -> Callable[[], tuple[Tensor, int]]:
        if self.held_out.stopped():
            raise Stopped
        return lambda: (self.held_out.batch_loss(batch), len(batch[1]))

    def _arithmetic_in(self, fmt: WeightFormat, *, inputs: bool) -> Callable[[str], MatmulArithmetic]:
        def of_layer(name: str) -> MatmulArithmetic:
            if fmt.misfit(rows_of(self.layers[name]).shape[1]):
                return MatmulArithmetic(fmt.name, Identity(), Identity(), Identity())
            activation = RowRounding(fmt) if inputs else Identity()
            return MatmulArithmetic(fmt.name, RowRounding(fmt, is_weight=True), activation, Identity())

        return of_layer


def _one_sample(batch: Batch) -> Batch:
    """The first sample of a batch of tensors; other batches whole."""
    inputs, targets = batch
    is_rows = isinstance(inputs, Tensor) and isinstance(targets, Tensor) and len(inputs) == len(targets)
    return (inputs[:1], targets[:1]) if is_rows else batch


def _scores_of(found: Sensitivity, layer: str, fmt: str, *, inputs: bool) -> dict[str, float]:
    fisher, slope = found.outputs[layer][fmt], found.first_order[layer][fmt]
    scores = {"output_fisher": fisher, "first_order": abs(slope), "first_and_second": slope + fisher}
    return scores if inputs else scores | {"weight_fisher": found.weights[layer][fmt]}


def _of_weights(rows: Tensor, fmt: WeightFormat) -> dict[str, float]:
    """Scores from the weights alone: the squared error, and that relative to their squares."""
    noise = float((round_rows(rows, fmt) - rows).double().square().sum())
    signal = float(rows.double().square().sum())
    return {"weight_error": noise, "sqnr": noise / signal if signal else math.nan}


@contextlib.contextmanager
def _all_gradients(model: nn.Module) -> Iterator[None]:
    """Gradients of all parameters inside, whatever a task has frozen."""
    frozen = [each for each in model.parameters() if not each.requires_grad and each.is_floating_point()]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
