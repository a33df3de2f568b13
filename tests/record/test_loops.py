"""Loops that do not just call backward, step and update: accelerate's, LBFGS, updates by hand, schedules."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import precgui
from precgui.config import RecordConfig
from precgui.record import Recorder
from tests.record.test_recorder import ALL, batches, network


class GradientState:
    """accelerate.state.GradientState, as far as its optimizer has to do with it."""

    def __init__(self) -> None:
        self.sync_gradients = True


class AcceleratedOptimizer(Optimizer):
    """In the shape of accelerate 1.15: a subclass without the attributes of an Optimizer, around one that has them."""

    def __init__(self, optimizer: Optimizer, scaler: Any, state: GradientState) -> None:
        self.optimizer, self.scaler, self.gradient_state = optimizer, scaler, state

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:
        return self.optimizer.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self.gradient_state.sync_gradients:
            self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:
        if not self.gradient_state.sync_gradients:
            return
        if self.scaler is None:
            self.optimizer.step(closure)
        else:
            self.scaler.step(self.optimizer, closure)
            self.scaler.update()


@pytest.mark.parametrize("fp16", [False, True])
@pytest.mark.parametrize("every", [False, True])
def test_that_an_accelerated_loop_with_accumulation_is_recorded(tmp_path: Path, fp16: bool, every: bool) -> None:
    """`every`: the recorder is called in each micro-step, as an accelerated loop reads."""
    model, state = network(), GradientState()
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0) if fp16 else None
    optimizer = AcceleratedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), scaler, state)
    recorder = Recorder(tmp_path / "run.h5", model, optimizer, scaler, record=ALL)
    losses = []
    for number, (inputs, targets) in enumerate(batches(12), 1):
        state.sync_gradients = number % 3 == 0
        with torch.autocast("cpu", torch.float16, enabled=fp16):
            loss = nn.functional.cross_entropy(model(inputs).float(), targets)
        (scaler.scale(loss / 3) if scaler else loss / 3).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if every or state.sync_gradients:
            recorder.step(loss, samples=16)
    recorder.close()
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert run.steps == 4
        assert not run.events("skipped_step")
        assert run.series("optimizer_steps")[1].tolist() == [1.0] * 4
        assert run.series("backward_passes")[1].tolist() == [3.0] * 4
        kept = np.reshape(losses, (4, 3)).mean(1) if every else losses[2::3]
        np.testing.assert_allclose(run.series("loss")[1], kept)
        assert run.series("samples")[1].tolist() == [48 if every else 16] * 4
        assert run.config.precision == ("fp16-amp" if fp16 else "fp32")
        assert len(run.tensors()["update"]) == 4


def test_that_a_wrapper_that_hides_its_optimizer_is_told(tmp_path: Path) -> None:
    model = network()
    hidden = AcceleratedOptimizer(None, None, GradientState())
    with pytest.raises(TypeError, match="a wrapper that hides its optimizer"):
        Recorder(tmp_path / "run.h5", model, hidden)


@pytest.mark.parametrize("schedule_first", [False, True])
def test_that_the_rate_of_a_skipped_step_is_its_own(tmp_path: Path, schedule_first: bool) -> None:
    """A scheduler that steps although the step was skipped, before the recorder is told of the step or after it."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    rates = [0.1, 0.2, 0.3, 0.4]

    def next_rate(step: int) -> None:
        optimizer.param_groups[0]["lr"] = rates[min(step + 1, 3)]

    with Recorder(tmp_path / "run.h5", model, optimizer, scaler, record=ALL) as recorder:
        for step, (inputs, targets) in enumerate(batches(4)):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            if step in (1, 2):
                model[0].weight.grad[0, 0] = math.inf
            scaler.step(optimizer)
            scaler.update()
            if schedule_first:
                next_rate(step)
            recorder.step(loss)
            if not schedule_first:
                next_rate(step)
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert run.series("skipped")[1].tolist() == [0.0, 1.0, 1.0, 0.0]
        assert run.series("lr")[1].tolist() == rates
        assert run.series("optimizer_steps")[1].tolist() == [1.0, 0.0, 0.0, 1.0]


