"""What is recorded of tensors: compared with NumPy and torch, in every precision and shape, changing nothing."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from precgui.config import RecordConfig
from precgui.engine.telemetry import Telemetry, Weight
from precgui.engine.telemetry_budget import Budget
from precgui.engine.telemetry_meters import DeviceMeter, HostMeter, Meter, stride_for
from precgui.engine.telemetry_rows import Table, finished
from precgui.events import EXPONENT_BINS, TENSOR_STATS, Event, StepDone, TensorStats

STAT = {name: place for place, name in enumerate(TENSOR_STATS)}
EVERYTHING = RecordConfig(
    budget=100, weights_every=1, optimizer_every=1, activations_every=1, activation_gradients_every=1
)
METERS: list[Meter] = [HostMeter(), DeviceMeter(torch.device("cpu"))]


def read(event: TensorStats) -> tuple[dict[str, dict[str, float]], dict[str, np.ndarray]]:
    stats = np.frombuffer(event.stats).reshape(-1, len(TENSOR_STATS))
    exponents = np.frombuffer(event.exponents, np.uint32).reshape(-1, EXPONENT_BINS)
    named = {
        name: dict(zip(TENSOR_STATS, row.tolist(), strict=True)) for name, row in zip(event.names, stats, strict=True)
    }
    return named, dict(zip(event.names, exponents, strict=True))


def looked_at(
    meter: Meter, tensor: Tensor, stride: int = 1, factor: float = 1.0
) -> tuple[dict[str, float], np.ndarray]:
    (rows,) = meter.fetch([meter.measure([tensor], [stride], 0, factor)])
    stats, exponents = read(finished(Table("gradient", ["t"], [stride], [tensor.numel()]), rows, 1, 0.0))
    return stats["t"], exponents["t"]


def expected(values: np.ndarray) -> tuple[dict[str, float], np.ndarray]:
    """The statistics by NumPy's own functions."""
    flat = values.astype(np.float32).ravel()
    finite = flat[np.isfinite(flat)].astype(np.float64)
    nonzero = np.abs(finite[finite != 0])
    _, exponent = np.frexp(np.abs(flat[np.isfinite(flat)]))
    bins = np.where(nonzero.size and flat[np.isfinite(flat)] != 0, np.maximum(exponent + 126, 0), 0)
    histogram = np.bincount(bins, minlength=EXPONENT_BINS)
    histogram[255] = len(flat) - len(finite)
    stats = {
        "amax": np.abs(finite).max(initial=0) if len(finite) else np.nan,
        "amin_nonzero": nonzero.min() if len(nonzero) else np.nan,
        "mean": finite.mean() if len(finite) else np.nan,
        "rms": np.sqrt(np.mean(finite**2)) if len(finite) else np.nan,
        "l2": np.linalg.norm(finite),
        "zeros": np.count_nonzero(flat == 0),
        "nan": np.isnan(flat).sum(),
        "pos_inf": np.isposinf(flat).sum(),
        "neg_inf": np.isneginf(flat).sum(),
        "count": flat.size,
    }
    return stats, histogram


def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    wide = torch.randn(5000, generator=generator) * torch.exp2(torch.randn(5000, generator=generator) * 30)
    special = wide.clone()
    special[::97], special[1::97], special[2::97], special[3::97], special[4::97] = (
        0,
        torch.nan,
        torch.inf,
        -torch.inf,
        1e-42,
    )
    image = torch.randn(4, 3, 8, 8, generator=generator)
    return {
        "wide": wide, "special": special, "fp16": special.half(), "bf16": special.bfloat16(), "fp64": special.double(),
        "channels_last": image.contiguous(memory_format=torch.channels_last), "transposed": image.mT,
        "sliced": image[:, 1], "expanded": image[:1].expand(3, -1, -1, -1), "scalar": torch.tensor(-3.0),
        "zeros": torch.zeros(130), "nothing": torch.full((3,), torch.nan), "misaligned": wide[1:],
    }  # fmt: skip


