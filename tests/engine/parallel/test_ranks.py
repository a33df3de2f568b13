"""Two processes train as one: losses, bytes, formats. All runs share one pair of processes."""

from __future__ import annotations

import math
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from precgui.config import RunConfig, build, load
from precgui.engine import tasks
from precgui.engine.errors import EngineError
from precgui.engine.parallel.agreement import batches_digest, data_identity, disagreement
from precgui.engine.parallel.group import joined
from precgui.engine.snapshot.file import read_tensors
from precgui.engine.train import train
from precgui.events import Event, StepDone
from tests.engine.parallel.many_runs import run_all

STEPS = 4
BASE = [
    "device=cpu", "threads=1", f"train.max_steps={STEPS}", "data.sequence_length=16", "data.epoch_steps=4",
    "record.tensors=false", "parallel.strategy=ddp", "parallel.error_every=1",
]  # fmt: skip
RUNS = {
    "fp32": [],
    "uneven": ["data.batch_size=5", "train.accumulation=2"],
    "fp16": ["parallel.gradient_format=fp16", "parallel.error_every=0"],
    "bf16": ["parallel.gradient_format=bf16"],
    "int8": ["parallel.gradient_format=int8"],
    "int4": ["parallel.gradient_format=int4", "parallel.error_feedback=true"],
    "scaled": ["parallel.gradient_format=e4m3fn", "precision=fp16-amp", "scaling.initial_scale=1e12"],
    "powersgd": ["parallel.gradient_format=powersgd:2", "parallel.bucket_mb=0.5"],
    "shards": ["parallel.strategy=fsdp", "data.batch_size=5", "train.accumulation=2", "train.clip_norm=0.5"],
    "shards bf16": ["parallel.strategy=fsdp", "precision=bf16-amp"],
    # Far from overflow on any text: a rank divides by its own samples, so its gradients are twice those of one process.
    "shards fp16": ["parallel.strategy=fsdp", "precision=fp16-amp", "scaling.initial_scale=256"],
    "shards skipped": ["parallel.strategy=fsdp", "precision=fp16-amp", "scaling.initial_scale=1e12"],
    "pruned": ["pruning.method=magnitude", "pruning.start=1", "pruning.end=3", "pruning.every=1"],
    "adapters": ["adapter.kind=lora", "adapter.targets=blocks", "base.format=nf4", "base.train_steps=2"],
    "schedule": ["precision_schedule=step:3=bf16-amp"],
    "shards off-load": ["parallel.strategy=fsdp", "parallel.offload=true"],
}
PARAMETERS = 464384
OWN_DATA = """
import os, torch
class Task:
    steps_per_epoch = 2
    def model(self): return torch.nn.Linear(3, 2)
    def train_batches(self):
        for _ in range(2):
            yield torch.full((4, 3), float(os.environ["RANK"])), torch.zeros(4, 2)
    validation_batches = train_batches
    def loss(self, outputs, targets): return (outputs - targets).square().mean()
def make_task(config): return Task()

class Failing(Task):
    calls = 0
    def train_batches(self):
        for _ in range(2):
            yield torch.ones(4, 3), torch.zeros(4, 2)
    def loss(self, outputs, targets):
        self.calls += 1
        if os.environ["RANK"] == "1" and self.calls == 2:
            raise ValueError("no label has the number 7")
        return super().loss(outputs, targets)
def make_failing(config): return Failing()
"""


def config_of(name: str) -> RunConfig:
    return load("gpt-quick", [*BASE, *RUNS[name]])


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    runs = {name: config_of(name).model_dump() for name in RUNS}
    plain = runs["fp32"]
    kept = tmp_path_factory.mktemp("kept")
    own_record = {**plain["record"], "snapshot_to": str(kept / "run")}
    own_train = {**plain["train"], "save_to": str(kept / "run.safetensors")}
    (kept / "own.py").write_text(OWN_DATA)
    own = {**plain, "model": {**plain["model"], "name": "auto"}}
    runs["other seed"] = {**plain, "of_other_ranks": {**plain, "seed": 1}}
    runs["other record"] = {**plain, "record": own_record, "train": own_train, "of_other_ranks": plain}
    runs["other data"] = {**own, "task": f"{kept / 'own.py'}:make_task"}
    # The last one: as in a real run, the process of a rank that fails ends, and the other rank need not wait in vain.
    runs["failing rank"] = {**own, "task": f"{kept / 'own.py'}:make_failing"}
    told = run_all([*runs.values()], 2, tmp_path_factory.mktemp("ranks"), port)
    return dict(zip(runs, told, strict=True))


