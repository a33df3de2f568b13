"""A run of two processes that goes on from a checkpoint is, to the last bit, the one that was never cut."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from precgui.checkpoint_files import all_checkpoint_files, checkpoint_files, part_of_rank, remove_checkpoints
from precgui.config import RunConfig, load
from precgui.engine import tasks
from precgui.engine.export.weights import write_run_weights
from precgui.engine.parallel.agreement import disagreement
from precgui.formats.tensorfile import load_tensor, tensor_names
from tests.engine.parallel.many_runs import run_all

BASE = [
    "device=cpu", "threads=1", "train.epochs=2", "data.sequence_length=16", "data.epoch_steps=4", "data.batch_size=4",
    "record.tensors=false", "parallel.strategy=ddp", "optimizer.name=adamw", "train.checkpoint_every=3",
]  # fmt: skip
CUTS = {"ddp": 5, "ddp average": 4, "pruned": 5, "shards": 4, "shards scaled": 5}  # 4: at the end of an epoch
SETTINGS = {
    "ddp": ["precision=fp16-amp"],
    "ddp average": ["train.ema_decay=0.9", "parallel.gradient_format=bf16"],
    "pruned": ["pruning.method=magnitude", "pruning.start=2", "pruning.end=7", "pruning.every=1"],
    "shards": ["parallel.strategy=fsdp"],
    "shards scaled": ["parallel.strategy=fsdp", "precision=fp16-amp", "scaling.initial_scale=1e12"],
}


def config_of(name: str) -> RunConfig:
    return load("gpt-quick", [*BASE, *SETTINGS[name]])


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("resumed")
    runs: list[dict[str, Any]] = []
    for name, cut in CUTS.items():
        tree = config_of(name).model_dump()
        file = str(folder / f"{name}.h5")
        runs += [tree, {**tree, "cut": cut, "run_file": file}, {**tree, "run_file": file, "resumed_after": cut}]
    coded = {**runs[0], "parallel": {**runs[0]["parallel"], "gradient_format": "int8"}}
    runs.append({**coded, "cut": 3, "run_file": str(folder / "coded.h5")})
    other = {**runs[0], "run_file": str(folder / "ddp.h5"), "resumed_after": CUTS["ddp"], "seed": 1}
    runs.append(other)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    told = run_all(runs, 2, tmp_path_factory.mktemp("ranks"), port)
    kept: dict[str, Any] = {name: told[3 * place : 3 * place + 3] for place, name in enumerate(CUTS)}
    return kept | {"coded": told[-2:], "folder": folder}


def numbers(result: dict[str, Any]) -> list[str]:
    """Losses, norms, scales and validations, with all their digits."""
    names = {"StepDone": ("step", "loss", "grad_norm", "scale", "skipped"), "Evaluated": ("step", "loss", "accuracy")}
    rows = [[kind, *(event[name] for name in names[kind])] for kind, event in result["events"] if kind in names]
    return [json.dumps(row) for row in rows]


@pytest.mark.parametrize("name", CUTS)
def test_that_ranks_go_on_to_the_last_bit(results: dict[str, Any], name: str) -> None:
    whole, part, resumed = results[name]
    assert [each["error"] for each in (whole, part, resumed)] == ["", "", ""]
    assert 0 < len(numbers(part)) < len(numbers(whole))
    made = [json.loads(row)[:2] for row in numbers(part) if row.startswith('["StepDone"')]
    first_kind = "Evaluated" if CUTS[name] == 4 else "StepDone"  # an evaluation after the break is made again
    expected = [row for row in numbers(whole) if json.loads(row)[:2] not in made]
    assert numbers(resumed)[0].startswith(f'["{first_kind}"')
    assert numbers(resumed) == expected[-len(numbers(resumed)) :]
    assert len(numbers(resumed)) >= 8 - CUTS[name] + 1


def test_that_each_rank_writes_its_part(results: dict[str, Any]) -> None:
    run: Path = results["folder"] / "shards.h5"
    files = checkpoint_files(run)
    assert len(files) == 2
    assert all(part_of_rank(path, 1).is_file() for path in files.values())
    assert len(all_checkpoint_files(run)) == 4
    whole = sum(p.stat().st_size for p in all_checkpoint_files(run)) / 2
    assert all(path.stat().st_size < 0.7 * whole for path in files.values())  # of shards a rank keeps its own
    remove_checkpoints(results["folder"] / "pruned.h5")
    assert all_checkpoint_files(results["folder"] / "pruned.h5") == []


def test_that_the_parts_of_shards_are_exported_as_one_model(results: dict[str, Any], tmp_path: Path) -> None:
    newest = next(iter(checkpoint_files(results["folder"] / "shards.h5").values()))
    (written,) = write_run_weights(newest, None, "r1", tmp_path / "out.safetensors", "last")
    tensors = {name: torch.tensor(load_tensor(written, name)) for name in tensor_names(written)}
    model = tasks.make(config_of("shards"), print).model()
    assert {name: value.shape for name, value in model.state_dict().items()} == {
        name: value.shape for name, value in tensors.items()
    }
    model.load_state_dict(tensors, strict=True)


def test_that_coded_gradients_keep_no_checkpoint_and_say_so(results: dict[str, Any]) -> None:
    result = results["coded"][0]
    assert result["error"] == ""
    notes = [event["message"] for kind, event in result["events"] if kind == "Incident"]
    assert any("no checkpoint is kept: gradients in int8 carry" in note for note in notes)
    assert checkpoint_files(results["folder"] / "coded.h5") == {}


def test_that_ranks_with_other_settings_do_not_go_on(results: dict[str, Any]) -> None:
    assert "its settings are others now, seed" in results["coded"][1]["error"]
    other = disagreement([{"step": "4"}, {"step": "2"}])
    assert other == "rank 1 goes on from step 2, rank 0 from step 4; give every host the same checkpoints"
