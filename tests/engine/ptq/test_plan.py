"""Plans within a budget: they fit, the layers that matter get the wide formats, and other data verify them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from precgui.engine.errors import EngineError
from precgui.engine.ptq.effects import EffectMeter
from precgui.engine.ptq.held_out import HeldOut
from precgui.engine.ptq.plan import Planner, tied_groups
from precgui.engine.ptq.recipes import llm_compressor_recipe, torchao_recipe
from precgui.formats.weight_formats import weight_format
from tests.engine.ptq.test_effects import CPU, Classes


@pytest.fixture(scope="module")
def meter() -> EffectMeter:
    """A model in which one layer's outputs are multiplied by 30: its errors matter most."""
    torch.manual_seed(0)

    class Louder(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 30 * x

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(64, 64) for _ in range(3))
            self.loud = nn.Sequential(nn.Linear(64, 64), Louder())
            self.odd = nn.Linear(20, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mixed = self.q_proj(x) + self.k_proj(x) + self.v_proj(x) + self.loud(x) + self.odd(x[:, :20])
            return mixed[:, :5] + mixed[:, 5:10]

    model = Both()
    data = [(x, model(x).argmax(1)) for x in (torch.randn(32, 64) for _ in range(2))]
    held = HeldOut(Classes(), model, data, CPU)
    return EffectMeter(held, data, [weight_format(name) for name in ("int4/32", "int8/32", "int3/32")])


def test_that_a_plan_fits_and_gives_the_width_to_the_layer_that_matters(meter: EffectMeter) -> None:
    singles = list(meter.singles(list(meter.layers), inputs=False))
    planner = Planner(meter, singles, ["rtn", "gptq"], inputs=False)
    plan = planner.plan("bits", 6.0)
    assert planner.score == "measured" and "odd" not in plan.formats and plan.bits <= 6.0
    assert plan.formats["loud.0"] == "int8/32" and set(plan.formats.values()) != {"int8/32"}
    assert plan.nbytes == sum(meter.nbytes(name, weight_format(fmt)) for name, fmt in plan.formats.items())
    assert len(plan.verified.rises) == 32 == len(plan.change.rises) // 2
    assert torch.equal(plan.verified.rises, plan.change.rises[1::2])
    whole = planner.plan("bytes", 10**9)
    assert set(whole.formats.values()) == {"int8/32"}
    loss = planner.plan("loss", whole.change.half(0).rise + 0.05)
    assert loss.nbytes < whole.nbytes and loss.change.half(0).rise <= whole.change.half(0).rise + 0.05
    with pytest.raises(EngineError, match="--budget bits=2: the narrowest formats take"):
        planner.plan("bits", 2)
    with pytest.raises(EngineError, match="more than -5"):
        planner.plan("loss", -5)


def test_that_layers_of_one_product_and_of_one_weight_get_one_format(meter: EffectMeter) -> None:
    names = ["q_proj", "k_proj", "v_proj", "loud.0"]
    assert tied_groups(meter, names, fuses=True) == {"q_proj": names[:3], "loud.0": ["loud.0"]}
    assert len(tied_groups(meter, names, fuses=False)) == 4
    kept = meter.layers["loud.0"].weight
    meter.layers["loud.0"].weight = meter.layers["v_proj"].weight
    assert tied_groups(meter, names, fuses=True) == {"q_proj": names}
    assert tied_groups(meter, names, fuses=False)["v_proj"] == ["v_proj", "loud.0"]
    meter.layers["loud.0"].weight = kept
    plan = Planner(meter, [], ["rtn"], inputs=False, fuses=True).plan("bits", 6.5)
    assert plan.score == "output_fisher" and len({plan.formats[name] for name in names[:3]}) == 1


def test_that_recipes_name_every_layer() -> None:
    formats = {"a.b": weight_format("int4/128"), "c": weight_format("e4m3fn/row"), "d": weight_format("int4/128")}
    text = llm_compressor_recipe(formats, ["head"], "gptq")
    assert "GPTQModifier" in text and 'targets: ["a.b", "d"]' in text and 'ignore: ["head"]' in text
    assert '"num_bits": 4' in text and text.count("group_") == 3
    code = torchao_recipe(formats)
    compile(code, "recipe", "exec")
    assert "'a.b': IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(128))" in code
    with pytest.raises(EngineError, match="torchao has no form for nf4/64"):
        torchao_recipe({"a": weight_format("nf4/64")})
    with pytest.raises(EngineError, match="compressed-tensors has no form for e5m2"):
        llm_compressor_recipe({"a": weight_format("e5m2")}, [], "rtn")


def test_that_the_recipe_of_torchao_runs_and_rounds_to_the_same_integers() -> None:
    pytest.importorskip("torchao", reason="torchao is not installed")
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 8)).eval()
    before = model[0].weight.detach().clone()
    exec(torchao_recipe({"0": weight_format("int8/row")}), {"model": model})
    after = model[0].weight.dequantize()
    assert 0 < float((after - before).abs().max()) <= float(before.abs().max()) / 127
    assert type(model[1].weight) is nn.Parameter
