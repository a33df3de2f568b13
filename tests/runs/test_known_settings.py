"""The settings of a recorded loop: what was observed, and nothing of the defaults."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

import precgui
from precgui.config import RunConfig
from precgui.runs.differences import differing, facts_of
from precgui.runs.facts import RunFact, run_facts, settings
from precgui.runs.file.reader import SavedRun
from precgui.runs.known_settings import NOT_KNOWN, known_scaling, observed_settings
from precgui.runs.page import write_page
from tests.runs.synthetic import live_run


def recorded(path: Path, lr: float = 0.1) -> SavedRun:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=100)
    with precgui.Recorder(path, model, optimizer, scaler) as recorder:
        for _ in range(3):
            loss = model(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            recorder.step(loss, samples=32)
    return precgui.open_run(path)


def leaves(facts: Iterable[RunFact]) -> dict[str, str]:
    """The settings by path."""
    result: dict[str, str] = {}
    for fact in facts:
        result |= leaves(fact.facts) if fact.facts else {fact.hint.partition(":")[0]: fact.value}
    return result


def test_that_a_recorded_loop_is_shown_with_what_was_observed_only(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run.h5")
    (group,) = [each for each in run_facts(run) if each.title == "Settings"]
    told = leaves(group.facts)
    assert told["optimizer.lr"] == "0.1"
    assert told["optimizer.momentum"] == "0.9"
    assert told["data.batch_size"] == "32"
    assert told["scaling.growth_interval"] == "100"
    assert told["task"] == "own-loop"
    for path in ("train.epochs", "seed", "model.size", "train.clip_norm", "qat.freeze_bn_after_epoch"):
        assert told[path] == NOT_KNOWN, path
    assert "as by default" not in {fact.value for fact in group.facts if fact.hint != "record"}
    assert known_scaling(run).growth_interval == 100
    assert known_scaling(run).initial_scale == 2.0**10


def test_that_a_run_of_precgui_keeps_all_its_settings() -> None:
    run = live_run([])
    assert observed_settings(run) is None
    assert NOT_KNOWN not in leaves(settings(run.config)).values()
    assert known_scaling(run) == run.config.scaling


def test_that_what_is_not_known_is_no_difference(tmp_path: Path) -> None:
    own, other = recorded(tmp_path / "own.h5"), recorded(tmp_path / "other.h5", lr=0.2)
    trained = live_run([])
    rows = {row.fact for row in differing([facts_of(own, "own"), facts_of(trained, "trained")], ["settings"])}
    assert "optimizer.lr" in rows
    assert not {"train.epochs", "seed", "model.size"} & rows
    rows = {row.fact for row in differing([facts_of(own, "own"), facts_of(other, "other")], ["settings"])}
    assert rows == {"optimizer.lr"}


def test_that_the_page_for_others_has_no_invented_setting(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run.h5")
    write_page(run, tmp_path / "page.html")
    assert NOT_KNOWN in (tmp_path / "page.html").read_text()
    assert RunConfig().train.epochs != 0