def field(result: dict[str, Any], kind: str, name: str) -> list[float]:
    return [event[name] for known, event in result["events"] if known == kind]


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("pruned", 1e-6), ("adapters", 1e-6), ("schedule", 3e-4), ("fp32", 1e-6), ("uneven", 1e-6),
        ("shards", 1e-6), ("shards off-load", 1e-6), ("shards bf16", 3e-4), ("shards fp16", 5e-5),
    ],
)  # fmt: skip
def test_that_two_processes_have_the_losses_of_one(results: dict[str, dict[str, Any]], name: str, most: float) -> None:
    losses: list[float] = []

    def keep(event: Event) -> None:
        if isinstance(event, StepDone):
            losses.append(event.loss)

    alone = build({**config_of(name).model_dump(), "parallel": {}})
    train(alone, keep, lambda: False)
    assert results[name]["error"] == ""
    assert field(results[name], "StepDone", "loss") == pytest.approx(losses, rel=most)
    assert len(losses) == STEPS


@pytest.mark.parametrize(("name", "bits", "least", "most"), [("bf16", 16, 1e-4, 5e-3), ("int8", 8, 1e-3, 0.03)])
def test_that_fewer_bits_send_fewer_bytes_with_the_error_of_the_format(
    results: dict[str, dict[str, Any]], name: str, bits: int, least: float, most: float
) -> None:
    sent = field(results[name], "RankStep", "sent_bytes")
    assert sent == pytest.approx([PARAMETERS * bits / 8] * len(sent), rel=0.02)
    errors = [e for e in field(results[name], "RankStep", "gradient_error") if not math.isnan(e)]
    assert len(errors) == 2 * STEPS
    assert all(least < error < most for error in errors)


def test_that_the_interface_sent_what_the_hook_counted(results: dict[str, dict[str, Any]]) -> None:
    assert field(results["fp32"], "RankStep", "sent_bytes") == [PARAMETERS * 4.0] * (2 * STEPS)
    assert field(results["fp32"], "RankStep", "gradient_error") == [0.0] * (2 * STEPS)
    through = field(results["fp16"], "RankStep", "interface_bytes")
    if math.isnan(through[0]):
        pytest.skip("this system does not tell what its interfaces have sent")
    assert sum(through) / 2 >= 0.9 * sum(field(results["fp16"], "RankStep", "sent_bytes"))  # others use it, too


def test_that_every_rank_gives_its_times_and_memory(results: dict[str, dict[str, Any]]) -> None:
    rows = [event for kind, event in results["fp32"]["events"] if kind == "RankStep"]
    assert [row["rank"] for row in rows] == [0, 1] * STEPS
    assert all(row["step_s"] > row["wait_s"] >= 0 and row["memory_bytes"] > 1e7 for row in rows)


@pytest.mark.parametrize("name", ["scaled", "shards skipped"])
def test_that_a_scale_that_overflows_skips_the_step_on_both(results: dict[str, dict[str, Any]], name: str) -> None:
    assert results[name]["error"] == ""
    assert field(results[name], "StepDone", "skipped")[0] is True
    assert field(results[name], "StepDone", "scale")[1] < 1e12
    assert all(math.isfinite(loss) for loss in field(results[name], "StepDone", "loss"))


