"""The look at the differences of a few later steps changes nothing, ends with the step, and may fail."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import precgui
from precgui.engine.cancellation import Cancellations
from precgui.engine.early_divisions import EarlyDivisions
from precgui.engine.torch_private import TorchDispatchMode, dispatch_modes, operation_name
from precgui.engine.watcher import OperationCall
from precgui.runs.file.reader import open_run


class _NoRecorder:
    def step(self, loss: Any) -> None:
        pass

    def close(self) -> None:
        pass


def _losses(path: Path | None, steps: int = 40) -> Iterator[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    recorder: Any = precgui.Recorder(path, model, optimizer) if path is not None else _NoRecorder()
    for _ in range(steps):
        x = (torch.randn(32, 4).bfloat16() - 0.5).float()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(x)
        loss = F.mse_loss(outputs.float(), x[:, :1])
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        yield float(loss.detach())
    recorder.close()


def test_that_watched_steps_compute_what_others_do(tmp_path: Path) -> None:
    assert list(_losses(tmp_path / "run.h5")) == list(_losses(None))


def test_that_the_mode_is_left_at_the_end(tmp_path: Path) -> None:
    depths = [dispatch_modes() for _ in _losses(tmp_path / "run.h5")]
    entered = (1, 7, 31)  # after these steps it waits for the next one
    assert {depth for step, depth in enumerate(depths, 1) if step not in entered} == {0}
    assert dispatch_modes() == 0


def test_that_the_mode_is_left_with_a_recorder_that_is_deleted(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = precgui.Recorder(tmp_path / "run.h5", model, optimizer)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    recorder.step(1.0)
    assert dispatch_modes() == 1
    del recorder
    gc.collect()
    assert dispatch_modes() == 0


def test_that_a_fault_of_the_look_ends_neither_loop_nor_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Cancellations, "observe", fail)
    assert len(list(_losses(tmp_path / "run.h5"))) == 40
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert len(run.series("loss")[1]) == 40


def _found(use: Any) -> list[tuple[str, str]]:
    """The cancellations of what `use` does with the module outputs, as in a step."""
    found = Cancellations()

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            found.observe(OperationCall(func, operation_name(func), args, kwargs or {}, out, None))
            return out

    torch.manual_seed(0)
    with Mode():
        use()
    return [(each["use"], each["format"]) for each in found.facts()["cancellation"]]


@pytest.mark.parametrize("dtype, name", [(torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.float32, "fp32")])
def test_that_a_small_difference_is_reported_where_it_is_amplified_only(dtype: torch.dtype, name: str) -> None:
    x = 1 + torch.rand(100)
    eps = torch.finfo(dtype).eps
    a, b = x.to(dtype), (x * (1 + eps * torch.rand(100))).to(dtype)
    assert _found(lambda: (a - b) / 1e-4) == [("amplified", name)]
    assert _found(lambda: (a - b).clamp(min=0).add(1e-5).sqrt()) == [("divisor", name)]
    assert _found(lambda: 1 / (a - b).abs()) == [("divisor", name)]
    assert _found(lambda: (a - b).square().mean().mul(1e6)) == []
    assert _found(lambda: (a - a) / 1e-4) == []
    assert _found(lambda: (a - 3 * b) / 1e-4) == []


def test_that_only_rounded_values_are_rounded_data() -> None:
    large = 20000 + 50 * torch.rand(100)
    whole = torch.randint(0, 255, (100,)).float()
    assert _found(lambda: (large.bfloat16() - 20020) / 10) == [("rounded data", "bf16")]
    assert _found(lambda: (large - 20020).bfloat16()) == []
    assert _found(lambda: whole.bfloat16() - 128) == []
    assert _found(lambda: torch.randn(100).bfloat16() - 0.1) == []


class _Raises(nn.Module):
    """A module that raises in its second pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.passes = nn.Linear(2, 1), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        if self.passes == 2:
            raise KeyError("in the model")
        out: torch.Tensor = self.layer(x)
        return out


def test_that_a_module_that_raises_ends_the_watch_at_once(tmp_path: Path) -> None:
    model = _Raises()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with precgui.Recorder(tmp_path / "run.h5", model, optimizer) as recorder:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        recorder.step(1.0)
        assert dispatch_modes() == 1
        with pytest.raises(KeyError):
            model(torch.ones(1, 2))
        assert dispatch_modes() == 0
        recorder.step(1.0)


