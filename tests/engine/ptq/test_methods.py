"""GPTQ beside a double-precision form of its paper, and scales of channels on planted outliers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from precgui.engine.ptq import calibration
from precgui.engine.ptq.channel_scales import awq_scale, smooth_scale
from precgui.engine.ptq.layer_matrix import channel_peaks, columns_of, rows_of
from precgui.engine.ptq.methods import DAMPING, METHODS, gptq, quantise_layers
from precgui.engine.ptq.quantised_layers import applied
from precgui.engine.ptq.rounding import round_rows
from precgui.formats.weight_formats import WeightFormat, round_weights, weight_format


def correlated(count: int, line: int, seed: int = 0) -> Tensor:
    """Inputs whose columns depend on each other, so that one can make good the error of another."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(count, 12, generator=g) @ torch.randn(12, line, generator=g) + 0.2 * torch.randn(
        count, line, generator=g
    )


def reference(rows: np.ndarray, hessian: np.ndarray, name: str, group: int) -> np.ndarray:
    """Columns one by one, with the inverse of what is left updated by elimination: no Cholesky factor, no blocks."""
    fmt = weight_format(name)
    w, h = rows.astype(np.float64).copy(), hessian.astype(np.float64).copy()
    h[np.diag_indices_from(h)] += DAMPING * np.diag(h).mean()
    inverse, result = np.linalg.inv(h), np.zeros_like(w)
    peak = np.abs(rows).max()
    line = w.shape[1]
    for begin in range(0, line, group):
        frozen = w[:, begin : begin + group].astype(np.float32)
        for column in range(begin, begin + group):
            probe = frozen.copy()  # the column in a group whose scale is that of its first moment
            probe = np.concatenate([w[:, column : column + 1].astype(np.float32), probe], 1)
            result[:, column] = _with_scale_of(frozen, probe[:, 0], fmt, float(peak))
            error = (w[:, column] - result[:, column]) / inverse[column, column]
            w[:, column + 1 :] -= error[:, None] * inverse[column, column + 1 :]
            inverse -= np.outer(inverse[:, column], inverse[column]) / inverse[column, column]
    return result


def _with_scale_of(group: np.ndarray, column: np.ndarray, fmt: WeightFormat, peak: float) -> np.ndarray:
    """Round a column with the scale of a group, which its largest member makes: beside it in a row of two or more."""
    largest = np.take_along_axis(group, np.abs(group).argmax(1)[:, None], 1)
    bound = np.clip(column[:, None], -np.abs(largest), np.abs(largest))  # beyond it a code saturates, as -8 does not
    pair = np.concatenate([bound, largest], 1)
    width = fmt.group if fmt.group > 0 else 2
    padded = np.pad(pair, ((0, 0), (0, width - 2)))
    return round_weights(padded, fmt, largest=peak)[:, 0].astype(np.float64)


@pytest.mark.parametrize(("name", "group"), [("int4/128", 128), ("int3/32", 32), ("int4/row", 160), ("nvfp4", 16),
                                             ("mxfp4", 32), ("e3m2/row", 160)])  # fmt: skip
def test_that_gptq_does_what_its_paper_says(name: str, group: int) -> None:
    line = 256 if group == 128 else 160
    inputs = correlated(600, line)
    rows = torch.randn(24, line, generator=torch.Generator().manual_seed(1))
    hessian = (inputs.T @ inputs).double() / len(inputs)
    ours = gptq(rows, hessian, weight_format(name)).values.double().numpy()
    theirs = reference(rows.numpy(), hessian.numpy(), name, group)

    def error(found: np.ndarray) -> float:
        return float(np.square(inputs.double().numpy() @ (found - rows.double().numpy()).T).mean())

    assert error(ours) == pytest.approx(error(theirs), rel=0.05)
    assert np.isclose(ours, theirs, rtol=1e-4, atol=1e-6).mean() > 0.9  # a tie that falls otherwise moves what follows
    assert error(ours) < 0.6 * error(round_rows(rows, weight_format(name)).double().numpy())


