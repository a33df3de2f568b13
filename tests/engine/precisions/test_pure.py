"""Weights in 16 bits: what is lost, what master weights and stochastic updates save, what stays in FP32."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from precgui import config
from precgui.engine import precisions
from precgui.engine.errors import EngineError
from precgui.engine.precisions import fp32_modules
from precgui.engine.precisions.base import Precision
from precgui.engine.precisions.pure import BF16Scaler
from precgui.events import Incident, StepDone
from tests.engine.conftest import Record

CPU = torch.device("cpu")


def made(name: str, *settings: str) -> Precision:
    return precisions.make(
        config.load("digits-quick", [f"precision={name}", "scaling.initial_scale=256", *settings]), CPU
    )


def updated(precision: Precision, steps: int, lr: float, size: int = 1) -> torch.Tensor:
    """A weight of 1.0 after so many steps of plain descent along a gradient of -1."""
    model = nn.Linear(size, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    model = precision.convert(model)
    optimizer = torch.optim.SGD(precision.weights(model), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        precision.backward(-model.weight.sum())
        precision.unscale(optimizer)
        assert not precision.step(optimizer)
    return model.weight.detach().float().flatten()


def test_that_bf16_loses_updates_below_half_an_ulp() -> None:
    assert updated(made("bf16-pure"), 100, 1e-3).item() == 1.0


@pytest.mark.parametrize("name", ["bf16-pure", "fp16-pure"])
def test_that_master_weights_keep_small_updates(name: str) -> None:
    step = {"bf16-pure": 1e-3, "fp16-pure": 1e-4}[name]
    weight = updated(made(name, "precision_options.master_weights=true"), 100, step).item()
    assert weight == pytest.approx(1 + 100 * step, rel=4e-3 if name == "bf16-pure" else 5e-4)
    assert updated(made(name), 100, step).item() == 1.0


def test_that_stochastic_updates_are_right_on_average() -> None:
    weights = updated(made("bf16-sr"), 100, 1e-4, size=4096)
    standard_error = weights.std().item() / 4096**0.5
    assert abs(weights.mean().item() - 1.01) < 4 * standard_error
    assert weights.unique().numel() > 2
    assert torch.equal(weights, weights.bfloat16().float())


def test_that_stochastic_updates_repeat_with_the_seed() -> None:
    first, second, other = (updated(made("bf16-sr", f"seed={seed}"), 20, 1e-3, size=64) for seed in (3, 3, 4))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("name", "settings", "weight", "state"),
    [
        ("fp64", (), torch.float64, torch.float64),
        ("bf16-amp", (), torch.float32, torch.float32),
        ("bf16-pure", (), torch.bfloat16, torch.bfloat16),
        ("fp16-pure", (), torch.float16, torch.float16),
        ("fp16-pure", ("precision_options.master_weights=true",), torch.float16, torch.float32),
        ("bf16-sr", (), torch.bfloat16, torch.float32),
    ],
)
def test_that_weights_and_optimizer_state_are_in_their_format(
    name: str, settings: tuple[str, ...], weight: torch.dtype, state: torch.dtype
) -> None:
    precision = made(name, *settings)
    model = precision.convert(nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(precision.weights(model), eps=1e-4)
    inputs, _ = precision.convert_input(torch.randn(3, 4), torch.zeros(3, dtype=torch.long))
    with precision.forward_context():
        out = precision.convert_output(model(inputs))
    precision.backward(out.sum())
    precision.unscale(optimizer)
    precision.step(optimizer)
    assert {p.dtype for p in model.parameters()} == {weight}
    assert {s["exp_avg"].dtype for s in optimizer.state.values()} == {state}
    assert out.dtype == (torch.float64 if name == "fp64" else torch.float32)


def test_that_a_skipped_step_leaves_the_weights_alone() -> None:
    for settings in ((), ("precision_options.master_weights=true",)):
        precision = made("fp16-pure", *settings, "scaling.initial_scale=1e9")
        model = precision.convert(nn.Linear(4, 2))
        before = [p.detach().clone() for p in model.parameters()]
        optimizer = torch.optim.SGD(precision.weights(model), lr=1.0)
        precision.backward(precision.convert_output(model(torch.ones(3, 4, dtype=torch.float16))).sum())
        precision.unscale(optimizer)
        assert not all(bool(w.grad.isfinite().all()) for g in optimizer.param_groups for w in g["params"])
        assert precision.step(optimizer)
        assert precision.scale == 5e8
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def test_that_an_epsilon_lost_in_fp16_is_told(record: Record) -> None:
    def notes(*settings: str) -> str:
        events = record("precision=fp16-pure", "train.max_steps=1", "optimizer.name=adamw", *settings)
        return " ".join(e.message for e in events if isinstance(e, Incident))

    assert "optimizer.eps = 1e-08 is zero in FP16" in notes()
    assert "optimizer.eps" not in notes("optimizer.eps=1e-4")
    assert "optimizer.eps" not in notes("precision_options.master_weights=true")


def network() -> nn.Module:
    return nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()), nn.LayerNorm(8), nn.Linear(8, 2))


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["*norm*"], ["0.1", "1"]),
        (["BatchNorm1d"], ["0.1"]),
        (["first"], ["0.0"]),
        (["last", "0.?"], ["0.0", "0.1", "0.2", "2"]),
        (["0", "0.1"], ["0"]),
    ],
)
def test_that_a_pattern_finds_names_types_and_ends(patterns: list[str], names: list[str]) -> None:
    assert list(fp32_modules.find(network(), patterns)) == names


def test_that_a_pattern_that_matches_nothing_is_named() -> None:
    with pytest.raises(EngineError, match=r"keep_fp32: '\*dropout\*' matches no module; the first ones are 0, 0\.0"):
        made("bf16-pure", "precision_options.keep_fp32=*dropout*").convert(network())


@pytest.mark.parametrize("name", ["bf16-pure", "fp16-pure", "bf16-sr", "bf16-amp", "fp16-amp"])
def test_that_kept_modules_compute_in_fp32(name: str) -> None:
    precision = made(name, "precision_options.keep_fp32=first,*norm*")
    model = precision.convert(network())
    seen: dict[str, tuple[torch.dtype, torch.dtype]] = {}
    for place in ("0.0", "0.1", "1", "2"):
        module = model.get_submodule(place)
        original = module.forward

        def spy(x: torch.Tensor, original: object = original, place: str = place) -> torch.Tensor:
            out: torch.Tensor = original(x)
            seen[place] = (x.dtype, out.dtype)
            return out

        module.forward = spy
    inputs, _ = precision.convert_input(torch.randn(16, 4), torch.zeros(16))
    with precision.forward_context():
        result = precision.convert_output(model(inputs))
    exact = network()
    exact.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
    result.sum().backward()
    kept = [p.dtype for place in ("0.0", "0.1", "1") for p in model.get_submodule(place).parameters()]
    assert set(kept) == {torch.float32}
    assert model[2].weight.dtype == precision.storage
    assert all(p.grad is not None for p in model.parameters())
    torch.testing.assert_close(result, exact(inputs.float()), rtol=0.05, atol=0.05)


def test_that_kept_modules_are_listed(record: Record) -> None:
    events = record("precision=bf16-pure", "precision_options.keep_fp32=head", "train.max_steps=2")
    assert events[0].engine["kept_in_fp32"] == ["head"]
    assert all(step.loss > 0 for step in events if isinstance(step, StepDone))


@pytest.mark.parametrize("bad", [None, torch.inf, torch.nan])
def test_that_bf16_gradients_are_divided_as_by_the_scaler_of_torch(bad: float | None) -> None:
    """Without its kernel, which refuses them on a GPU in some versions of torch."""
    found = []
    for kind in (torch.amp.GradScaler, BF16Scaler):
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.randn(5).to(dtype)) for dtype in (torch.bfloat16, torch.float32, torch.bfloat16)]
        optimizer, scaler = torch.optim.SGD(weights, lr=0.1), kind("cpu", init_scale=3.0)
        for weight in weights:
            scaler.scale((weight.float() * torch.randn(5)).sum()).backward()
        if bad is not None:
            weights[2].grad[1] = bad
        scaler.unscale_(optimizer)
        gradients = [weight.grad.clone() for weight in weights]
        scaler.step(optimizer)
        scaler.update()
        found.append([*gradients, *weights, torch.tensor(scaler.get_scale())])
    for own, other in zip(*found, strict=True):
        assert torch.equal(own.nan_to_num(7.0), other.nan_to_num(7.0))