@pytest.mark.parametrize("meter", METERS, ids=lambda meter: type(meter).__name__)
@pytest.mark.parametrize("name", tensors())
def test_that_statistics_are_those_of_numpy(meter: Meter, name: str) -> None:
    tensor = tensors()[name]
    stats, exponents = looked_at(meter, tensor)
    wanted, histogram = expected(tensor.float().numpy())
    np.testing.assert_array_equal(exponents, histogram)
    for key, value in wanted.items():
        np.testing.assert_allclose(stats[key], value, rtol=1e-6, err_msg=key)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 2047, 2048, 2049, 6000])
@pytest.mark.parametrize("spread", [0.0, 3.0, 60.0])
def test_that_no_size_and_no_spread_of_exponents_is_miscounted(size: int, spread: float) -> None:
    """Zeros, numbers below the normal ones, NaN and infinities in any place of a buffer of the loops."""
    generator = torch.Generator().manual_seed(size)
    values = torch.randn(size, generator=generator) * torch.exp2(spread * torch.randn(size, generator=generator))
    odd = torch.tensor([0.0, -0.0, 1e-40, -1e-45, torch.nan, torch.inf, -torch.inf, 3.4e38])
    places = torch.randint(4 * size, (size,), generator=generator)
    tensor = torch.where(places < len(odd), odd[places.clamp(max=len(odd) - 1)], values)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        stats, exponents = looked_at(METERS[0], tensor.to(dtype))
        wanted, histogram = expected(tensor.to(dtype).float().numpy())
        np.testing.assert_array_equal(exponents, histogram)
        for key, value in wanted.items():
            np.testing.assert_allclose(stats[key], value, rtol=1e-6, err_msg=key)


@pytest.mark.parametrize("meter", METERS, ids=lambda meter: type(meter).__name__)
def test_that_a_factor_is_taken_in_before_looking(meter: Meter) -> None:
    gradient = torch.randn(1000).half()
    stats, exponents = looked_at(meter, gradient, factor=2.0**-16)
    wanted, histogram = expected(gradient.float().numpy() / 65536)
    np.testing.assert_array_equal(exponents, histogram)
    np.testing.assert_allclose(stats["rms"], wanted["rms"], rtol=1e-6)


