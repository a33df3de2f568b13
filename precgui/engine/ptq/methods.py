"""The methods of quantising a layer by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from precgui.engine.ptq.calibration import InputStatistics, statistics_of
from precgui.engine.ptq.channel_scales import awq_scale, smooth_scale
from precgui.engine.ptq.gptq import gptq
from precgui.engine.ptq.layer_matrix import channel_peaks, numbers_a_channel, rows_of
from precgui.engine.ptq.quantised_layers import QuantisedLayer
from precgui.engine.ptq.rounding import RowRounding, coded_rows, round_rows
from precgui.formats.weight_formats import WeightFormat

Method = Literal["rtn", "gptq", "awq", "smooth"]
METHODS: tuple[Method, ...] = get_args(Method)


def quantise_layers(
    layers: Mapping[str, nn.Module], formats: Mapping[str, WeightFormat], method: Method, *, inputs: bool,
    passes: Sequence[Callable[[], object]],
) -> dict[str, QuantisedLayer]:  # fmt: skip
    """The layers in their formats; those whose rows have no such form are left out.

    inputs: their inputs are rounded, too. passes: each runs the model on one calibration batch. Layers whose inputs a
    method cannot use (see `has_columns`), or that no batch reaches, are rounded to nearest.
    """
    fitting = {name: layer for name, layer in layers.items() if not formats[name].misfit(rows_of(layer).shape[1])}
    found: dict[str, QuantisedLayer] = {}
    if method != "rtn":
        for name, statistics in statistics_of(fitting, passes, with_hessian=method == "gptq"):
            found[name] = _by_method(fitting[name], formats[name], method, statistics, inputs=inputs)
    for name, layer in fitting.items():
        rounding = RowRounding(formats[name]) if inputs else None
        found.setdefault(name, QuantisedLayer(coded_rows(rows_of(layer), formats[name]), inputs=rounding))
    return {name: found[name] for name in fitting}


def _by_method(
    layer: nn.Module, fmt: WeightFormat, method: Method, statistics: InputStatistics, *, inputs: bool
) -> QuantisedLayer:
    rows, rounding = rows_of(layer), RowRounding(fmt) if inputs else None
    if method == "gptq":
        return QuantisedLayer(gptq(rows, statistics.mean_hessian, fmt), inputs=rounding)

    def widen(scale: Tensor) -> Tensor:
        return scale.repeat_interleave(numbers_a_channel(layer))

    if method == "smooth":
        assert statistics.largest is not None
        scale = smooth_scale(statistics.largest, channel_peaks(layer))
    else:
        scale = awq_scale(
            rows, statistics.mean_magnitude, statistics.sample, widen, lambda weights: round_rows(weights, fmt),
            (lambda values: _rounded_sample(values, fmt)) if inputs else None,
        )  # fmt: skip
    return QuantisedLayer(coded_rows(rows * widen(scale), fmt), scale, rounding)


def _rounded_sample(values: Tensor, fmt: WeightFormat) -> Tensor:
    """Inputs of a layer as its products take them; those that have no such form stay as they are."""
    return values if fmt.misfit(values.shape[1]) else round_rows(values, fmt)


def passes_of(run: Callable[[object], object], batches: Sequence[object]) -> list[Callable[[], object]]:
    """One call for each batch, without gradients."""

    def one(batch: object) -> Callable[[], object]:
        def call() -> object:
            with torch.no_grad():
                return run(batch)

        return call

    return [one(batch) for batch in batches]
