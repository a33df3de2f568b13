"""The settings of a recorded loop: what was observed, and nothing of the defaults."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch import nn

import precgui
from precgui.config import OWN_LOOP, RunConfig
from precgui.runs.csv_export import about
from precgui.runs.differences import differing, facts_of
from precgui.runs.facts import RunFact, run_facts, settings
from precgui.runs.file.reader import SavedRun
from precgui.runs.known_settings import NOT_KNOWN, known_config, known_scaling, observed_settings
from precgui.runs.open import open_run_or_events
from precgui.runs.page import write_page
from precgui.runs.report.content import difference_of_settings
from precgui.runs.study.ungrouped import ungrouped_figures
from precgui.runs.tensorboard.export import export_events
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
        assert path not in told
    assert "pruning" not in {fact.hint for fact in group.facts}
    assert group.facts[-1].value == NOT_KNOWN and int(group.facts[-1].hint.split()[0]) > 50
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


def loop_of_all(path: Path) -> SavedRun:
    """A loop with two optimizers, the first with two groups of parameters, under autocast."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    decayed, others = model[0].weight, [model[0].bias, *model[1].parameters()]
    adam = torch.optim.AdamW(
        [{"params": [decayed], "weight_decay": 0.25}, {"params": others[:1], "weight_decay": 0.0}],
        lr=0.01, betas=(0.8, 0.95),
    )  # fmt: skip
    sgd = torch.optim.SGD(others[1:], lr=0.5, momentum=0.75)
    with precgui.Recorder(path, model, [adam, sgd]) as recorder:
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.randn(8, 4)).float().square().mean()
            for each in (adam, sgd):
                each.zero_grad()
            loss.backward()
            for each in (adam, sgd):
                each.step()
            recorder.step(loss)
    return precgui.open_run(path)


def test_that_the_file_names_the_settings_that_are_the_loops_own(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run.h5")
    observed = run.environment["recorder"]["observed"]
    own = {"optimizer.name", "optimizer.lr", "optimizer.momentum", "optimizer.weight_decay", "scaling.initial_scale"}
    assert own <= set(observed)
    assert not {"seed", "train.epochs", "optimizer.schedule", "model.size"} & set(observed)
    assert (run.config.optimizer.lr, run.config.scaling.growth_interval) == (0.1, 100)


def test_that_every_output_holds_only_the_settings_that_were_observed(tmp_path: Path) -> None:
    config = about(recorded(tmp_path / "run.h5"))["config"]
    assert set(config) == {"title", "task", "model", "precision", "record", "optimizer", "scaling", "data", "autocast"}
    assert config["autocast"]["enabled"] is False
    assert config["data"] == {"batch_size": 32}
    assert config["model"] == {"name": "Linear"}
    assert config["optimizer"]["name"] == "sgd"
    assert "schedule" not in config["optimizer"]
    assert known_config(live_run([])) == live_run([]).config.model_dump(mode="json")


def test_that_every_optimizer_its_groups_and_autocast_are_observed(tmp_path: Path) -> None:
    run = loop_of_all(tmp_path / "run.h5")
    config = known_config(run)
    adam, sgd = config["optimizers"]["1"], config["optimizers"]["2"]
    assert (adam["name"], adam["betas"]) == ("adamw", [0.8, 0.95])
    assert {number: group["weight_decay"] for number, group in adam["groups"].items()} == {"1": 0.25, "2": 0.0}
    assert (sgd["name"], sgd["lr"], sgd["momentum"]) == ("sgd", 0.5, 0.75)
    assert config["autocast"]["dtype"] == "bf16"
    (group,) = [each for each in run_facts(run) if each.title == "Settings"]
    shown = leaves(group.facts)
    assert (shown["optimizers.2.momentum"], shown["autocast.dtype"]) == ("0.75", "bf16")


def test_that_a_rate_that_no_config_may_have_is_observed_and_ends_no_loop(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run.h5", lr=0.0)
    assert known_config(run)["optimizer"]["lr"] == 0.0
    assert "optimizer.lr" not in run.environment["recorder"]["observed"]
    assert run.notes == []


def test_that_an_event_file_of_a_loop_keeps_what_is_known(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = loop_of_all(tmp_path / "run.h5")
    export_events(run, tmp_path / "events")
    back = open_run_or_events(tmp_path / "events")
    assert back.config.task == OWN_LOOP
    assert known_config(back)["optimizers"] == known_config(run)["optimizers"]
    assert back.config.precision == run.config.precision


def test_that_groups_hold_what_is_not_known_neither_equal_nor_different(tmp_path: Path) -> None:
    own, other = recorded(tmp_path / "own.h5"), recorded(tmp_path / "other.h5", lr=0.2)
    first, second, trained = ungrouped_figures([own, other, live_run([])])
    assert first.settings["train.epochs"] == NOT_KNOWN
    for run in (first, second):
        assert not {"train.epochs", "model.size", "autocast.dtype"} & set(difference_of_settings(run, trained))
    assert difference_of_settings(first, second) == {"optimizer.lr": (0.1, 0.2)}
    assert {each.group for each in ungrouped_figures([own, other])} == {
        "fp32 optimizer.lr=0.1",
        "fp32 optimizer.lr=0.2",
    }
