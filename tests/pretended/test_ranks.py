"""Ranks on two pretended GPUs: what precgui and torch call around NCCL, whose place gloo takes in the same memory."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.devices.ranks import BASE, RUNS, STEPS, losses_close
from tests.pretended.conftest import Script
from tests.pretended.test_training import rows_of

# Of a step: waits that precgui asks for, and those of torch: DDP times its first ten steps by events, and gradients
# that are kept in main memory are waited for.
WAITS = {"ddp scaled": 3, "ddp measured": 3, "fsdp off-load": 2}
TORCH_WAITS = {"fsdp": 0, "fsdp bf16": 0, "fsdp off-load": 40}
UNPINNED = {"fsdp off-load": 3}  # norms that are computed in main memory
pytestmark = pytest.mark.pretended_long


@pytest.fixture(scope="module")
def row(on_pretended_gpu: Script, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    runs = {
        f"{name} {device}": (*BASE, *settings, f"device={device}")
        for name, settings in RUNS.items()
        for device in ("cuda", "cpu")
    }
    call = f"print_ranks({str(tmp_path_factory.mktemp('ranks'))!r}, 'gpt-quick', {runs!r})"
    begin = "from tests.pretended.ranks import print_ranks\n"
    return rows_of(on_pretended_gpu, [call], gpus=2, begin=begin)[0]


def _of(row: dict[str, Any], name: str, kind: str, field: str) -> list[Any]:
    return [event[field] for known, event in row["runs"][name]["events"] if known == kind]


@pytest.mark.parametrize("name", RUNS)
def test_that_ranks_on_gpus_have_the_losses_of_ranks_on_the_cpu(row: dict[str, Any], name: str) -> None:
    for device in ("cuda", "cpu"):
        assert row["runs"][f"{name} {device}"]["error"] == ""
    own, other = (_of(row, f"{name} {device}", "StepDone", "loss") for device in ("cuda", "cpu"))
    assert len(own) == STEPS
    assert own == pytest.approx(other, rel=losses_close(name, 1e-6))
    norms, on_cpu = (_of(row, f"{name} {device}", "StepDone", "grad_norm") for device in ("cuda", "cpu"))
    assert norms == pytest.approx(on_cpu, rel=1e-2 if name in ("ddp scaled", "fsdp bf16") else 1e-5)


@pytest.mark.parametrize("name", RUNS)
def test_that_waits_of_ranks_on_gpus_are_not_measured(row: dict[str, Any], name: str) -> None:
    """A collective of a GPU returns before its work is done; on the CPU the time until it returns is told."""
    assert all(math.isnan(wait_s) for wait_s in _of(row, f"{name} cuda", "RankStep", "wait_s"))
    assert all(wait_s >= 0 for wait_s in _of(row, f"{name} cpu", "RankStep", "wait_s"))
    assert len(_of(row, f"{name} cuda", "RankStep", "wait_s")) == 2 * STEPS


def test_that_each_rank_opens_no_context_on_the_gpu_of_another(row: dict[str, Any]) -> None:
    assert [process["touched"] for process in row["processes"]] == [[0], [1]]


def test_that_no_kernel_of_a_rank_is_left_out(row: dict[str, Any]) -> None:
    assert [process["lost"] for process in row["processes"]] == [0, 0]


@pytest.mark.parametrize("name", RUNS)
def test_that_ranks_wait_no_more_often_than_they_must(row: dict[str, Any], name: str) -> None:
    begin = list(row["runs"]).index(f"{name} cuda") * STEPS
    for process in row["processes"]:
        step = process["steps"][begin + STEPS - 1]  # in the second one DDP orders its buckets anew
        own = sum(step["waiting"].values())
        assert own == WAITS.get(name, 1), step["waiting"]
        assert step["waits"] - own <= TORCH_WAITS.get(name, 8)
        assert step["unpinned"] <= UNPINNED.get(name, 0), step["uploading"]