def test_that_gptq_takes_columns_that_are_never_used_for_zeros() -> None:
    inputs = correlated(100, 64)
    inputs[:, 5] = 0
    found = gptq(torch.randn(4, 64), (inputs.T @ inputs).double() / 100, weight_format("int4/32")).values
    assert not found[:, 5].any() and torch.isfinite(found).all()


def planted(layer: nn.Linear, inputs: Tensor, factor: float = 60.0) -> Tensor:
    """Three channels far wider, and the columns behind them as much narrower: the same function."""
    wide = torch.tensor([3, 40, 99])
    with torch.no_grad():
        layer.weight[:, wide] /= factor
    inputs = inputs.clone()
    inputs[:, wide] *= factor
    return inputs


@pytest.mark.parametrize("method", ["awq", "smooth"])
def test_that_scales_of_channels_mend_planted_outliers(method: str) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(128, 64)
    inputs = planted(layer, torch.randn(256, 128))
    exact = layer(inputs).detach()

    def error(fmt: str, chosen: str) -> float:
        low = quantise_layers(
            {"": layer}, {"": weight_format(fmt)}, chosen, inputs=True, passes=[lambda: layer(inputs)]
        )
        with applied({"": layer}, low), torch.no_grad():
            return float((layer(inputs) - exact).square().mean())

    assert error("int8/row", method) < 0.1 * error("int8/row", "rtn")
    assert error("int4/128", method) < 0.5 * error("int4/128", "rtn")
    assert error("e4m3fn/row", "rtn") < 0.1 * error("int8/row", "rtn")  # FP8 does not care about outliers


def test_that_scales_are_those_of_the_papers() -> None:
    inputs, weights = torch.tensor([16.0, 1, 4]), torch.tensor([1.0, 4, 1])
    scale = smooth_scale(inputs, weights)
    assert torch.allclose(scale / scale[1], torch.tensor([4.0, 0.5, 2]) / 0.5)
    rows, sample = torch.randn(8, 32), torch.randn(64, 32)
    fmt = weight_format("int4/32")
    best = awq_scale([(rows, lambda w: round_rows(w, fmt))], sample.abs().mean(0), sample, lambda s: s)
    errors = []
    for exponent in range(11):
        s = sample.abs().mean(0).double() ** (exponent / 10)
        s = (s / (s.max() * s.min()).sqrt()).float()
        errors.append(
            float(
                (((sample / s).double() @ round_rows(rows * s, fmt).double().T) - sample.double() @ rows.double().T)
                .square()
                .mean()
            )
        )
    chosen = float(
        (((sample / best).double() @ round_rows(rows * best, fmt).double().T) - sample.double() @ rows.double().T)
        .square()
        .mean()
    )
    assert chosen == pytest.approx(min(errors), rel=1e-3)


def test_that_convolutions_are_matrices() -> None:
    layer, images = nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=1), torch.randn(2, 4, 9, 9)
    product = columns_of(layer, images) @ rows_of(layer).T + layer.bias
    expected = layer(images).flatten(2).transpose(1, 2).reshape(-1, 6)
    assert torch.allclose(product, expected, atol=1e-5)
    assert torch.equal(channel_peaks(layer), layer.weight.detach().abs().amax((0, 2, 3)))


def test_that_a_layer_is_as_it_was_after_every_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "MOST_HESSIAN_BYTES", 1)  # one layer a pass
    model = nn.Sequential(nn.Conv2d(4, 32, 3), nn.Conv2d(32, 32, 3, groups=4), nn.Flatten(), nn.Linear(32 * 25, 10))
    images = torch.randn(8, 4, 9, 9)
    exact, layers = model(images).detach(), {n: m for n, m in model.named_children() if n != "2"}
    for method in METHODS:
        low = quantise_layers(layers, dict.fromkeys(layers, weight_format("int8/row")), method, inputs=True,
                              passes=[lambda: model(images)])  # fmt: skip
        with applied(layers, low):
            rounded = model(images).detach()
        assert 0 < float((rounded - exact).abs().max()) < 0.1
        assert torch.equal(model(images), exact)
