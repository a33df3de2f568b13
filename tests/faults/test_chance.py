"""Trainings at chance are named with their cause, their corrections and odd loops near chance are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precgui.config import RecordConfig
from tests.faults.chance_faults import AT_CHANCE, NEAR_CHANCE
from tests.faults.odd_loops import judged
from tests.faults.published_faults import Open, blobs


@pytest.mark.parametrize("name", AT_CHANCE)
def test_that_a_training_at_chance_is_named_and_its_correction_is_not(name: str, tmp_path: Path) -> None:
    planted = AT_CHANCE[name]
    for broken in (True, False):

        def loop(opened: Open, broken: bool = broken) -> None:
            planted.train(opened, broken)

        problems = judged(loop, tmp_path / f"{broken}.h5", RecordConfig()).problems
        titles = [(each.title, each.evidence[0].text) for each in problems]
        answers = [(each.rule, each.precision_is_to_blame) for each in problems]
        assert answers == ([(planted.rule, planted.blame)] if broken else []), titles
        assert not broken or planted.says in problems[0].title
        assert (
            planted.rule in ("rate-too-high", "inputs-out-of-scale")
            or not broken
            or any("the best" in each.formula for each in problems[0].evidence)
        )


@pytest.mark.parametrize("name", NEAR_CHANCE)
def test_that_a_healthy_loop_near_chance_is_left_alone(name: str, tmp_path: Path) -> None:
    found = judged(NEAR_CHANCE[name], tmp_path / "run.h5", RecordConfig())
    assert [(each.rule, each.title, each.evidence[0].text) for each in found.problems] == []


def _by_heart(opened: Open) -> None:
    """Few samples, whose labels are drawn by lot, are learnt by heart little by little."""
    x, y = blobs(1000)[0], torch.randint(6, (1000,))
    model = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 6))
    nn.init.zeros_(model[2].weight)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = opened(model, optimizer)
    for _ in range(160):
        chosen = torch.randint(1000, (256,))
        loss = F.cross_entropy(model(x[chosen]), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss)


def test_that_a_loss_that_falls_next_to_nothing_below_that_of_a_constant_is_a_hint(tmp_path: Path) -> None:
    found = judged(_by_heart, tmp_path / "run.h5", RecordConfig())
    assert [(each.rule, each.severity, each.precision_is_to_blame) for each in found.findings] == [
        ("chance-level", "info", False)
    ]
    assert found.verdict == "healthy"
    assert "hardly better than one answer for all inputs. No fault was found that explains it" in found.sentence
