"""Every precision trains on the GPU, and its run file says what ran and what the GPU did meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("pydantic", reason="runs are configured with pydantic, which is not installed here")

from precgui import config, job
from precgui.config import PRECISIONS
from precgui.events import Event
from precgui.runs.file.reader import open_run

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
TRAINED = [name for name in PRECISIONS if not name.endswith("-qat")]


def train(path: Path, precision: str, *settings: str) -> tuple[Any, list[Event]]:
    events: list[Event] = []
    wanted = [f"device={DEVICE}", f"precision={precision}", "train.max_steps=40", *settings]
    ended = job.Job(config.load("digits-quick", wanted), path, [events.append]).run()
    return ended, events


@pytest.mark.parametrize("precision", [*TRAINED, "emulated:e5m2", "int8-qat"])
def test_that_every_precision_trains_on_the_gpu(precision, tmp_path):
    ended, _ = train(tmp_path / "a.h5", precision)
    assert (ended.status, ended.message and ended.details) == ("completed", ""), ended.details or ended.message
    with open_run(tmp_path / "a.h5") as saved:
        loss = saved.series("loss")[1]
        assert np.isfinite(loss).sum() >= 35
        assert np.nanmean(loss[-5:]) < np.nanmean(loss[:5])
        assert saved.device.startswith(DEVICE)
        assert saved.notes == []


def test_that_memory_and_the_state_of_the_gpu_are_kept(tmp_path):
    train(tmp_path / "a.h5", "bf16-amp", "train.max_steps=400")
    with open_run(tmp_path / "a.h5") as saved:
        assert saved.summary["memory_peak_bytes"] > 1 << 20
        (gpu, *_) = [name for name in saved.state_devices() if name.startswith("GPU")]
        assert np.isfinite(saved.series(f"utilisation:{gpu}")[1]).all()
        assert np.isfinite(saved.series(f"clock_mhz:{gpu}")[1]).all()
        if torch.cuda.get_device_capability() >= (9, 0):
            assert np.isfinite(saved.series(f"tensor_use:{gpu}")[1]).all()
            assert saved.summary["tensor_use"] is not None


def test_that_fp32_is_true_fp32_and_tf32_is_tf32(tmp_path):
    ran = {}
    for precision in ("fp32", "tf32"):
        train(tmp_path / f"{precision}.h5", precision)
        with open_run(tmp_path / f"{precision}.h5") as saved:
            ran[precision] = saved.environment["certificate"]["fp32_products"]
    expected = "tf32" if torch.cuda.get_device_capability() >= (8, 0) else "fp32"
    assert ran == {"fp32": "fp32", "tf32": expected}


@pytest.mark.parametrize("precision", ["fp32", "bf16-amp"])
def test_that_a_cuda_graph_is_captured_and_trains_alike(precision, tmp_path):
    losses = []
    for graph in ("false", "true"):
        ended, _ = train(tmp_path / f"{graph}.h5", precision, f"train.cuda_graph={graph}")
        assert ended.status == "completed", ended.details or ended.message
        with open_run(tmp_path / f"{graph}.h5") as saved:
            losses.append(saved.series("loss")[1])
            assert not [event for event in saved.events("note") if "cannot be captured" in event.message]
    assert losses[1][:10] == pytest.approx(losses[0][:10], rel=1e-2 if precision == "bf16-amp" else 1e-4)


def test_that_a_run_repeats_itself_on_the_gpu(tmp_path):
    losses = []
    for name in ("a", "b"):
        train(tmp_path / f"{name}.h5", "fp32", "train.deterministic=true")
        with open_run(tmp_path / f"{name}.h5") as saved:
            losses.append(saved.series("loss")[1])
    np.testing.assert_array_equal(*losses)
