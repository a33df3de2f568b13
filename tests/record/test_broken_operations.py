"""The operation and the line that made NaN or Inf in a forward pass are found in the very step."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import precgui
from precgui.engine.telemetry.module_hooks import Outputs
from precgui.engine.telemetry.nonfinite import NonFiniteDetector
from precgui.record import Recorder
from precgui.runs.diagnosis import diagnose
from precgui.runs.recorded_facts import fact_rows

BAD, STEPS = 5, 9  # the step whose inputs are 0 in one row; no step that is watched


class Net(nn.Module):
    """Two layers, between which `inner` runs; `before` runs ahead of the first."""

    def __init__(self, inner: Callable[[Tensor, Tensor], Tensor], *, before: bool = False) -> None:
        super().__init__()
        self.first, self.last, self.inner, self.before = nn.Linear(8, 8), nn.Linear(8, 4), inner, before

    def forward(self, x: Tensor) -> Tensor:
        if self.before:
            return self.last(self.first(self.inner(x, x)))
        return self.last(self.inner(self.first(x), x))


def _norm(h: Tensor, x: Tensor) -> Tensor:
    return h / x.norm(dim=1, keepdim=True)


def _norm_with_epsilon(h: Tensor, x: Tensor) -> Tensor:
    low = x.half().norm(dim=1, keepdim=True).clamp_min(1e-12)
    return h + x.half() / low


def _gumbel(h: Tensor, x: Tensor) -> Tensor:
    weights = x.abs().amax(1, keepdim=True).log()
    return h * (weights + h).softmax(-1)


def _scores(h: Tensor, x: Tensor) -> Tensor:
    large = 300 * (x == 0).any().to(h.dtype) * torch.ones_like(h)
    scores = large @ large.mT
    return h + (scores - scores.amax(-1, keepdim=True)) @ h


def _masked(h: Tensor, x: Tensor) -> Tensor:
    scores = h.masked_fill((x == 0).all(1, keepdim=True), -math.inf)
    return scores.softmax(-1)


def _in_place(h: Tensor, x: Tensor) -> Tensor:
    scale = x.abs().amax(1, keepdim=True).clone()
    scale.reciprocal_()
    return h * scale * x


def _train(
    path: Path, model: nn.Module, low: torch.dtype | None = None, *, hole: float = 0.0, bad: Container[int] = (BAD,)
) -> list[float]:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    recorder, losses = Recorder(path, model, optimizer), []
    for step in range(1, STEPS + 1):
        x = torch.randn(16, 8)
        if step in bad:
            x[3] = hole
        optimizer.zero_grad()
        with torch.autocast("cpu", low or torch.bfloat16, enabled=low is not None):
            outputs = model(x)
        loss = F.cross_entropy(outputs.float(), torch.randint(4, (16,)))
        loss.backward()
        if math.isfinite(loss.item()):
            optimizer.step()
        losses.append(loss.item())
        recorder.step(loss)
    recorder.close()
    return losses


def _rows(path: Path) -> list[Mapping[str, Any]]:
    with precgui.open_run(path) as run:
        return fact_rows(run, "nonfinite_operations")


def _line(function: Callable[..., Any], text: str) -> str:
    """`file:number` of the line of a function that holds a text."""
    lines, first = inspect.getsourcelines(function)
    return f"{Path(__file__).name}:{first + next(i for i, line in enumerate(lines) if text in line)}"


@pytest.mark.parametrize(
    ("inner", "low", "operation", "text", "kind"),
    [
        (_norm, None, "div", "return", "nan"),
        (_norm, torch.bfloat16, "div", "return", "nan"),
        (_norm_with_epsilon, torch.float16, "div", "return", "nan"),
        (_gumbel, None, "log", "weights =", "nan"),
        (_scores, torch.float16, "mm", "scores =", "nan"),
        (_in_place, None, "reciprocal", "reciprocal_", "nan"),
    ],
)
def test_that_the_operation_and_the_line_are_found_in_the_very_step(
    tmp_path: Path, inner: Any, low: torch.dtype | None, operation: str, text: str, kind: str
) -> None:
    losses = _train(tmp_path / "run.h5", Net(inner), low)
    assert [math.isfinite(loss) for loss in losses].index(False) == BAD - 1
    (row,) = _rows(tmp_path / "run.h5")
    made = row["source"] or row
    assert (row["step"], row["kind"], made["operation"].removeprefix("_")) == (BAD, kind, operation)
    assert made["line"].endswith(_line(inner, text))
    with precgui.open_run(tmp_path / "run.h5") as run:
        first = diagnose(run)[0]
    assert _line(inner, text) in first.title + first.fix
    assert any(_line(inner, text) in proof.text for proof in first.evidence)


def test_that_the_numbers_that_an_operation_was_given_are_told(tmp_path: Path) -> None:
    _train(tmp_path / "run.h5", Net(_norm_with_epsilon), torch.float16)
    (row,) = _rows(tmp_path / "run.h5")
    assert row["low"] == 0
    assert row["high"] > 1
    assert row["epsilon"] == 1e-12
    with precgui.open_run(tmp_path / "run.h5") as run:
        first = diagnose(run)[0]
    assert (first.rule, first.precision_is_to_blame) == ("undefined-operation", True)
    assert "1e-12 is 0 in FP16" in " ".join(proof.text for proof in first.evidence)
    assert "epsilon that FP16 holds" in first.fix


def test_that_an_operation_before_the_first_module_is_not_held_against_the_data(tmp_path: Path) -> None:
    _train(tmp_path / "run.h5", Net(_norm, before=True))
    with precgui.open_run(tmp_path / "run.h5") as run:
        first = diagnose(run)[0]
    assert (first.rule, first.precision_is_to_blame) == ("undefined-operation", False)
    assert first.title.startswith(f"NaN in step {BAD} comes from div at {_line(_norm, 'return')}")


def test_that_numbers_that_were_there_before_the_pass_have_no_operation(tmp_path: Path) -> None:
    _train(tmp_path / "run.h5", Net(_gumbel), hole=math.nan)
    assert _rows(tmp_path / "run.h5") == []
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert diagnose(run)[0].rule == "data-not-finite"


def test_that_an_update_of_the_loop_that_breaks_the_weights_is_not_held_against_the_data(tmp_path: Path) -> None:
    """As by hand and without an optimizer: no step before was broken, and the weights are as the next begins."""
    torch.manual_seed(0)
    model = Net(lambda h, x: h + x)
    recorder = Recorder(tmp_path / "run.h5", model, None)
    for step in range(1, STEPS + 1):
        loss = F.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,)))
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for weight, gradient in zip(model.parameters(), gradients, strict=True):
                weight -= 0.01 * gradient / (step != BAD)
        recorder.step(loss)
    recorder.close()
    assert [row["given"] for row in _rows(tmp_path / "run.h5")] == ["weights"]
    with precgui.open_run(tmp_path / "run.h5") as run:
        first = diagnose(run)[0]
    assert first.rule == "nonfinite-update"
    assert first.title.startswith(f"The update before step {BAD + 1} made weights NaN or Inf")


def test_that_infinity_of_a_mask_is_named_as_the_source_and_not_blamed(tmp_path: Path) -> None:
    _train(tmp_path / "run.h5", Net(_masked))
    (row,) = _rows(tmp_path / "run.h5")
    assert (row["operation"], row["kind"], row["culprit"]) == ("_softmax", "nan", "operation")
    assert (row["source"]["operation"], row["source"]["kind"]) == ("", "-inf")
    assert row["source"]["line"].endswith(_line(_masked, "masked_fill"))


def test_that_the_event_names_the_operation_and_the_line(tmp_path: Path) -> None:
    _train(tmp_path / "run.h5", Net(_gumbel))
    with precgui.open_run(tmp_path / "run.h5") as run:
        (event,) = run.events("nonfinite_loss")
    assert "log at " in event.message
    assert f"{_line(_gumbel, 'weights =')} made it" in event.message


@pytest.mark.parametrize("hole", [0.0, 1.0])
def test_that_on_a_gpu_the_steps_behind_a_loss_that_is_not_finite_are_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hole: float
) -> None:
    """The same model, taken for one that is not on the CPU; each second batch is broken, if one is."""
    made = Outputs.__init__

    def elsewhere(self: Outputs, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        self._on_cpu = False

    monkeypatch.setattr(Outputs, "__init__", elsewhere)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(NonFiniteDetector, "check", _check_later)
    _train(tmp_path / "run.h5", Net(_norm), torch.bfloat16, hole=hole, bad=(BAD, BAD + 2))
    made_by = [(row["step"], (row["source"] or row)["operation"]) for row in _rows(tmp_path / "run.h5")]
    assert made_by == ([] if hole else [(BAD + 2, "div")])


def _check_later(self: NonFiniteDetector, name: str, outputs: Any) -> bool:
    """As of outputs on a device: nothing is known before `first_nonfinite`."""
    self._names.append(name)
    self._largest.append(torch.linalg.vector_norm(outputs.detach(), math.inf))
    return False


def test_that_a_healthy_run_has_none(tmp_path: Path) -> None:
    _train(tmp_path / "run.h5", Net(lambda h, x: h + x), hole=1.0)
    assert _rows(tmp_path / "run.h5") == []


@pytest.mark.parametrize(("low", "blame"), [(torch.bfloat16, False), (torch.float16, True)])
def test_that_a_loss_beyond_fp32_is_no_matter_of_16_bits(tmp_path: Path, low: torch.dtype, blame: bool) -> None:
    """In FP32 beside a model in BF16, and of numbers that only FP16 does not hold."""
    torch.manual_seed(0)
    model = Net(lambda h, x: h)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    recorder = Recorder(tmp_path / "run.h5", model, optimizer)
    for _ in range(STEPS):
        with torch.autocast("cpu", low):
            outputs = model(torch.randn(16, 8))
        large = 1e25 * outputs.float() if low is torch.bfloat16 else 1e3 * outputs
        loss = large.square().mean()
        optimizer.zero_grad()
        loss.backward()
        recorder.step(loss)
    recorder.close()
    with precgui.open_run(tmp_path / "run.h5") as run:
        first = diagnose(run)[0]
    assert first.precision_is_to_blame is blame, first.title
