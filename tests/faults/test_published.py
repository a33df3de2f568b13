"""Mistakes that people have published are named, and unusual healthy loops left alone (those that are quick)."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from precgui.config import RecordConfig
from tests.faults.odd_loops import ALL, judged
from tests.faults.published_faults import Open, batches, network
from tests.faults.published_mistakes import FAULTS
from tests.faults.unusual_loops import UNUSUAL

NAMED = (
    "cleared_between_backward_and_step", "only_vectors_are_divided_by_the_scale", "scheduler_of_epochs_in_each_batch",
    "epsilon_of_a_norm_in_fp16", "head_replaced_after_the_optimizer", "frozen_encoder_in_half_precision",
    "loss_beyond_the_least_scale",
)  # fmt: skip
QUICK = (
    "master_weights_by_hand",
    "layers_unfrozen_one_after_another",
    "rate_from_zero_to_zero",
    "missing_values_as_nan",
)


@pytest.mark.parametrize("name", NAMED)
def test_that_a_published_mistake_is_named(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]

    def loop(opened: Open) -> None:
        fault.train(opened, True)

    problems = judged(loop, tmp_path / "run.h5", ALL).problems
    named = [each for each in problems if each.rule in fault.rules]
    assert named, [(each.rule, each.title) for each in problems]
    assert all(each.precision_is_to_blame in (None, fault.blame) or fault.blame is None for each in named)


@pytest.mark.parametrize("name", QUICK)
def test_that_an_unusual_healthy_loop_is_left_alone(name: str, tmp_path: Path) -> None:
    diagnosis = judged(UNUSUAL[name], tmp_path / "run.h5", RecordConfig())
    assert [(each.rule, each.title) for each in diagnosis.problems] == []


def test_that_masters_without_a_step_are_no_foreign_parameters(tmp_path: Path) -> None:
    """The overflow is the cause, and the same loop with a loss of size one is healthy."""
    train = FAULTS["loss_beyond_the_least_scale"].train
    broken = judged(lambda opened: train(opened, True), tmp_path / "broken.h5", RecordConfig())
    assert [(each.rule, each.precision_is_to_blame) for each in broken.problems] == [("no-step-taken", True)]
    assert "FP16" in broken.problems[0].title
    sound = judged(lambda opened: train(opened, False), tmp_path / "sound.h5", RecordConfig())
    assert [(each.rule, each.title) for each in sound.problems] == []


def test_that_copies_with_no_more_digits_are_foreign_parameters(tmp_path: Path) -> None:
    """An optimizer of a copy of the model that nobody steps, for gradients that never reach it."""

    def loop(opened: Open) -> None:
        model = network()
        recorder = opened(model, torch.optim.SGD(copy.deepcopy(model).parameters(), 0.1))
        for x, y in batches(20):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            recorder.step(loss)

    assert "foreign-parameters" in {each.rule for each in judged(loop, tmp_path / "run.h5", ALL).problems}


@pytest.mark.parametrize(("size", "rules"), [(60.0, {"forward-overflow"}), (1.0, {"data-not-finite"})])
def test_that_a_product_that_overflows_is_named_beside_infinite_targets(
    size: float, rules: set[str], tmp_path: Path
) -> None:
    """Gram matrices of FP16 features, with targets that hold Inf, too (ProGamerGov/neural-style-pt#97)."""

    class Canvas(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image = nn.Parameter(size * torch.ones(8, 400))
            self.aim = torch.full((8, 8), torch.inf)

        def forward(self) -> Tensor:
            features = self.image.half()
            gram = torch.mm(features, features.t())
            return F.mse_loss(gram.float() / features.numel(), self.aim)

    def loop(opened: Open) -> None:
        model = Canvas()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
        recorder = opened(model, optimizer)
        for _ in range(12):
            seen: list[Tensor] = []

            def closure(seen: list[Tensor] = seen) -> Tensor:
                optimizer.zero_grad()
                seen.append(model())
                seen[-1].backward()
                return seen[-1]

            optimizer.step(closure)
            recorder.step(seen[0].detach())

    found = judged(loop, tmp_path / "run.h5", RecordConfig()).problems
    assert rules <= {each.rule for each in found}, [(each.rule, each.title) for each in found]
    assert len({each.rule for each in found} & {"forward-overflow", "data-not-finite"}) == 1