def test_that_updates_by_hand_are_no_skipped_steps(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path / "run.h5", model, optimizer, record=ALL) as recorder:
        for step, (inputs, targets) in enumerate(batches(8)):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            model.zero_grad()
            loss.backward()
            if step != 5:
                for parameter in model.parameters():
                    parameter.data.add_(parameter.grad, alpha=-0.1)
            recorder.step(loss)
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert run.series("skipped")[1].tolist() == [0.0] * 5 + [1.0] + [0.0] * 2
        assert [event.step for event in run.events("skipped_step")] == [6]
        assert np.isnan(run.series("lr")[1]).tolist() == [True] * 5 + [False] + [True] * 2
        assert run.series("optimizer_steps")[1].tolist() == [0.0] * 8
        assert np.isfinite(run.series("grad_norm")[1]).all()
        updates = run.tensors()["update"]
        assert updates.stat("changed")[0, updates.names.index("0.weight")] == 1


def test_that_a_step_without_an_update_after_steps_with_one_is_not_judged(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path / "run.h5", model, optimizer) as recorder:
        for step, (inputs, targets) in enumerate(batches(5)):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            if step < 2:
                optimizer.step()
            recorder.step(loss)
    with precgui.open_run(tmp_path / "run.h5") as run:
        messages = [event.message for event in run.events("skipped_step")]
        assert len(messages) == 3
        assert "was not checked" in messages[0]
        assert messages[1].endswith("no optimizer has stepped")


def test_that_the_gradient_of_a_step_with_a_closure_is_the_one_that_it_made(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    norms = []
    with Recorder(tmp_path / "run.h5", model, optimizer, record=ALL) as recorder:
        for inputs, targets in batches(4):
            passes = 0

            def closure(inputs: Any = inputs, targets: Any = targets) -> torch.Tensor:
                nonlocal passes
                passes += 1
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), targets)
                loss.backward()
                return loss

            loss = optimizer.step(closure)
            norms.append(float(torch.stack([p.grad.norm() for p in model.parameters()]).norm()))
            recorder.step(loss)
            assert passes >= 1
    with precgui.open_run(tmp_path / "run.h5") as run:
        np.testing.assert_allclose(run.series("grad_norm")[1], norms, rtol=1e-5)
        assert run.series("backward_passes")[1][-1] == passes
        assert run.series("optimizer_steps")[1].tolist() == [1.0] * 4


class Own(nn.Module):
    """A model of a class of its own that turns one bad batch into NaN in a part without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.root, self.last = nn.Linear(8, 8), Root(), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.root(self.first(x)))


class Root(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - 1e9).sqrt() if bool(x.abs().max() > 100) else x


@pytest.mark.parametrize("bad", [1, 3])
def test_that_a_single_bad_batch_is_located_in_a_model_of_ones_own_and_agrees_with_the_rows(
    tmp_path: Path, bad: int
) -> None:
    torch.manual_seed(0)
    model = Own()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with Recorder(tmp_path / "run.h5", model, optimizer, record=ALL) as recorder:
        for step, (inputs, targets) in enumerate(batches(5), 1):
            loss = nn.functional.cross_entropy(model(inputs * (1e4 if step == bad else 1)), targets)
            optimizer.zero_grad()
            loss.backward()
            if step != bad:
                optimizer.step()
            recorder.step(loss)
    with precgui.open_run(tmp_path / "run.h5") as run:
        (event,) = run.events("nonfinite_loss")
        assert (event.step, event.module) == (bad, "root")
        assert "checked" not in event.message
        outputs = run.tensors()["activation"]
        row = outputs.steps().tolist().index(bad)
        nan = dict(zip(outputs.names, outputs.stat("nan")[row].tolist(), strict=False))
        assert nan["first"] == 0
        assert nan["root"] > 0


class _Halves(torch.autograd.Function):
    """Two outputs in one node, of which the second has no gradient where it is not used, as an LSTM of cuDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return 2 * x, 3 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, unused: Tensor | None) -> tuple[Tensor | None, None]:
        assert unused is None
        return (None if gradient is None else 2 * gradient), None


class _InHalves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return _Halves.apply(x, self.weight)


def test_that_outputs_and_weights_whose_gradient_is_none_are_passed_by(tmp_path: Path) -> None:
    model = nn.ModuleList([nn.Linear(4, 4), _InHalves(), nn.Linear(4, 1)])
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu", init_scale=8.0)
    record = RecordConfig(budget=100, activations_every=1, activation_gradients_every=1)
    with precgui.Recorder(tmp_path / "run.h5", model, optimizer, scaler, record=record) as recorder:
        for _ in range(4):
            optimizer.zero_grad()
            loss = model[2](model[1](model[0](torch.randn(8, 4)))[0]).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            recorder.step(loss)
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert (run.status, run.message, run.steps) == ("completed", "", 4)
        assert {"0", "1[0]", "2"} <= set(run.tensors()["activation_gradient"].names)
        assert run.environment["loop"]["gradients_cleared"] is True
