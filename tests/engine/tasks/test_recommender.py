"""Recommendations: tastes are learned nearly as well as the truth foretells, from tables of which few rows move."""

from __future__ import annotations

import math

import pytest
import torch

from precgui import config
from precgui.engine.tasks import recommender
from precgui.events import Evaluated, RunStarted, StepDone
from tests.engine.conftest import Record

QUIET = (
    "task=recommender", "record.tensors=false", "optimizer.name=adamw", "optimizer.lr=2e-2", "optimizer.weight_decay=1",
    "data.batch_size=512",
)  # fmt: skip


def test_that_tastes_are_learned_nearly_as_well_as_the_truth_foretells(record: Record) -> None:
    events = record(*QUIET, "train.epochs=3")
    losses = [event.loss for event in events if isinstance(event, StepDone)]
    assert losses[0] == pytest.approx(math.log(2), rel=0.1), "at first nothing is known"
    (started,) = [event for event in events if isinstance(event, RunStarted)]
    best = started.engine["data"]["best_accuracy"]
    last = [event for event in events if isinstance(event, Evaluated)][-1]
    _, popular = by_popularity()
    assert popular + 0.08 < last.accuracy <= best + 0.01
    assert last.accuracy > best - 0.04


def by_popularity() -> tuple[float, float]:
    """Accuracy without any knowledge of users: of the more frequent answer for each item; (to train, to validate)."""
    parts = [recommender.likings(count, n) for n, count in enumerate(recommender._PAIRS)]
    liked = torch.zeros(recommender.ITEMS).index_add(0, parts[0][0][:, 1], parts[0][1] - 0.5) > 0
    rates = [float((liked[pairs[:, 1]] == (target > 0)).float().mean()) for pairs, target, _ in parts]
    return rates[0], rates[1]


def test_that_tastes_are_the_same_for_every_seed_and_meetings_are_not() -> None:
    first, again, other = (recommender.likings(2000, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    known = {tuple(pair): logit for pair, logit in zip(first[0].tolist(), first[2].tolist(), strict=True)}
    both = [
        (known[tuple(p)], q) for p, q in zip(other[0].tolist(), other[2].tolist(), strict=True) if tuple(p) in known
    ]
    assert len(both) > 10
    assert all(a == pytest.approx(b) for a, b in both)


def test_that_a_batch_touches_few_rows_of_the_tables() -> None:
    task = recommender.Recommendation(config.load("recommender-quick", ["device=cpu", "data.batch_size=16"]))
    model = task.model()
    pairs, liked = next(iter(task.train_batches()))
    task.loss(model(pairs), liked).backward()
    for table, column in ((model.users, 0), (model.items, 1)):
        touched = table.weight.grad.abs().sum(1) > 0
        assert set(touched.nonzero().flatten().tolist()) == set(pairs[:, column].tolist())
        assert touched.float().mean() < 0.1


@pytest.mark.parametrize("precision", ["bf16-amp", "bf16-sr", "fp16-amp", "emulated:e4m3fn", "int8-qat", "nvfp4"])
def test_that_it_trains_in_every_kind_of_precision(record: Record, precision: str) -> None:
    quick = ("qat.start_epoch=1", "qat.observers_off_after_epoch=1", "qat.freeze_bn_after_epoch=1", "qat.measure=false")
    events = record(*QUIET, *quick, f"precision={precision}", "train.max_steps=3", "train.epochs=1")
    losses = [event.loss for event in events if isinstance(event, StepDone)]
    assert len(losses) == 3
    assert all(map(math.isfinite, losses))


def test_that_adamw_in_pure_fp16_makes_nan_of_the_rows_that_no_sample_touches(record: Record) -> None:
    """Its eps of 1e-8 is zero in FP16, so a row without a gradient is divided 0 by 0, on any device."""
    events = record(*QUIET, "precision=fp16-pure", "train.max_steps=2", "train.epochs=1")
    first, second = [event.loss for event in events if isinstance(event, StepDone)]
    assert math.isfinite(first)
    assert math.isnan(second)
