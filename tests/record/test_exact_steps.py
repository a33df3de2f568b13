"""Some steps of a loop are computed in FP64 beside themselves; the loop computes what it does without."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import precgui
from precgui.runs.diagnosis import exact_step_rules
from precgui.runs.diagnosis.measurements import Measurements
from tests.runs.diagnosis.hand_made import FALLING, run_of, steps


class _Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 4)
        self.drop, self.norm = nn.Dropout(0.1), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.norm, x, use_reentrant=False)  # reads the same weights as two views
        q, k, v = self.qkv(x).chunk(3, -1)
        out: Tensor = self.out(self.drop(F.scaled_dot_product_attention(q, k, v, is_causal=True)).mean(1))
        return out


def _train(path: Path | None, dtype: torch.dtype = torch.bfloat16, steps: int = 12) -> list[Tensor]:
    torch.manual_seed(0)
    model = _Attends()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=dtype is torch.float16)
    recorder = precgui.Recorder(path, model, optimizer, scaler) if path is not None else None
    for _ in range(steps):
        x, y = torch.randn(16, 5, 8), torch.randint(0, 4, (16,))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if recorder is not None:
            recorder.step(loss)
    if recorder is not None:
        recorder.close()
    return [*(p.detach() for p in model.parameters()), torch.rand(2)]


def _rows(path: Path) -> list[dict[str, Any]]:
    with precgui.open_run(path) as run:
        return list(run.environment["exact_steps"]["all"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_that_a_step_in_fp64_changes_nothing_and_is_near(dtype: torch.dtype, tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    watched, plain = _train(path, dtype), _train(None, dtype)
    assert all(torch.equal(a, b) for a, b in zip(watched, plain, strict=True))
    rows = _rows(path)
    assert [row["step"] for row in rows] == [1, 2, 8]
    for row in rows:
        assert row["finite"] and row["finite_in_fp64"], row
        assert 0 < row["gradient_error"] < 0.05
        assert row["loss"] == pytest.approx(row["loss_fp64"], rel=0.02)
        assert row["updates"]["error"] < 1e-4 and row["updates"]["along"] == pytest.approx(1)
    assert "inexact-step" not in {each.rule for each in precgui.diagnose(path)}


class _Rays(nn.Module):
    """Opacities 1 - exp(-thickness): in BF16 nothing is left of thin ones."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 16))
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        thickness = (F.softplus(self.layers(x)) * 2e-3).to(self.dtype)
        opacity = 1 - torch.exp(-thickness)
        return opacity.float().sum(-1) * 500