@pytest.mark.parametrize("meter", METERS, ids=lambda meter: type(meter).__name__)
def test_that_sampling_sees_every_element_in_the_course_of_the_steps(meter: Meter) -> None:
    seen = torch.zeros(64 * 64)
    for place in range(len(seen) // 64):
        marked = torch.zeros_like(seen)
        marked[place * 64] = 1
        for tick in range(8):
            (rows,) = meter.fetch([meter.measure([marked], [8], tick)])
            seen[place * 64] += float(rows[0, 2])
    assert seen[::64].tolist() == [1.0] * 64


def test_that_both_meters_see_the_same_sample() -> None:
    tensor = torch.randn(64 * 1000)
    (host, exponents), (device, others) = (looked_at(meter, tensor, stride=16) for meter in METERS)
    np.testing.assert_array_equal(exponents, others)
    assert host["count"] == 64 * 63
    assert host["l2"] == pytest.approx(device["l2"]) == pytest.approx(float(tensor.norm()), rel=0.05)


@pytest.mark.parametrize(("size", "stride"), [(10, 1), (4096, 1), (8192, 2), (10**6, 16), (0, 1)])
def test_that_small_tensors_are_never_sampled(size: int, stride: int) -> None:
    assert stride_for(size, 16) == stride


@pytest.mark.parametrize("meter", METERS, ids=lambda meter: type(meter).__name__)
@pytest.mark.parametrize(("name", "dtype"), [("lost_bf16", torch.bfloat16), ("lost_fp16", torch.float16),
                                             ("lost_e5m2", torch.float8_e5m2)])  # fmt: skip
def test_that_lost_updates_are_those_that_a_cast_loses(meter: Meter, name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    before = (torch.rand(20_000, generator=generator) + 1.01).to(dtype).float() * 2.0**-3
    after = before + before * torch.exp2(-14 * torch.rand(20_000, generator=generator))
    after[:5000] = before[:5000]
    kept = meter.keep([before], [1], 0)
    (rows,) = meter.fetch([meter.compare([after], [1], 0, kept)])
    stats, _ = read(finished(Table("update", ["w"], [1], [20_000]), rows, 1, 0.0))
    moved = after != before
    lost = (after.to(dtype).float() == before) & moved
    assert stats["w"]["changed"] == pytest.approx(float(moved.float().mean()))
    assert stats["w"][name] == pytest.approx(float(lost.sum() / moved.sum()), abs=2e-4)
    np.testing.assert_allclose(stats["w"]["rms"], (after - before).double().square().mean().sqrt(), rtol=1e-6)


def steps(model: nn.Module, count: int = 3, config: RecordConfig = EVERYTHING, **options: Any) -> list[TensorStats]:
    """Events of a few steps of a plain loop."""
    events: list[Event] = []
    weights = [Weight(name, p, p) for name, p in model.named_parameters() if p.requires_grad]
    telemetry = Telemetry(config, model, weights, events.append)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train_steps(model, optimizer, telemetry, count, **options)
    telemetry.close()
    return [event for event in events if isinstance(event, TensorStats)]


def train_steps(model: nn.Module, optimizer: Any, telemetry: Telemetry | None, count: int, micro: int = 1) -> None:
    generator = torch.Generator().manual_seed(0)
    for step in range(1, count + 1):
        optimizer.zero_grad()
        if telemetry:
            telemetry.begin(step)
        for _ in range(micro):
            out = model(torch.randn(16, 8, generator=generator))
            tensors = list(out.values()) if isinstance(out, dict) else out if isinstance(out, tuple) else [out]
            sum(tensor.square().mean() for tensor in tensors).backward()
        if telemetry:
            telemetry.gradients()
            telemetry.before_update()
        optimizer.step()
        if telemetry:
            telemetry.after_update([optimizer])
            telemetry.end(0.0, 1.0, [optimizer])


def of(
    events: list[TensorStats], kind: str, step: int = 1
) -> tuple[dict[str, dict[str, float]], dict[str, np.ndarray]]:
    return read(next(event for event in events if (event.kind, event.step) == (kind, step)))


class Odd(nn.Module):
    """A frozen layer, a tied one, a shared activation, outputs in a dict and a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.relu, self.lstm = nn.ReLU(), nn.LSTM(8, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.relu(self.second(self.relu(self.first(self.frozen(x)))))
        sequence, _ = self.lstm(x[None])
        return {"a": x, "b": sequence}


def test_that_tied_frozen_shared_and_nested_tensors_are_seen_once_each() -> None:
    events = steps(Odd())
    gradients, _ = of(events, "gradient")
    assert set(gradients) == {
        "first.weight", "first.bias", "second.bias",
        *(f"lstm.{name}_l0" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")),
    }  # fmt: skip
    activations, _ = of(events, "activation")
    assert activations["relu"]["count"] == 2 * 16 * 8
    assert {"lstm[0]", "lstm[1][0]", "lstm[1][1]", "frozen"} <= set(activations)
    backward, _ = of(events, "activation_gradient")
    assert "frozen" not in backward
    assert backward["relu"]["count"] == 2 * 16 * 8
    states, _ = of(events, "optimizer")
    assert {"first.weight.exp_avg", "first.weight.exp_avg_sq"} <= set(states)
    updates, _ = of(events, "update")
    assert updates["first.weight"]["changed"] == 1


def test_that_gradients_are_those_of_the_whole_step_under_accumulation() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    seen, _ = of(steps(model, 1, micro=4), "gradient")
    assert model.weight.grad is not None
    assert seen["weight"]["l2"] == pytest.approx(float(model.weight.grad.norm()), rel=1e-6)
    activations, _ = of(steps(nn.Linear(8, 1), 1, micro=4), "activation")
    assert activations["(model)"]["count"] == 4 * 16


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)  # type: ignore[no-any-return]


def test_that_a_checkpoint_does_not_count_twice() -> None:
    events = steps(Checkpointed(), 1)
    assert of(events, "activation")[0]["inner.0"]["count"] == 16 * 8
    assert of(events, "activation_gradient")[0]["inner.1"]["count"] == 16 * 8


def test_that_looking_changes_no_bit_of_the_training() -> None:
    weights = []
    for watched in (True, False):
        torch.manual_seed(0)
        model = Odd()
        if watched:
            steps(model, 20)
        else:
            train_steps(model, torch.optim.AdamW(model.parameters(), lr=0.01), None, 20)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*weights)


def test_that_hooks_are_gone_after_the_end() -> None:
    model = Odd()
    steps(model, 1)
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    "precision", ["fp32", "fp64", "bf16-amp", "fp16-amp", "bf16-pure", "fp16-pure", "bf16-sr", "fp8"]
)
@pytest.mark.parametrize("master", [False, True])
def test_that_every_precision_is_recorded_and_unscaled(record: Any, precision: str, master: bool) -> None:
    if master and not precision.endswith("-pure"):
        pytest.skip("has no master weights")
    events = record(
        f"precision={precision}", "train.max_steps=3", "record.budget=100", "record.weights_every=1",
        "record.activation_gradients_every=1", f"precision_options.master_weights={str(master).lower()}",
        "scaling.initial_scale=1024",
    )  # fmt: skip
    of_kind = defaultdict(list)
    for event in events:
        if isinstance(event, TensorStats):
            of_kind[event.kind].append(event)
    assert {kind: len(found) for kind, found in of_kind.items()} == {
        "gradient": 3, "weight": 3, "update": 3, "activation": 1, "activation_gradient": 3, "optimizer": 1,
    }  # fmt: skip
    norms = [event.grad_norm for event in events if isinstance(event, StepDone)]
    for event, norm in zip(of_kind["gradient"], norms, strict=True):
        stats, exponents = read(event)
        assert np.sqrt(sum(row["l2"] ** 2 for row in stats.values())) == pytest.approx(norm, rel=1e-3)
        assert all(exponents[name].sum() == stats[name]["count"] for name in stats)
    backward, _ = read(of_kind["activation_gradient"][0])
    assert 1e-5 < backward["head"]["rms"] < 1e-1


def test_that_a_budget_is_kept_and_spent() -> None:
    """With costs that are known: a look at the stride s costs 10 ms / s, a step takes 100 ms."""
    budget = Budget(RecordConfig(budget=0.02), {"gradient": 1, "weight": 10})
    looks = 0
    for step in range(1, 1001):
        due = budget.due(step)
        looks += "gradient" in due
        budget.settle(0.1, {kind: 0.010 / stride for kind, stride in due.items()})
    assert 0.010 < budget.share <= 0.021
    assert looks > 900


def test_that_what_is_too_dear_at_any_stride_is_looked_at_less_often() -> None:
    budget = Budget(RecordConfig(budget=0.01), {"gradient": 1})
    for step in range(1, 2001):
        budget.settle(0.01, dict.fromkeys(budget.due(step), 0.005))
    assert budget.share == pytest.approx(0.01, rel=0.2)


def test_that_the_last_steps_are_kept_and_the_next_looked_at_closely_when_a_value_is_not_finite() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    events: list[Event] = []
    config = EVERYTHING.model_copy(update={"gradients_every": 50, "weights_every": 50, "activations_every": 50})
    weights = [Weight(name, p, p) for name, p in model.named_parameters()]
    telemetry = Telemetry(config, model, weights, events.append)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for step in range(1, 106):
        telemetry.begin(step)
        model(torch.full((4, 8), torch.inf if step == 100 else 1.0)).sum().backward()
        telemetry.gradients()
        telemetry.before_update()
        telemetry.after_update([optimizer])
        named = telemetry.first_nonfinite()
        telemetry.end(0.0, 1.0, [optimizer], alarm=step == 100)
        assert named == ("0" if step == 100 else "")
        optimizer.zero_grad()
    seen = sorted(e.step for e in events if isinstance(e, TensorStats) and e.kind == "gradient")
    assert seen == [1, *range(36, 103)]
    for kind in ("weight", "update", "activation"):
        assert sorted(e.step for e in events if isinstance(e, TensorStats) and e.kind == kind) == seen, kind
