"""Layers with a number format of their own."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from precgui import config
from precgui.engine import precisions
from precgui.engine.errors import EngineError
from precgui.engine.precisions.base import Precision
from tests.engine.precisions.layer_gradients import gradients

CPU = torch.device("cpu")
LAYERS = "precision_options.layers"


def made(name: str, *settings: str) -> Precision:
    return precisions.make(config.load("digits-quick", [f"precision={name}", *settings]), CPU)


def rounded(tensor: Tensor, dtype: type) -> Tensor:
    return torch.from_numpy(tensor.detach().numpy().astype(dtype).astype(np.float32))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)), nn.Linear(16, 4))


def test_that_a_layer_is_rounded_to_its_own_format_forward_and_backward() -> None:
    precision = made("emulated:bf16", f"{LAYERS}=1.*=e4m3fn")
    layer = precision.convert(net())[1][0]
    x, grad = torch.randn(5, 16), torch.randn(5, 16)
    out, grad_x, grad_w = gradients(layer, x, grad)
    weight, x_q, grad_q = (rounded(t, ml_dtypes.float8_e4m3fn) for t in (layer.weight, x, grad))
    torch.testing.assert_close(out, nn.functional.linear(x_q, weight, layer.bias))
    torch.testing.assert_close(grad_x, grad_q @ weight)
    torch.testing.assert_close(grad_w, grad_q.t() @ x_q)
    assert precision.labels == {"0": "bf16", "1.0": "e4m3fn", "1.1": "e4m3fn", "2": "bf16"}


def test_that_the_first_pattern_that_matches_a_layer_counts_and_a_pattern_may_name_the_module_around_it() -> None:
    precision = made("mxfp4", f"{LAYERS}=last=fp32, 1.1=e5m2, 1=bf16")
    precision.convert(net())
    assert precision.labels == {"0": "mxfp4", "1.0": "bf16", "1.1": "e5m2", "2": "fp32"}
    assert [note.split(" is emulated")[0] for note in precision.notes[:4]] == ["mxfp4", "bf16", "e5m2", "fp32"]


def test_that_a_layer_in_fp32_computes_as_without_rounding_also_where_functions_are_rounded() -> None:
    model = net()
    expected = [t.clone() for t in gradients(model[2], torch.ones(3, 16), torch.ones(3, 4))]
    precision = made("emulated:e2m1", f"{LAYERS}=2=fp32")
    layer = precision.convert(model)[2]
    layer.zero_grad()
    with precision.forward_context():
        again = gradients(layer, torch.ones(3, 16), torch.ones(3, 4))
    assert all(torch.equal(a, b) for a, b in zip(again, expected, strict=True))


def test_that_gradients_keep_a_format_that_is_named_for_them() -> None:
    precision = made("emulated:bf16", f"{LAYERS}=0=int2", "precision_options.gradients=fp32")
    precision.convert(net())
    assert precision.labels["0"] == "int2 (gradients fp32)"


@pytest.mark.parametrize("name", ["emulated:bf16", "fp8", "nvfp4"])
def test_that_a_pattern_that_matches_no_rounded_layer_is_refused(name: str) -> None:
    with pytest.raises(EngineError, match=r"precision_options.layers: 'hed' matches no module"):
        made(name, f"{LAYERS}=hed=fp32").convert(net())
    model = net().append(nn.ReLU())
    with pytest.raises(EngineError, match=r"'relu' matches no layer whose products are rounded; those are 0, 1.0"):
        made(name, f"{LAYERS}=relu=fp32").convert(model)


def test_that_a_precision_that_rounds_no_products_says_that_formats_of_layers_do_nothing() -> None:
    precision = made("bf16-amp", f"{LAYERS}=0=fp32")
    precision.convert(net())
    assert "precision_options.layers does nothing in bf16-amp" in precision.notes


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("head", "'head' is not pattern=format, such as blocks.0.*=e4m3fn"),
        ("head=", "'head=' is not pattern=format"),
        ("head=fp33", "fp33"),
    ],
)
def test_that_what_is_no_table_of_formats_is_named(text: str, sentence: str) -> None:
    with pytest.raises(config.ConfigError, match=sentence.replace("*", r"\*")):
        config.load("digits-quick", [f"{LAYERS}={text}"])


def test_that_formats_of_layers_survive_toml(tmp_path: Path) -> None:
    kept = config.load("digits-quick", ["precision=emulated:bf16", f"{LAYERS}=conv*=e4m3fn, head=fp32"])
    assert kept.precision_options.layers == {"conv*": "e4m3fn", "head": "fp32"}
    file = tmp_path / "layers.toml"
    file.write_text(config.to_toml(kept))
    assert config.load(file) == kept
