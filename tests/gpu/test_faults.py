"""Planted faults on the GPU: the diagnosis names the cause that it names on the CPU, and leaves the healthy alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("pydantic", reason="what is recorded is configured with pydantic, which is not installed here")

import precgui
from precgui import config
from precgui.job import Job
from precgui.record import exact_steps
from tests.faults.catalogue import plants
from tests.faults.healthy import healthy
from tests.faults.matrix import Case, judge_healthy, judge_plant
from tests.faults.plants import Plant
from tests.gpu.place import ALL, DEVICE, REHEARSED

pytestmark = pytest.mark.gpu
PLACE = torch.device(DEVICE).type
PLANTED = (
    "overflow in the forward pass x300000 mlp", "overflow in the forward pass x300 mlp",
    "square overflows in a norm x30000 gpt", "no loss scale, loss x1e-07 mlp", "scale of 2^40 at the start mlp",
    "scale of 2^-8 gpt", "BF16 weights, AdamW at 3e-05 mlp", "BF16 weights, SGD at 0.0003 gpt",
    "epsilon vanishes in FP16 mlp", "NaN in the data of one step, FP32 mlp", "NaN in the data of one step, scaler mlp",
    "NaN loss of one batch, bf16-amp gpt", "root of zero in the loss, scaler mlp", "0 log 0 in the loss, fp32 mlp",
    "row masked completely gpt", "rate x1000 fp32 mlp", "rate of zero mlp", "clipped before unscaled mlp",
    "optimizer.step() in place of scaler.step() mlp", "a second step after a skipped one mlp", "scheduler ahead mlp",
    "the optimizer has other tensors mlp", "graph cut mlp", "gradients not cleared gpt",
    "average in BF16, decay 0.995 mlp", "running statistics poisoned by a skipped step mlp",
    "every other parameter left out mlp", "a scale that grows in each step mlp",
)  # fmt: skip
HEALTHY = (
    "mlp adamw fp16-amp", "mlp adamw BF16 storage that learns", "mlp warm-up from 2^24", "mlp experts never used",
    "mlp LoRA", "mlp early spikes", "gpt sgd bf16-amp", "mlp ends at a rate of zero", "gpt adamw fp32",
    "gpt adamw fp16-pure",
)  # fmt: skip


@pytest.fixture(autouse=True)
def time_for_steps_in_fp64(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(exact_steps, "FIRST_S", 120.0)


def on_gpu(plant: Plant) -> Plant:
    return replace(plant, setting=replace(plant.setting, device=PLACE), twin=replace(plant.twin, device=PLACE))


def told(case: Case) -> str:
    found = [
        f"{each.rule} ({each.module or 'model'}, {each.precision_is_to_blame})" for each in case.diagnosis.problems
    ]
    return ", ".join(found) or "nothing"


@pytest.mark.parametrize("name", PLANTED if ALL else PLANTED[::3])
def test_that_a_fault_is_named_on_the_gpu_as_on_the_cpu(name: str, tmp_path: Path, tell: Callable[[str], None]) -> None:
    plant = {each.name: each for each in plants()}[name]
    (tmp_path / "cpu").mkdir()
    own, other = judge_plant(tmp_path, on_gpu(plant)), judge_plant(tmp_path / "cpu", plant)
    tell(f"fault | {name} | harm {own.harm:.2f}, on the CPU {other.harm:.2f} | CPU: {told(other)} | GPU: {told(own)}")
    assert other.right, "the CPU does not name it"
    assert own.right
    assert not own.wrong_blame
    if other.hits and own.hits:
        assert own.hits[0].precision_is_to_blame == other.hits[0].precision_is_to_blame


@pytest.mark.parametrize("name", HEALTHY if ALL else HEALTHY[::3])
def test_that_a_healthy_training_is_left_alone_on_the_gpu(
    name: str, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    case = judge_healthy(tmp_path, name, replace(dict(healthy())[name], device=PLACE))
    tell(f"healthy | {name} | GPU: {told(case)}")
    assert case.right
    assert case.diagnosis.verdict == "healthy"


@pytest.mark.parametrize("stops", [False, True])
def test_that_a_loss_that_becomes_nan_in_fp16_is_told_and_blamed_as_on_the_cpu(
    stops: bool, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    settings = ("precision=fp16-amp", "scaling.mode=none", "optimizer.lr=10", "train.max_steps=12",
                f"train.stop_at_nonfinite={str(stops).lower()}", "data.batch_size=16", "record.budget=100")  # fmt: skip
    found = []
    for device in (DEVICE, "cpu"):
        file = tmp_path / f"{device[:3]}{len(found)}.h5"
        ended = Job(config.load("digits-quick", [*settings, f"device={device}"]), file).run()
        with precgui.open_run(file) as run:
            bad = [(event.step, event.kind) for event in run.events() if event.kind.startswith("nonfinite")]
            rules = [(each.rule, each.precision_is_to_blame) for each in precgui.diagnose(run)]
            losses = run.series("loss")[1].tolist()
        tell(f"NaN in FP16, stops {stops}, {device}: {ended.status}, {len(losses)} steps, {bad[:1]}, {rules}")
        found.append((ended.status, rules[:1], math.isfinite(losses[-1])))
    assert found[0] == found[1]


class _Quotient(torch.nn.Module):
    """Divides by the norm of its inputs, between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(self.first(x) / x.norm(dim=1, keepdim=True))
        return scores


def test_that_the_line_that_made_nan_is_found_behind_a_bad_loss(tmp_path: Path, tell: Callable[[str], None]) -> None:
    """On a GPU in the next bad step, since the outputs of steps behind a bad loss are waited for."""
    torch.manual_seed(0)
    model = _Quotient().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    recorder = precgui.Recorder(tmp_path / "run.h5", model, optimizer)
    for step in range(1, 13):
        x, y = torch.randn(16, 8, device=DEVICE), torch.randint(4, (16,), device=DEVICE)
        x[3] *= step not in (5, 9)
        with torch.autocast(PLACE, torch.bfloat16):
            outputs = model(x)
        loss = torch.nn.functional.cross_entropy(outputs.float(), y)
        optimizer.zero_grad()
        loss.backward()
        if math.isfinite(loss.item()):
            optimizer.step()
        recorder.step(loss)
    recorder.close()
    with precgui.open_run(tmp_path / "run.h5") as run:
        rows = run.environment["nonfinite_operations"]["all"]
    tell(f"line of NaN: {[(row['step'], row['line'], row['culprit']) for row in rows]}")
    made = [row["source"] or row for row in rows]
    assert [each["operation"] for each in made] == ["div"] * len(made)
    assert [row["step"] for row in rows] == [5 if REHEARSED else 9]
