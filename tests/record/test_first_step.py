"""The first step of a recorded loop: what ran, and the precision by that and not by what its parts look like."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import precgui
from precgui.record import Recorder
from precgui.runs.compare import compare
from precgui.runs.recorded_facts import fact
from tests.record.test_recorder import ALL, batches, network

BF16, FP16 = torch.bfloat16, torch.float16


class Net(nn.Module):
    """A model of a class of its own, with batch norm, a frozen layer and perhaps a copy of its weights inside."""

    def __init__(self, ema: torch.dtype | None = None, inside: torch.dtype | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.inside = inside
        if ema is not None:
            self.ema = copy.deepcopy(self.net).to(ema).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", self.inside) if self.inside else contextlib.nullcontext():
            return self.net(x + self.frozen(x))

    @torch.no_grad()
    def average(self) -> None:
        for own, kept in zip(self.net.parameters(), self.ema.parameters(), strict=True):
            kept.lerp_(own.to(kept.dtype), 0.5)


def train(path: Path | None, model: nn.Module, autocast: torch.dtype | None = None, scaler: Any = None,
          steps: int = 3, use_scaler: bool = False, **options: Any) -> list[float]:  # fmt: skip
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01, eps=1e-4)
    recorder = Recorder(path, model, optimizer, scaler, record=ALL, **options) if path else None
    losses = []
    dtype = next(p.dtype for p in model.parameters())
    for inputs, targets in batches(steps):
        with torch.autocast("cpu", autocast, enabled=autocast is not None):
            loss = nn.functional.cross_entropy(model(inputs.to(dtype)).float(), targets)
        optimizer.zero_grad()
        (scaler.scale(loss) if use_scaler else loss).backward()
        if use_scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        if hasattr(model, "ema"):
            model.average()
        losses.append(loss.item())
        if recorder:
            recorder.step(loss)
    if recorder:
        recorder.close()
    return losses


def scaler(**options: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=1024.0, **options)


@pytest.mark.parametrize(
    ("make", "options", "name", "source"),
    [
        (Net, {}, "fp32", "census"),
        (lambda: Net(ema=BF16), {}, "fp32", "census"),
        (Net, {"autocast": BF16}, "bf16-amp", "census"),
        (lambda: Net(inside=BF16), {}, "bf16-amp", "census"),
        (Net, {"scaler": scaler()}, "fp32", "census"),
        (Net, {"autocast": FP16, "scaler": scaler(), "use_scaler": True}, "fp16-amp", "census"),
        (lambda: Net().bfloat16(), {}, "bf16-pure", "weights"),
        (lambda: Net().double(), {}, "fp64", "weights"),
        (Net, {"autocast": BF16, "precision": "bf16-amp"}, "bf16-amp", "given"),
    ],
)
def test_that_the_precision_is_what_ran(
    tmp_path: Path, make: Callable[[], Net], options: dict[str, Any], name: str, source: str
) -> None:
    train(tmp_path / "run.h5", make(), **options)
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert run.config.precision == run.summary["precision"] == name
        told = fact(run, "precision")
        assert (told["name"], told["source"], told["given"]) == (name, source, options.get("precision", ""))
        assert told["reason"]
        assert not [event for event in run.events("note") if event.severity == "warning"]
        if "scaler" in options:
            used = options.get("use_scaler", False)
            assert fact(run, "scaler")["used"] is used
            assert set(run.series("scale")[1]) == {1024.0 if used else 1.0}


def test_that_a_precision_that_did_not_run_is_told(tmp_path: Path) -> None:
    train(tmp_path / "run.h5", Net(), precision="bf16-amp")
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert run.config.precision == "bf16-amp"
        (note,) = [event for event in run.events("note") if event.severity == "warning"]
        assert "given bf16-amp, but the first step ran as fp32" in note.message


def test_that_a_bf16_loop_is_no_fp32_baseline(tmp_path: Path) -> None:
    train(tmp_path / "low.h5", Net(), autocast=BF16)
    train(tmp_path / "full.h5", Net())
    with precgui.open_run(tmp_path / "low.h5") as low, precgui.open_run(tmp_path / "full.h5") as full:
        found = compare([low, full])
        assert found.baseline == "full"
        assert found.runs[0].samples_per_s is None
        assert found.runs[0].speedup is not None
        assert any("No samples were recorded in 2 runs" in note for note in found.notes)


def test_that_facts_tell_census_autocast_scaler_and_switches(tmp_path: Path) -> None:
    options = {"growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 7}
    train(tmp_path / "run.h5", Net(inside=FP16), scaler=scaler(**options), use_scaler=True)
    with precgui.open_run(tmp_path / "run.h5") as run:
        census, autocast = fact(run, "census"), fact(run, "autocast")
        assert census["formats"]["fp16"] > 0.9
        assert census["modules"]["net.0"]["fp16"] == 1.0
        assert "(backward)" in census["modules"]
        assert (autocast["enabled"], autocast["device_type"], autocast["dtype"]) == (True, "cpu", "fp16")
        assert (autocast["modules_inside"], autocast["modules_outside"]) == (5, 0)
        assert fact(run, "scaler") == {
            "class": "GradScaler", "initial_scale": 1024.0, **options, "enabled": True, "used": True
        }  # fmt: skip
        certificate = fact(run, "certificate")
        assert certificate["fp32_products"] in ("fp32", "bf16", "tf32")
        assert "backends.mkldnn.matmul.fp32_precision" in certificate["switches"]


def test_that_what_the_recorder_adds_up_beside_a_scaler_is_no_operation_of_the_loop(tmp_path: Path) -> None:
    operations = []
    for used in (None, scaler()):
        torch.manual_seed(0)
        train(tmp_path / f"{used is None}.h5", network(), scaler=used)  # which steps past it
        with precgui.open_run(tmp_path / f"{used is None}.h5") as run:
            operations.append(fact(run, "census")["operations"])
    assert operations[0] == operations[1] and "addmm" in operations[0]


def test_that_the_model_is_described(tmp_path: Path) -> None:
    train(tmp_path / "run.h5", Net(ema=BF16))
    with precgui.open_run(tmp_path / "run.h5") as run:
        model = run.model()
        assert model.module_types["net.1"] == "torch.nn.modules.batchnorm.BatchNorm1d"
        assert model.module_types[""].endswith("test_first_step.Net")
        assert model.forward_order() == ["frozen", "net.0", "net.1", "net.2", "net.3", "net", ""]
        assert set(model.backward_order()[:2]) == {"net.3.weight", "net.3.bias"}
        assert set(model.backward_order()[-2:]) == {"net.0.weight", "net.0.bias"}
        frozen, copied = model.by_name["frozen.weight"], model.by_name["ema.0.weight"]
        assert (frozen.role, frozen.requires_grad, frozen.updated, frozen.shape) == ("parameter", False, False, (8, 8))
        assert (copied.role, copied.dtype, copied.updated) == ("ema", "bf16", False)
        assert (model.by_name["net.0.weight"].updated, model.by_name["net.0.weight"].dtype) == (True, "fp32")
        assert model.by_name["net.1.running_var"].role == "buffer"
        assert model.by_name["net.1.num_batches_tracked"].dtype == "int64"


def test_that_buffers_copies_and_first_weights_are_recorded(tmp_path: Path) -> None:
    model = Net(ema=BF16)
    before = model.net[0].weight.detach().clone()
    train(tmp_path / "run.h5", model)
    with precgui.open_run(tmp_path / "run.h5") as run:
        tensors = run.tensors()
        weights, buffers, copies = tensors["weight"], tensors["buffer"], tensors["ema"]
        assert weights.steps().tolist() == [0, 1, 2, 3]
        l2 = weights.stat("l2")[0, weights.names.index("net.0.weight")]
        assert l2 == pytest.approx(float(before.norm()), rel=1e-6)
        mean = buffers.names.index("net.1.running_mean")
        assert buffers.stat("count")[:, mean].tolist() == [32.0] * 3
        assert buffers.stat("changed")[:, mean].tolist() == [1.0] * 3
        rms = buffers.stat("rms")[-1, mean]
        assert rms == pytest.approx(float(model.net[1].running_mean.square().mean().sqrt()), rel=1e-5)
        kept = copies.names.index("ema.0.weight")
        assert copies.dtype("ema.0.weight") == "bf16"
        assert 0 < copies.stat("changed")[0, kept] <= 1
        assert weights.dtype("net.0.weight") == "fp32"
        assert tensors["activation"].dtype("net.0") == "fp32"


def test_that_a_copy_outside_the_model_is_recorded(tmp_path: Path) -> None:
    model = network()
    average = torch.optim.swa_utils.AveragedModel(model)
    train(tmp_path / "run.h5", model, ema=average)
    train(tmp_path / "dict.h5", model, ema={name: p.clone() for name, p in model.named_parameters()})
    for path in ("run.h5", "dict.h5"):
        with precgui.open_run(tmp_path / path) as run:
            copies = run.tensors()["ema"]
            assert copies.stat("changed")[:, copies.names.index("ema.0.weight")].tolist() == [0.0] * 3
            assert run.model().by_name["ema.0.weight"].role == "ema"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for ema, error in ((nn.Linear(3, 3), ValueError), ("ema", TypeError), ({"0.weight": 1}, TypeError)):
        with pytest.raises(error, match=r"^ema "):
            Recorder(tmp_path / "no.h5", model, optimizer, ema=ema)


@pytest.mark.parametrize("autocast", [None, BF16])
def test_that_the_census_changes_no_bit(tmp_path: Path, autocast: torch.dtype | None) -> None:
    one, other = Net(ema=BF16), Net(ema=BF16)
    assert train(tmp_path / "run.h5", one, autocast, steps=8) == train(None, other, autocast, steps=8)
    for own, plain in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(own, plain)


def test_that_a_compiled_model_says_why_nothing_was_counted(tmp_path: Path) -> None:
    model = network()
    recorder_of = torch.compile(model, backend="eager")
    try:
        train(tmp_path / "run.h5", recorder_of, autocast=BF16)
    finally:
        torch._dynamo.reset()
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert "compiled" in fact(run, "census").reason
        assert (run.config.precision, fact(run, "precision")["source"]) == ("bf16-amp", "autocast")


def test_that_another_mode_is_left_alone(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = batches(1)[0][0]
    with Recorder(tmp_path / "run.h5", model, optimizer) as recorder:
        with FlopCounterMode(display=False) as around:
            model(inputs).sum().backward()
        optimizer.step()
        recorder.step(1.0)
    with Recorder(tmp_path / "late.h5", model, optimizer) as recorder:
        loss = model(inputs).sum()
        inner = FlopCounterMode(display=False)
        inner.__enter__()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
        assert torch._C._len_torch_dispatch_stack() == 2
        inner.__exit__(None, None, None)
        model(inputs)
        recorder.step(loss)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert around.get_total_flops() > 0
    with precgui.open_run(tmp_path / "run.h5") as run, precgui.open_run(tmp_path / "late.h5") as late:
        assert "dispatch mode" in fact(run, "census").reason
        assert fact(late, "census")["flops"] > 0


def test_that_a_loop_that_breaks_in_its_first_step_leaves_no_mode(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ZeroDivisionError), Recorder(tmp_path / "run.h5", model, optimizer):
        model(batches(1)[0][0])
        raise ZeroDivisionError
    assert torch._C._len_torch_dispatch_stack() == 0
    assert not any(module._forward_hooks for module in model.modules())
    assert model(batches(1)[0][0]).isfinite().all()
