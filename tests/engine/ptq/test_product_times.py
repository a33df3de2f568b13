"""Products from codes: the numbers of the quantised layer; and how many inputs of calibration data reach a layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from precgui.engine.ptq.calibration import inputs_seen
from precgui.engine.ptq.layer_matrix import matrix_layers
from precgui.engine.ptq.methods import quantise_layers
from precgui.engine.ptq.product_times import INPUTS, _from_codes, product_times
from precgui.formats.weight_formats import weight_format


@pytest.mark.parametrize("name", ["int8/row", "int4/32", "int3/64", "int8", "e4m3fn/row", "mxfp4", "nvfp4", "nf4/64",
                                  "gguf:q4_0", "bf16/none"])  # fmt: skip
@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_that_a_product_from_codes_is_that_of_the_numbers(name: str, method: str) -> None:
    torch.manual_seed(0)
    layer, inputs, fmt = nn.Linear(128, 12, bias=False), torch.randn(5, 128), weight_format(name)
    low = quantise_layers({"a": layer}, {"a": fmt}, method, inputs=False, passes=[lambda: layer(inputs)])["a"]
    exact = inputs @ low.coded.values.T
    assert torch.allclose(_from_codes(low, fmt)(inputs), exact, atol=1e-5)


def test_that_linear_layers_are_timed_by_shape_and_format() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 8), nn.Conv2d(1, 2, 3))
    layers = matrix_layers(model)
    formats = dict.fromkeys(layers, weight_format("int8/row"))
    low = quantise_layers(layers, formats, "rtn", inputs=False, passes=[])
    found = product_times(layers, low, formats, lambda: False)
    assert [each.inputs for each in found] == list(INPUTS) and all(each.ratio > 0 for each in found)
    assert product_times(layers, {"3": low["3"]}, formats, lambda: False) == []


class Experts(nn.Module):
    """Each token goes to one of three experts, none to the last. One weight is used without its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.linear(x, self.inner.weight).flatten(0, 1)
        chosen = (x[:, 0] > 0).long()
        result = torch.zeros_like(x)
        for place, expert in enumerate(self.experts):
            if bool((chosen == place).any()):
                result[chosen == place] = expert(x[chosen == place])
        return result


def test_that_inputs_of_experts_are_counted() -> None:
    torch.manual_seed(0)
    model, data = Experts(), torch.randn(4, 6, 8)
    seen = inputs_seen(matrix_layers(model), [lambda: model(data), lambda: model(data)])
    assert seen["experts.2"] == 0 and seen["inner"] is None
    first, second = seen["experts.0"], seen["experts.1"]
    assert first and second and first + second == 2 * 24
    conv = nn.Sequential(nn.Conv1d(2, 3, 3))
    assert inputs_seen(matrix_layers(conv), [lambda: conv(torch.randn(5, 2, 9))]) == {"0": 5}