def test_that_an_operation_that_raises_ends_the_watch_with_the_next_call(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with precgui.Recorder(tmp_path / "run.h5", model, optimizer) as recorder:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        recorder.step(1.0)
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 2)) @ torch.ones(3, 3)
        model(torch.ones(1, 2))
        assert dispatch_modes() == 0


@pytest.mark.parametrize("early_stop", [True, False])
def test_that_a_checkpointed_segment_does_not_end_the_watch(tmp_path: Path, early_stop: bool) -> None:
    """Its second forward pass is cut short by an exception of torch, in the backward pass."""
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with precgui.Recorder(tmp_path / "run.h5", model, optimizer) as recorder:
        for _ in range(2):
            with set_checkpoint_early_stop(early_stop):
                checkpoint(model, torch.ones(1, 2), use_reentrant=False).sum().backward()
            assert dispatch_modes() == 1
            optimizer.step()
            recorder.step(1.0)
        assert dispatch_modes() == 0


def test_that_a_watcher_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a step all others are told to its end."""

    def broken(self: Cancellations, call: OperationCall) -> None:
        raise TypeError("a tensor of somebody's class")

    monkeypatch.setattr(Cancellations, "observe", broken)
    assert len(list(_losses(tmp_path / "run.h5"))) == 40
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert [row["step"] for row in run.environment["constant_answers"]["all"]] == [2, 8, 32]


def test_that_a_loop_may_read_a_number_of_a_softmax(tmp_path: Path) -> None:
    """As distributions of torch do, which check their arguments."""
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = precgui.Recorder(tmp_path / "run.h5", model, optimizer)
    for _ in range(10):
        outputs = model(torch.randn(16, 4))
        assert outputs.softmax(1).max().item() <= 1
        loss = F.cross_entropy(outputs, torch.randint(3, (16,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    recorder.close()
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert [row["step"] for row in run.environment["constant_answers"]["all"]] == [2, 8]


def test_that_facts_are_told_again_whose_text_is_as_long_as_before(tmp_path: Path) -> None:
    model, x = nn.Linear(2, 3), torch.ones(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    recorder = precgui.Recorder(tmp_path / "run.h5", model, optimizer)
    for _ in range(10):
        loss = (model(x).argmax(1) - torch.arange(4)).abs().float().mean() + 0.1 * model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    recorder.close()
    with precgui.open_run(tmp_path / "run.h5") as run:
        rows = run.environment["terms_without_gradient"]["all"]
    assert [(row["step"], row["count"]) for row in rows] == [(8, 2)]


def test_that_a_number_that_learns_is_read_without_a_warning() -> None:
    """torch warns of a tensor with a graph that becomes a number, once in a process unless it is told otherwise."""
    model, number, half = nn.Linear(2, 1), torch.tensor(64.0, requires_grad=True), torch.ones(2, dtype=torch.half)
    watcher, divide = EarlyDivisions(model), torch.ops.aten.div.Tensor
    watcher.begin(2)
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            watcher.observe(OperationCall(divide, "div", (half, number), {}, half / number.detach(), None))
    finally:
        torch.set_warn_always(False)


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, weight: torch.Tensor) -> torch.Tensor:
        return (weight * 16).round() / 16

    @staticmethod
    def backward(_context: Any, *gradients: Any) -> Any:
        return gradients[0]


class _RoundsItsWeights(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(inputs, _Rounded.apply(self.weight), self.bias)


class _RoundsWhatIsRead(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        (inputs.detach() * 16).round()
        (self.weight.detach() * 16).round()
        return super().forward(inputs)


@pytest.mark.parametrize(("layer", "is_rounded"), [(_RoundsItsWeights, True), (_RoundsWhatIsRead, False)])
def test_that_rounding_within_an_autograd_function_is_seen(tmp_path: Path, layer: Any, is_rounded: bool) -> None:
    model = nn.Sequential(layer(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with precgui.Recorder(tmp_path / "run.h5", model, optimizer) as recorder:
        for _ in range(4):
            loss = nn.functional.cross_entropy(model(torch.randn(32, 8)), torch.randint(4, (32,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss)
    with open_run(tmp_path / "run.h5") as run:
        assert bool(run.environment.get("quantised_values")) is is_rounded
