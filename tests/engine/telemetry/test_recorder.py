"""What is recorded of tensors: compared with NumPy and torch, in every precision and shape, changing nothing."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from precgui.config import RecordConfig, build
from precgui.engine.telemetry.recorder import Telemetry, Weight
from precgui.engine.train import train
from precgui.events import Event, Facts, Incident, StepDone, TensorStats
from tests.engine.telemetry.tensor_rows import read

EVERYTHING = RecordConfig(
    budget=100, weights_every=1, optimizer_every=1, activations_every=1, activation_gradients_every=1
)


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


def test_that_complex_tensors_are_seen_by_their_two_parts() -> None:
    class Wave(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lift = nn.Linear(8, 4, dtype=torch.complex64)

        def forward(self, x: Tensor) -> Tensor:
            return self.lift(x.to(torch.complex64)).abs()

    torch.manual_seed(0)
    model = Wave()
    events = steps(model, 1)
    assert model.lift.weight.grad is not None
    for kind in ("gradient", "weight", "update"):
        assert of(events, kind)[0]["lift.weight"]["count"] == 2 * 4 * 8
    for kind in ("activation", "activation_gradient"):
        assert of(events, kind)[0]["lift"]["count"] == 2 * 16 * 4
    gradient = of(events, "gradient")[0]["lift.weight"]
    assert gradient["l2"] == pytest.approx(float(model.lift.weight.grad.norm()), rel=1e-6)


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
        return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)


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
        "gradient": 3, "weight": 4, "update": 3, "activation": 3, "activation_gradient": 3, "optimizer": 3, "buffer": 3,
    }  # fmt: skip
    norms = [event.grad_norm for event in events if isinstance(event, StepDone)]
    for event, norm in zip(of_kind["gradient"], norms, strict=True):
        stats, exponents = read(event)
        assert np.sqrt(sum(row["l2"] ** 2 for row in stats.values())) == pytest.approx(norm, rel=1e-3)
        assert all(exponents[name].sum() == stats[name]["count"] for name in stats)
    backward, _ = read(of_kind["activation_gradient"][0])
    assert 1e-5 < backward["head"]["rms"] < 1e-1


def test_that_an_output_that_is_not_finite_is_told_in_its_step_although_the_loss_is() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).exp().clamp(max=10.0).nan_to_num()

    model, events = Masked(), list[Event]()
    telemetry = Telemetry(EVERYTHING, model, [Weight(n, p, p) for n, p in model.named_parameters()], events.append)
    for step in range(1, 8):
        telemetry.begin(step)
        model(torch.full((4, 8), torch.inf if step in (3, 4, 6) else 1.0)).sum().backward()
        telemetry.end(0.0, 1.0, [])
    told = [event for event in events if isinstance(event, Incident)]
    assert [(event.step, event.kind, event.module) for event in told] == [
        (3, "nonfinite_activation", "inner"), (6, "nonfinite_activation", "inner")
    ]  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "bf16-sr", "bf16-pure", "fp16-amp"])
def test_that_a_parameter_is_named_in_the_step_whatever_is_due(tmp_path: Path, precision: str) -> None:
    task = tmp_path / "late.py"
    task.write_text(TASK)
    events: list[Event] = []
    settings = {"task": f"{task}:Late", "precision": precision, "threads": 1, "train": {"max_steps": 7},
                "record": {"gradients_every": 0, "activations_every": 0}}  # fmt: skip
    train(build(settings), events.append, lambda: False)
    (told,) = [event for event in events if isinstance(event, Incident) and event.kind == "nonfinite_gradient"]
    assert (told.step, told.module.rpartition(".")[0]) == (7, "2")


TASK = """
import torch
from torch import nn

class Late:
    def __init__(self, config):
        self.count = 0
    def model(self):
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    def train_batches(self):
        return [(torch.randn(32, 8), torch.randint(2, (32,))) for _ in range(7)]
    def validation_batches(self):
        return [(torch.randn(32, 8), torch.randint(2, (32,)))]
    def loss(self, outputs, targets):
        self.count += 1
        return nn.functional.cross_entropy(outputs, targets) * (float("nan") if self.count == 7 else 1)
"""


@pytest.mark.parametrize("clip", ["", "clip_norm"])
@pytest.mark.parametrize("precision", ["fp32", "fp16-amp", "bf16-sr"])
def test_that_bad_gradients_are_named_by_where_the_backward_pass_met_them(
    tmp_path: Path, precision: str, clip: str
) -> None:
    """Clipping by a norm that is NaN makes all gradients NaN: what is told must be from before."""
    task = tmp_path / "midst.py"
    hook = "lambda gradient: gradient * (float('nan') if self.count == 7 else 1)"
    task.write_text(
        TASK.replace("Late", "Midst").replace("* (float(\"nan\") if self.count == 7 else 1)", "").replace(
            "return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))",
            "made = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))\n"
            f"        made[3].register_full_backward_hook(lambda m, i, o: tuple(({hook})(each) for each in i))\n"
            "        return made",
        )
    )  # fmt: skip
    events: list[Event] = []
    trained = {"max_steps": 7} | ({clip: 0.1} if clip else {})
    settings = {"task": f"{task}:Midst", "precision": precision, "threads": 1, "train": trained}
    settings["record"] = {"gradients_every": 0}
    train(build(settings), events.append, lambda: False)
    (told,) = [event for event in events if isinstance(event, Incident) and event.kind == "nonfinite_gradient"]
    assert (told.step, told.module.rpartition(".")[0]) == (7, "1")


def test_that_the_record_tells_what_it_cost() -> None:
    events: list[Event] = []
    model = nn.Linear(8, 1)
    telemetry = Telemetry(EVERYTHING, model, [Weight(n, p, p) for n, p in model.named_parameters()], events.append)
    train_steps(model, torch.optim.AdamW(model.parameters()), telemetry, 3)
    telemetry.close()
    (told,) = [event.values["record"] for event in events if isinstance(event, Facts)]
    assert told["measurements"] == dict.fromkeys(
        ("gradient", "update", "weight", "optimizer", "activation", "activation_gradient"), 3
    )
    assert told["cost_share"] > 0
    assert set(told["strides"].values()) == {1}


def test_that_the_last_steps_are_kept_and_the_next_looked_at_closely_when_a_value_is_not_finite() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    events: list[Event] = []
    intervals = {"gradients_every": 50, "weights_every": 50, "activations_every": 50, "least_measurements": 0}
    config = EVERYTHING.model_copy(update=intervals)
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
        own = sorted(e.step for e in events if isinstance(e, TensorStats) and e.kind == kind)
        assert own == ([0, *seen] if kind == "weight" else seen), kind
