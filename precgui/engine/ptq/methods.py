"""The methods of quantising a layer by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from precgui.engine.ptq.calibration import InputStatistics, statistics_of
from precgui.engine.ptq.channel_scales import awq_scale, smooth_scale
from precgui.engine.ptq.layer_matrix import channel_peaks, numbers_a_channel, rows_of
from precgui.engine.ptq.quantised_layers import QuantisedLayer
from precgui.engine.ptq.rounding import (
    CodedRows,
    RowRounding,
    coded_rows,
    codes_of,
    round_rows,
    scales_of,
    width_of_group,
)
from precgui.engine.ptq.scale_folds import FoldedScale, ScaleFold, ScalePlaces
from precgui.formats.weight_formats import WeightFormat

Method = Literal["rtn", "gptq", "awq", "smooth"]
METHODS: tuple[Method, ...] = get_args(Method)
SCALING: tuple[Method, ...] = ("awq", "smooth")  # methods that scale input channels
DAMPING = 0.01  # of GPTQ, of the mean of the diagonal
_BLOCK = 128  # columns of GPTQ; groups never cross a block


def quantise_layers(
    layers: Mapping[str, nn.Module], formats: Mapping[str, WeightFormat], method: Method, *, inputs: bool,
    passes: Sequence[Callable[[], object]], places: ScalePlaces | None = None,
) -> dict[str, QuantisedLayer]:  # fmt: skip
    """The layers in their formats; those whose rows have no such form are left out.

    inputs: their inputs are rounded, too. passes: each runs the model on one calibration batch. places: the only ones
    for scales of input channels, where layers are to be written; None: such scales are applied to the inputs. Layers
    whose inputs a method cannot use (see `has_columns`), that no batch reaches, or whose scale has no place, are
    rounded to nearest.
    """
    fitting = {name: layer for name, layer in layers.items() if not formats[name].misfit(rows_of(layer).shape[1])}
    found: dict[str, QuantisedLayer] = {}
    if method in SCALING and places is not None:
        statistics = dict(statistics_of(fitting, passes, with_hessian=False))
        found = _in_places(fitting, formats, method, statistics, places)
    elif method != "rtn":
        for name, each in statistics_of(fitting, passes, with_hessian=method == "gptq"):
            found[name] = _by_method(fitting[name], formats[name], method, each, inputs=inputs)
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
    scale = _scale_of([layer], [fmt], method, statistics, inputs=inputs)
    return QuantisedLayer(coded_rows(rows * _widened(layer, scale), fmt), scale, rounding, is_scaled=True)


def _widened(layer: nn.Module, scale: Tensor) -> Tensor:
    """Factors of channels as those of the numbers of a row."""
    return scale.repeat_interleave(numbers_a_channel(layer))


def _scale_of(
    layers: Sequence[nn.Module], formats: Sequence[WeightFormat], method: Method, statistics: InputStatistics, *,
    inputs: bool = False,
) -> Tensor:  # fmt: skip
    """The scale of the channels of inputs that these layers share."""
    if method == "smooth":
        assert statistics.largest is not None
        return smooth_scale(statistics.largest, torch.stack([channel_peaks(layer) for layer in layers]).amax(0))
    weights = [
        (rows_of(layer), lambda weights, fmt=fmt: round_rows(weights, fmt))
        for layer, fmt in zip(layers, formats, strict=True)
    ]
    return awq_scale(
        weights, statistics.mean_magnitude, statistics.sample, lambda scale: _widened(layers[0], scale),
        (lambda values: _rounded_sample(values, formats[0])) if inputs else None,
    )  # fmt: skip


def _in_places(
    fitting: Mapping[str, nn.Module], formats: Mapping[str, WeightFormat], method: Method,
    statistics: Mapping[str, InputStatistics], places: ScalePlaces,
) -> dict[str, QuantisedLayer]:  # fmt: skip
    """Weights whose scales a file can keep, beside them or in the layers before."""
    beside = {name for name in statistics if places.beside(formats[name])}
    folded: dict[str, FoldedScale] = {}  # by source
    for fold in places.folds:
        if _takes(fold, fitting, statistics, beside):
            members = [fitting[name] for name in fold.layers]
            scale = _scale_of(members, [formats[name] for name in fold.layers], method, statistics[fold.layers[0]])
            folded[fold.source] = FoldedScale.of(fold, places.model, scale)
    by_layer = {name: each for each in folded.values() for name in each.fold.layers}
    found = {}
    for name, layer in fitting.items():
        rows, own, before = rows_of(layer), None, by_layer.get(name)
        if before is not None:
            rows = rows * before.scale
        elif name in beside:
            own = _scale_of([layer], [formats[name]], method, statistics[name])
            rows = rows * _widened(layer, own)
        if name in folded:
            rows = rows / folded[name].scale[:, None]
        is_first = before is not None and before.fold.layers[0] == name
        found[name] = QuantisedLayer(
            coded_rows(rows, formats[name]), own, absorbed=before.absorbed if before is not None and is_first else (),
            is_scaled=before is not None or own is not None,
        )  # fmt: skip
    return found


def _takes(fold: ScaleFold, fitting: Mapping[str, nn.Module], known: Mapping[str, object], beside: set[str]) -> bool:
    """Whether a fold is of use: all layers are quantised, not all keep the scale beside them, the source is written."""
    return (
        all(name in fitting and name in known for name in fold.layers)
        and not all(name in beside for name in fold.layers)
        and (fold.source in fitting or not fold.source_is_linear)
    )


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


@torch.no_grad()
def gptq(rows: Tensor, hessian: Tensor, fmt: WeightFormat) -> CodedRows:
    """GPTQ for any format (Frantar et al. 2023, arXiv 2210.17323), columns in the order as stored.

    Rows [outputs, line] are rounded one column after the other; the error of each is made good by the columns after it.

    hessian: the mean of x xT over inputs, [line, line]. The scale of a group is found when its first column comes.
    """
    weights, line = rows.detach().float().clone(), rows.shape[1]
    peak = weights.abs().amax()
    inverse, dead = _inverse_factor(hessian, line)
    weights[:, dead] = 0
    result, codes, group = torch.zeros_like(weights), torch.zeros_like(weights), width_of_group(fmt, line)
    found: list[Tensor] = []
    scales = scales_of(weights[:, :group], fmt, peak)
    for begin in range(0, line, _BLOCK):
        end = min(begin + _BLOCK, line)
        errors = torch.zeros(len(weights), end - begin, device=weights.device)
        for column in range(begin, end):
            if column % group == 0 and column:
                scales = scales_of(weights[:, column : column + group], fmt, peak)
            if column % group == 0:
                found.append(scales.back)
            codes[:, column] = codes_of(scales.scaled(weights[:, column : column + 1]), fmt)[:, 0]
            result[:, column] = codes[:, column] * scales.back[:, 0]
            error = (weights[:, column] - result[:, column]) / inverse[column, column]
            weights[:, column:end] -= error[:, None] * inverse[column, column:end]
            errors[:, column - begin] = error
        weights[:, end:] -= errors @ inverse[begin:end, end:]
    return CodedRows(result, codes, torch.cat(found, 1), peak)


def _inverse_factor(hessian: Tensor, line: int) -> tuple[Tensor, Tensor]:
    """The upper Cholesky factor of the inverse in FP32, and the columns whose inputs are always zero."""
    h = hessian.double().clone()
    diagonal = h.diagonal()
    dead = diagonal == 0
    diagonal[dead] = 1
    diagonal += DAMPING * float(diagonal.mean()) if line else 0.0
    lower = torch.linalg.cholesky(h)
    return torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True).float(), dead
