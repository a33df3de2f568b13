"""Recorders in the processes of one distributed training."""

from __future__ import annotations

import contextlib
import gc
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import precgui
from precgui.record import Recorder
from tests.record.test_recorder import ALL, batches, network


@pytest.fixture
def free_port() -> Callable[[], int]:
    import socket

    def free() -> int:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            return int(listening.getsockname()[1])

    return free


def train_in_two_processes(path: Path, port: int, *, alone: bool) -> None:
    """Forks of a process that has imported torch, where there are such (`tests.warm_children`)."""
    method = "forkserver" if sys.platform == "linux" else "spawn"
    torch.multiprocessing.start_processes(process, (str(path), port, alone), nprocs=2, start_method=method)  # type: ignore[attr-defined]


def process(rank: int, path: str, port: int, alone: bool) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    train_distributed(rank, path, alone)
    gc.collect()  # gloo aborts the process when its threads outlive the group, and the model holds the group
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def train_distributed(rank: int, path: str, alone: bool) -> None:
    model = nn.parallel.DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorded = rank == 0 or not alone
    with Recorder(path, model, optimizer, record=ALL) if recorded else contextlib.nullcontext() as recorder:
        for step, (inputs, targets) in enumerate(batches(5), 1):
            if (step, rank) == (5, 1):
                inputs = inputs * math.inf
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            if (step, rank) == (3, 0):  # what a shard of its own would be
                model.module[2].bias.grad[1] = math.nan
            if step != 5:
                optimizer.step()
            if recorder is not None:
                recorder.step(loss * math.nan if (step, rank) == (2, 1) else loss)
            if step == 3:
                with torch.no_grad():
                    model.module[2].bias.nan_to_num_(0.0)


def test_that_the_first_process_writes_what_every_process_meets(tmp_path: Path, free_port: Callable[[], int]) -> None:
    train_in_two_processes(tmp_path / "run.h5", free_port(), alone=False)
    with precgui.open_run(tmp_path / "run.h5") as run:
        losses = [(event.step, "process 1" in event.message, event.module) for event in run.events("nonfinite_loss")]
        assert losses == [(2, True, ""), (5, True, "0")]
        gradients = [(event.step, event.message.partition(";")[0]) for event in run.events("nonfinite_gradient")]
        assert gradients == [
            (3, "some gradients are not finite in process 0"),
            (5, "some gradients are not finite in process 0"),
            (5, "some gradients are not finite in process 1"),
        ]
        assert run.events("nonfinite_gradient")[0].module == "2.bias"
        assert all(event.module for event in run.events("nonfinite_gradient"))
        assert "0.weight" in run.tensors()["gradient"].names
        assert run.steps == 5


def test_that_a_recorder_in_the_first_process_alone_waits_for_nobody(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    train_in_two_processes(tmp_path / "run.h5", free_port(), alone=True)
    with precgui.open_run(tmp_path / "run.h5") as run:
        assert (run.status, run.steps) == ("completed", 5)
        assert [event.step for event in run.events("nonfinite_gradient")] == [3, 5]