def _render(path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = _Rays(dtype)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recorder = precgui.Recorder(path, model, optimizer)
    for _ in range(12):
        x = torch.randn(64, 6)
        loss = F.mse_loss(model(x), 10 + x[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    recorder.close()


def test_that_the_line_that_makes_the_distance_is_named(tmp_path: Path) -> None:
    _render(tmp_path / "low.h5", torch.bfloat16)
    rows = _rows(tmp_path / "low.h5")
    assert all(row["gradient_error"] > 0.15 or abs(row["loss"] / row["loss_fp64"] - 1) > 0.15 for row in rows), rows
    problems = [each for each in precgui.diagnose(tmp_path / "low.h5") if each.is_problem]
    assert any(each.precision_is_to_blame is True for each in problems), problems
    _render(tmp_path / "fp32.h5", torch.float32)
    assert not [each for each in precgui.diagnose(tmp_path / "fp32.h5") if each.is_problem]


def _descend(path: Path, *, masters: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1)).bfloat16()
    wide = [p.detach().float() for p in model.parameters()]
    if masters:
        wide = [each + 1e-4 * torch.randn_like(each) for each in wide]
        for parameter, master in zip(model.parameters(), wide, strict=True):
            parameter.data.copy_(master)
    recorder = precgui.Recorder(path, model, None)
    for _ in range(12):
        x = torch.randn(64, 6)
        loss = F.mse_loss(model(x.bfloat16()).float()[:, 0], x[:, 0] * 0.1)
        loss.backward()
        with torch.no_grad():
            for parameter, master in zip(model.parameters(), wide, strict=True):
                assert parameter.grad is not None
                if masters:
                    master -= 1e-4 * parameter.grad.float()
                    parameter.copy_(master)
                else:
                    parameter -= 1e-4 * parameter.grad
                parameter.grad = None
        recorder.step(loss)
    recorder.close()


def test_that_updates_lost_in_16_bits_are_seen_unless_a_wider_copy_takes_them(tmp_path: Path) -> None:
    _descend(tmp_path / "lost.h5", masters=False)
    updates = [row["updates"] for row in _rows(tmp_path / "lost.h5")]
    assert all(each["along"] < 0.3 and each["kept_elsewhere"] < 0.5 for each in updates), updates
    assert all(each["left_when_stored_in_fp64"] < 0.1 for each in updates)
    _descend(tmp_path / "masters.h5", masters=True)
    updates = [row["updates"] for row in _rows(tmp_path / "masters.h5")]
    assert all(each["kept_elsewhere"] > 0.5 for each in updates), updates
    assert "inexact-step" not in {each.rule for each in precgui.diagnose(tmp_path / "masters.h5")}


def _classify(path: Path, dim: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 6))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = precgui.Recorder(path, model, optimizer)
    for _ in range(10):
        x = torch.randn(32, 6)
        loss = F.nll_loss(torch.log(torch.softmax(model(x), dim) + 1e-9), x.argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    recorder.close()


def test_that_a_softmax_over_the_samples_of_a_batch_is_named(tmp_path: Path) -> None:
    _classify(tmp_path / "samples.h5", 0)
    found = [each for each in precgui.diagnose(tmp_path / "samples.h5") if each.rule == "softmax-over-batch"]
    assert (
        len(found) == 1 and found[0].precision_is_to_blame is False and "test_exact_steps" in found[0].evidence[0].text
    )
    _classify(tmp_path / "classes.h5", 1)
    assert "softmax-over-batch" not in {each.rule for each in precgui.diagnose(tmp_path / "classes.h5")}


class _Told(nn.Module):
    """A model that is told a second number beside its input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(2, 16), nn.Linear(1, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor, ratio: Tensor) -> Tensor:
        out: Tensor = self.c(torch.tanh(self.a(x) + self.b(ratio)))
        return out


@pytest.mark.parametrize("dtype, blame", [(torch.bfloat16, None), (torch.float64, False)])
def test_that_a_schedule_that_is_not_finite_is_told_as_data(
    dtype: torch.dtype, blame: bool | None, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    kept = torch.cumprod(1 - torch.linspace(0 if blame is False else 1e-4, 0.02, 50, dtype=dtype), 0)
    model = _Told()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = precgui.Recorder(tmp_path / "run.h5", model, optimizer)
    for _ in range(10):
        x, ratio = torch.randn(50, 2), torch.log(kept / (1 - kept)).float().unsqueeze(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=blame is None):
            loss = F.mse_loss(model(x, ratio).float(), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)
    recorder.close()
    problems = [each for each in precgui.diagnose(tmp_path / "run.h5") if each.is_problem]
    assert [(each.rule, each.precision_is_to_blame) for each in problems] == [("data-not-finite", blame)], problems
    assert "test_exact_steps.py" in problems[0].title


def _own_rms(path: Path, dtype: torch.dtype) -> None:
    """A loop with its own optimizer, whose mean of squares is held in a format."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    squares = [torch.zeros_like(p, dtype=dtype) for p in model.parameters()]
    recorder = precgui.Recorder(path, model, None)
    for _ in range(12):
        x = torch.randn(64, 6)
        loss = F.mse_loss(model(x)[:, 0], x[:, 0]) * 1e-2
        loss.backward()
        with torch.no_grad():
            for parameter, square in zip(model.parameters(), squares, strict=True):
                gradient = parameter.grad
                assert gradient is not None
                square.mul_(0.9).add_((gradient * gradient * 0.1).to(dtype))
                parameter -= 1e-3 * gradient / (square.float().sqrt() + 1e-8)
                parameter.grad = None
        recorder.step(loss)
    recorder.close()


def test_that_an_update_that_the_format_of_its_state_changes_is_named(tmp_path: Path) -> None:
    _own_rms(tmp_path / "low.h5", torch.float16)
    problems = [each for each in precgui.diagnose(tmp_path / "low.h5") if each.is_problem]
    assert [(each.rule, each.precision_is_to_blame) for each in problems] == [("inexact-update", True)], problems
    assert "FP16 at" in problems[0].title and "test_exact_steps.py" in problems[0].title
    _own_rms(tmp_path / "fp32.h5", torch.float32)
    assert not [each for each in precgui.diagnose(tmp_path / "fp32.h5") if each.rule.startswith("inexact")]


@pytest.mark.parametrize(
    ("along", "losses", "severity"),
    [(3.2, FALLING, "info"), (3.2, [2.0] * 60, "error"), (0.1, FALLING, "error"), (3.2, [*FALLING, math.nan], "error")],
)
def test_that_a_longer_update_is_an_info_where_the_loss_falls_all_the_same(
    along: float, losses: list[float], severity: str
) -> None:
    """As of second moments that are zero in FP16, beside an epsilon that is not."""
    update = {"error": 3.9, "along": along, "norm": 0.1, "format": "fp16", "kept_elsewhere": 0.0,
              "left_when_stored_in_fp64": 1.0, "worst": "w", "finite": True, "finite_in_fp64": True,
              "weights": 1}  # fmt: skip
    rows = [{"step": step, "updates": update} for step in (1, 2, 8)]
    found = exact_step_rules.inexact_update(Measurements(run_of(steps(losses), exact_steps={"all": rows})))
    assert isinstance(found, list)
    assert [each.severity for each in found] == [severity]


def test_that_a_compensated_update_is_not_wrong() -> None:
    row = {"error": 1.2, "left_when_stored_in_fp64": 1.0, "format": "bf16", "along": 0.1}
    assert exact_step_rules._is_wrong(row | {"kept_elsewhere": 0.0})
    assert not exact_step_rules._is_wrong(row | {"kept_elsewhere": 1.0})