def test_that_shards_send_two_gathers_of_the_parameters_and_one_all_reduce_of_the_gradients(
    results: dict[str, dict[str, Any]],
) -> None:
    sent = field(results["shards bf16"], "RankStep", "sent_bytes")
    whole = PARAMETERS * 4 / 2  # FP32, one of two halves
    assert sent == pytest.approx([sent[0]] * (2 * STEPS))
    assert 3.3 * whole < sent[0] <= 4 * whole * 1.01  # the root, with its embedding, is not gathered again in backward
    through = field(results["shards bf16"], "RankStep", "interface_bytes")
    assert math.isnan(through[0]) or sum(through) / 2 >= 0.9 * sum(sent)
    assert field(results["shards"], "RankStep", "sent_bytes")[0] > sent[0]  # gathers of two batches, one sum
    waited = field(results["shards"], "RankStep", "wait_s")
    assert all(
        0 < wait < step for wait, step in zip(waited, field(results["shards"], "RankStep", "step_s"), strict=True)
    )
    assert all(math.isnan(error) for error in field(results["shards"], "RankStep", "gradient_error"))


def test_that_error_feedback_trains(results: dict[str, dict[str, Any]]) -> None:
    losses = field(results["int4"], "StepDone", "loss")
    assert losses[-1] < losses[0]


def test_that_powersgd_in_several_buckets_on_gloo_is_refused(results: dict[str, dict[str, Any]]) -> None:
    assert "works on gloo with one bucket only" in results["powersgd"]["error"]


def test_that_ranks_with_different_configs_do_not_train(results: dict[str, dict[str, Any]]) -> None:
    assert "rank 1 was started with another config than rank 0" in results["other seed"]["error"]
    assert field(results["other seed"], "StepDone", "loss") == []


def test_that_ranks_with_other_data_do_not_train(results: dict[str, dict[str, Any]]) -> None:
    assert "rank 1 has other data than rank 0; give every host the same files" in results["other data"]["error"]
    assert field(results["other data"], "StepDone", "loss") == []


def test_that_a_rank_tells_the_failure_of_another_one(results: dict[str, dict[str, Any]]) -> None:
    assert results["failing rank"]["error"] == "LostRank: rank 1: ValueError: no label has the number 7"
    assert len(field(results["failing rank"], "StepDone", "loss")) == 1


def test_that_data_are_compared_by_their_facts_without_their_place() -> None:
    here = data_identity({"source": "/here/a.txt", "sha256": "ab", "bytes": 7})
    assert disagreement([here, data_identity({"source": "/there/a.txt", "sha256": "ab", "bytes": 7})]) == ""
    other = disagreement([here, data_identity({"source": "/there/a.txt", "sha256": "cd", "bytes": 7})])
    assert other.startswith("rank 1 has other data than rank 0 (sha256)")
    batch = torch.zeros(2, 3), torch.zeros(2)
    assert batches_digest([batch]) == batches_digest([batch])
    assert len({batches_digest([(batch[0] + shift, batch[1])]) for shift in (0.0, 1e-7)}) == 2


def test_that_only_the_first_rank_needs_to_know_where_the_run_is_kept(results: dict[str, dict[str, Any]]) -> None:
    assert results["other record"]["error"] == ""
    assert field(results["other record"], "StepDone", "loss") == field(results["fp32"], "StepDone", "loss")


def test_that_the_first_rank_writes_the_whole_weights(results: dict[str, dict[str, Any]]) -> None:
    written = [facts for facts in field(results["other record"], "Facts", "values") if "saved_weights" in facts]
    assert len(written) == 1
    tensors, _ = read_tensors(Path(written[0]["saved_weights"]["file"]))
    chosen = config_of("fp32")
    tasks.make(chosen, print).model().load_state_dict(tensors, strict=True)
    assert sum(tensor.numel() for tensor in tensors.values()) >= PARAMETERS


def test_that_another_version_of_torch_on_a_host_is_named() -> None:
    first = {"torch": "2.15.0", "precgui": "0.1.0", "config": "a"}
    assert disagreement([first, first]) == ""
    assert disagreement([first, first | {"torch": "2.9.0"}]) == (
        "rank 1 has torch 2.9.0, rank 0 has 2.15.0; install the same version on every host"
    )


def test_that_a_port_that_is_taken_is_told_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for name, value in {
            "RANK": "0",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(EngineError, match=f"rank 0 of 2 cannot use port {port}, which another program has"):
            joined(config_of("fp32")).__enter__()
