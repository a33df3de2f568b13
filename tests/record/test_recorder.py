"""The recorder in loops that it did not write."""

from __future__ import annotations

import itertools
import math
from importlib import metadata
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import precgui
from precgui.config import OWN_LOOP, RecordConfig
from precgui.engine import tasks
from precgui.engine.errors import EngineError
from precgui.engine.export.script import write_script
from precgui.events import TENSOR_STATS, Metric
from precgui.record import Recorder
from precgui.runs.errors import RunFileError
from precgui.runs.file.schema import tensor_room
from precgui.runs.metric import ACCURACY, metric_of

ALL = RecordConfig(budget=100, weights_every=1, optimizer_every=1, activations_every=1, activation_gradients_every=1)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(16, 8, generator=generator), torch.randint(4, (16,), generator=generator)) for _ in range(count)
    ]


def train(
    path: Path | None, *, fp16: bool = False, micro: int = 1, clip: bool = False, count: int = 12, bad: int = 0,
    clear_first: bool = True, **options: Any,
) -> tuple[list[float], list[float], nn.Module]:  # fmt: skip
    """A plain loop, recorded when there is a path; returns losses, gradient norms and the model."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5, enabled=fp16)
    recorder = Recorder(path, model, optimizer, scaler if fp16 else None, record=ALL, **options) if path else None
    losses, norms = [], []
    data = iter(batches(count * micro))
    for step in range(1, count + 1):
        total = 0.0
        if clear_first:
            optimizer.zero_grad()
        for inputs, targets in itertools.islice(data, micro):
            if step == bad:
                inputs = inputs * math.inf
            with torch.autocast("cpu", torch.float16, enabled=fp16):
                loss = nn.functional.cross_entropy(model(inputs).float(), targets) / micro
            scaler.scale(loss).backward()
            total = total + loss.detach()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5 if clip else math.inf)
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(total))
        norms.append(float(norm))
        if recorder:
            recorder.step(total, samples=16 * micro)
        if not clear_first:
            optimizer.zero_grad()
    if recorder:
        recorder.close()
    return losses, norms, model


@pytest.mark.parametrize("options", [{}, {"fp16": True}, {"micro": 3}, {"clear_first": False}], ids=str)
def test_that_two_lines_record_a_loop(tmp_path: Path, options: dict[str, Any]) -> None:
    losses, norms, _ = train(tmp_path / "run.h5", title="mine", **options)
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert (run.title, run.status, run.notes) == ("mine", "completed", [])
        assert run.config.precision == ("fp16-amp" if options.get("fp16") else "fp32")
        assert run.series("loss")[1].tolist() == losses
        np.testing.assert_allclose(run.series("grad_norm")[1], norms, rtol=1e-5)
        assert run.series("lr")[1].tolist() == [0.1] * 12
        assert set(run.series("samples")[1]) == {16 * options.get("micro", 1)}
        assert not run.series("skipped")[1].any()
        assert np.all(run.series("step_s")[1] > 0)
        tensors = run.tensors()
        assert set(tensors) == {"gradient", "weight", "update", "optimizer", "activation", "activation_gradient"}
        l2 = tensors["gradient"].stat("l2")
        np.testing.assert_allclose(np.sqrt(np.square(np.nan_to_num(l2)).sum(1)), norms, rtol=1e-3)


def test_that_a_recorded_loop_does_not_pass_for_a_task(tmp_path: Path) -> None:
    train(tmp_path / "run.h5", count=1)
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert (run.config.task, run.config.model_name) == (OWN_LOOP, "Sequential")
        assert run.environment["record"]["measurements"]["gradient"] == 1
        (optimizer,) = run.environment["recorder"]["optimizers"]
        assert (optimizer["name"], optimizer["lr"], optimizer["momentum"]) == ("SGD", 0.1, 0.9)
        with pytest.raises(EngineError, match="cannot start; its script is the one that recorded it"):
            write_script(run.config, run.environment, tmp_path / "again.py")
        with pytest.raises(EngineError, match="cannot start; run its own script again"):
            tasks.make(run.config)


@pytest.mark.parametrize("fp16", [False, True])
def test_that_recording_changes_no_bit(tmp_path: Path, fp16: bool) -> None:
    recorded, plain = train(tmp_path / "run.h5", fp16=fp16, count=30), train(None, fp16=fp16, count=30)
    assert recorded[:2] == plain[:2]
    for one, other in zip(recorded[2].parameters(), plain[2].parameters(), strict=True):
        assert torch.equal(one, other)
        assert not one._backward_hooks
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in recorded[2].modules())


def test_that_the_scale_and_a_skipped_step_are_seen(tmp_path: Path) -> None:
    train(tmp_path / "run.h5", fp16=True, bad=4)
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert run.series("skipped")[1].tolist() == [0.0] * 3 + [1.0] + [0.0] * 8
        assert run.series("scale")[1].tolist() == [1024.0] * 4 + [512.0] * 5 + [1024.0] * 3
        assert [event.step for event in run.events("scale_change")] == [4, 9]
        (loss,) = run.events("nonfinite_loss")
        assert (loss.step, loss.module) == (4, "0")
        (gradient,) = run.events("nonfinite_gradient")
        assert (gradient.step, gradient.severity, gradient.module) == (4, "warning", "2.weight")
        record = run.tensors()["gradient"]
        counts = record.stats()[3, record.names.index("0.weight"), TENSOR_STATS.index("zeros") :]
        assert counts[TENSOR_STATS.index("nan") - TENSOR_STATS.index("zeros")] > 0
        changed = run.tensors()["update"].stat("changed")[:, 0]
        assert changed.shape == (11,)  # nothing was updated in step 4


def test_that_gradients_are_seen_as_the_optimizer_gets_them(tmp_path: Path) -> None:
    train(tmp_path / "run.h5", clip=True)
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert np.all(run.series("grad_norm")[1] < 0.5001)


def test_that_several_optimizers_are_one_step(tmp_path: Path) -> None:
    model = network()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.AdamW(model[2].parameters(), lr=0.01)
    with Recorder(tmp_path / "run.h5", model, [first, second], record=ALL) as recorder:
        for inputs, targets in batches(4):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            for optimizer in (first, second):
                optimizer.step()
            recorder.step(loss)
            model.zero_grad()
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert run.steps == 4
        for kind in ("gradient", "weight", "update"):
            record = run.tensors()[kind]
            seen = record.stat("count")[
                :, [record.names.index(n) for n in ("0.weight", "0.bias", "2.weight", "2.bias")]
            ]
            assert seen.tolist() == [[256, 32, 128, 4]] * (5 if kind == "weight" else 4)
        assert "2.weight.exp_avg" in run.tensors()["optimizer"].names


def test_that_evaluation_between_steps_is_not_taken_for_training(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path / "run.h5", model, optimizer, record=ALL) as recorder:
        for inputs, targets in batches(3):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss)
            with torch.no_grad():
                recorder.evaluated(float(nn.functional.cross_entropy(model(inputs), targets)), 0.5, epoch=1)
    with precgui.open_run(tmp_path / "run.h5") as run:
        record = run.tensors()["activation"]
        assert record.stat("count")[:, record.names.index("0")].tolist() == [16 * 32] * 3
        assert run.series("val_accuracy")[1].tolist() == [0.5] * 3


def test_that_the_metric_has_a_name_and_a_unit(tmp_path: Path) -> None:
    model = network()
    perplexity = precgui.Metric("perplexity", "Perplexity", "exp of the loss", unit="", higher_is_better=False)
    wanted = {"accuracy": ACCURACY, "F1": Metric("F1", "F1", "F1"), perplexity: perplexity}
    for number, (given, metric) in enumerate(wanted.items()):
        path = tmp_path / f"{number}.h5"
        with Recorder(path, model, torch.optim.SGD(model.parameters(), lr=0.1), metric=given) as recorder:
            recorder.evaluated(1.0, 2.5)
        with precgui.open_run(path) as run:
            assert metric_of(run.environment) == metric
            assert run.series("val_accuracy")[1].tolist() == [2.5]
            assert run.summary["metric"] == vars(metric)
    with pytest.raises(ValueError, match="needs a name"):
        Recorder(tmp_path / "no.h5", model, torch.optim.SGD(model.parameters(), lr=0.1), metric=" ")
    assert not (tmp_path / "no.h5").exists()


def test_that_the_file_tells_versions_and_sensors_as_one_of_the_engine_does(tmp_path: Path) -> None:
    train(tmp_path / "run.h5", count=1)
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert run.environment["libraries"]["torch"] == metadata.version("torch")
        assert run.environment["power_sensors"]
        assert all(
            {"name", "found", "reason", "unavailable"} <= each.keys() for each in run.environment["power_sensors"]
        )


def test_that_the_last_reading_of_the_sensors_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Sensor:
        device = "GPU 0"

        def read(self, now_s: float, last: bool = False) -> tuple[float, float]:
            return 50.0, 7.0 if last else 0.0

    monkeypatch.setattr("precgui.hardware.power.find_sensors", lambda _: ([Sensor()], []))
    train(tmp_path / "run.h5", count=1)
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert run.series("energy_j:GPU 0")[1][-1] == 7.0


def test_that_a_closed_recorder_lets_the_loop_go_on(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(tmp_path / "run.h5", model, optimizer)
    recorder.close()
    recorder.close()
    model(batches(1)[0][0]).sum().backward()
    optimizer.step()
    recorder.step(1.0)
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert (run.steps, run.status) == (0, "completed")


def test_that_a_file_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "run.h5").write_bytes(b"precious")
    model = network()
    with pytest.raises(RunFileError, match="already exists"):
        Recorder(tmp_path / "run.h5", model, torch.optim.SGD(model.parameters()))
    assert not any(module._forward_hooks for module in model.modules())


def test_that_a_file_gets_room_for_buffers_and_for_copies_of_weights(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 3), *(nn.BatchNorm1d(3) for _ in range(16)))
    parameters, modules, buffers = 2 + 16 * 2, 1 + 1 + 16, 16 * 2  # the counts of batches are not recorded
    mean = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    room = []
    for number, ema in enumerate((None, mean)):
        path = tmp_path / f"{number}.h5"
        Recorder(path, model, optimizer, ema=ema).close()
        with h5py.File(path, "r") as file:
            room.append(file["tensors/gradient/exponents"].maxshape[1])
    counted = parameters + modules + buffers
    assert room == [tensor_room(counted), tensor_room(counted + parameters)]
