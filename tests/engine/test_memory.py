"""The peak of memory on a CPU: what is counted, that it disturbs nothing, and that it moves as it should."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from precgui import config, job, open_run
from precgui.engine.hooks.memory_peak import MEASURED_BY, SIZES, MemoryPeak
from precgui.engine.journal import Journal
from precgui.engine.memory import MemoryEvents, sizes_bytes, workspace_bytes
from precgui.engine.tasks import text
from precgui.events import Event, Facts, StepDone
from tests.engine.conftest import Record
from tests.warm_children import python

GPT = (
    "task=text",
    "data.sequence_length=32",
    "data.batch_size=8",
    "optimizer.name=adamw",
    "record.tensors=false",
    "data.epoch_steps=2",
)


def memory(events: list[Event]) -> dict[str, Any]:
    facts = [event.values["memory"] for event in events if isinstance(event, Facts) and "memory" in event.values]
    assert len(facts) == 1
    return dict(facts[0])


def test_that_the_peak_is_that_of_torchs_present_profiler() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    images = torch.randn(16, 3, 8, 8)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(images).square().mean().backward()

    model.zero_grad(set_to_none=True)
    events = MemoryEvents()
    events.start()
    step()
    found = events.stop()
    model.zero_grad(set_to_none=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    assert profiled.profiler is not None
    present = peak = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            present += event.nbytes()
            peak = max(peak, present)
    assert found == peak > images.numel() * 4


def test_that_blocks_at_the_places_of_earlier_measurements_do_not_lower_the_peak() -> None:
    for _ in range(8):
        events = MemoryEvents()
        events.start()
        seen = torch.empty(64)
        events.stop()
        del seen  # torch is not told
        block = torch.empty(64)  # at the same place, as a rule
        events = MemoryEvents()
        events.start()
        del block
        values = torch.ones(1000)
        assert events.stop() == values.numel() * 4


def test_that_nothing_is_counted_inside_another_profiler() -> None:
    events = MemoryEvents()
    with torch.autograd.profiler.profile():
        events.start()
        assert events.stop() is None


@pytest.mark.parametrize(
    ("capability", "setting", "kib"),
    [((9, 0), "", 32768), ((10, 0), "", 32768), ((8, 0), "", 8320), ((12, 0), "", 8320), ((9, 0), ":16:8", 128),
     ((8, 0), ":4096:8", 32768), ((8, 0), "odd", 8320), ((8, 0), ":4096", 8320)],
)  # fmt: skip
def test_that_the_workspaces_of_cublas_are_those_of_two_threads(
    capability: tuple[int, int], setting: str, kib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", setting)
    assert workspace_bytes(torch.device("cuda", 0)) == 2 * 1024 * kib
    assert workspace_bytes(torch.device("cpu")) == 0


def test_that_memory_that_two_share_counts_once() -> None:
    whole = torch.zeros(100)
    found = sizes_bytes(
        {"weights": [whole, whole[10:]], "optimizer": {"momentum": [torch.zeros(7), whole.view(10, 10)]}}
    )
    assert found == {"weights": 400, "optimizer": 28}


@pytest.fixture
def few_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation on a few texts: it is outside of the step whose memory is measured."""
    monkeypatch.setattr(text, "_VALIDATION_WINDOWS", 8)


@pytest.mark.usefixtures("few_windows")
def test_that_the_parts_of_the_peak_are_what_the_precision_stores(record: Record) -> None:
    steps = ("train.max_steps=2", *GPT)
    found = {name: memory(record(f"precision={name}", *steps)) for name in ("fp64", "fp32", "bf16-amp", "bf16-pure")}
    weights = {name: parts["weights_bytes"] for name, parts in found.items()}
    assert weights["fp64"] == 2 * weights["fp32"] == 2 * weights["bf16-amp"] == 4 * weights["bf16-pure"]
    counters = 4 * 29  # AdamW's step for each parameter
    assert found["fp32"]["optimizer_bytes"] == 2 * weights["fp32"] + counters
    assert found["bf16-amp"]["step_bytes"] < found["fp32"]["step_bytes"] < found["fp64"]["step_bytes"]
    for parts in found.values():
        assert (parts["step"], parts["measured_by"]) == (2, MEASURED_BY)
        assert parts["peak_bytes"] == sum(size for name, size in parts.items() if name not in _NOT_PARTS)


_NOT_PARTS = ("peak_bytes", "measured_by", "step")


def test_that_checkpoints_and_smaller_batches_lower_the_peak(record: Record) -> None:
    steps = ("train.max_steps=2", "data.batch_size=256", "record.tensors=false")
    whole, cut, parts = (
        memory(record(*steps, *more))["step_bytes"]
        for more in ((), ("train.checkpointing=true",), ("data.batch_size=64", "train.accumulation=4"))
    )
    assert cut < 0.85 * whole
    assert parts < 0.5 * whole


@pytest.mark.usefixtures("few_windows")
def test_that_master_weights_and_the_average_are_counted(record: Record) -> None:
    steps = ("train.max_steps=2", "precision=bf16-pure", *GPT)
    plain = memory(record(*steps))
    more = memory(record(*steps, "precision_options.master_weights=true", "train.ema_decay=0.9"))
    assert plain["average_bytes"] == 0
    assert more["average_bytes"] == 2 * plain["weights_bytes"]
    assert more["optimizer_bytes"] > 2 * plain["optimizer_bytes"]


def test_that_measuring_changes_no_bit(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    def losses() -> list[tuple[float, float]]:
        events = record("train.max_steps=5", "precision=fp16-amp", "train.checkpointing=true")
        return [(event.loss, event.grad_norm) for event in events if isinstance(event, StepDone)]

    measured = losses()
    monkeypatch.setattr(MemoryPeak, "begin_step", lambda *_: None)
    assert losses() == measured


def test_that_a_step_before_the_first_update_is_not_taken_for_the_peak(record: Record) -> None:
    late = record("train.max_steps=12", "precision=fp16-amp", "scaling.initial_scale=1e8")
    skipped = [event.step for event in late if isinstance(event, StepDone) and event.skipped]
    assert memory(late)["step"] == skipped[-1] + 2
    never = record("train.max_steps=4", "precision=fp16-amp", "scaling.mode=static", "scaling.initial_scale=1e9")
    assert not [event for event in never if isinstance(event, Facts) and "memory" in event.values]


def test_that_measuring_writes_nothing_to_the_terminal() -> None:
    """In a process of its own, since torch warns of the first block from before only."""
    lines = (
        "from precgui import config",
        "from precgui.engine.train import train",
        "wanted = config.load('digits-quick', ['device=cpu', 'threads=1', 'train.max_steps=3', 'precision=bf16-sr',"
        " 'record.tensors=false'])",
        "train(wanted, lambda event: None, lambda: False)",
    )
    done = python("-c", "\n".join(lines))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_that_the_summary_holds_the_peak(tmp_path: Path) -> None:
    wanted = config.load("digits-quick", ["device=cpu", "threads=1", "train.max_steps=3", "record.tensors=false"])
    job.Job(wanted, tmp_path / "a.h5").run()
    with open_run(tmp_path / "a.h5") as saved:
        assert saved.summary["memory_peak_bytes"] == saved.environment["memory"]["peak_bytes"] > 1e6


def test_that_another_device_tells_the_sizes_alone_and_keeps_its_own_peak() -> None:
    """Its allocator knows the peak, step by step."""
    told: list[dict[str, Any]] = []
    journal = cast(Journal, SimpleNamespace(facts=told.append))
    weights = torch.zeros(1000)
    hook = MemoryPeak(journal, {"weights": lambda: [weights]}, with_peak=False)
    hook.after_update(skipped=False)
    for step in (2, 3):
        hook.begin_step(step, 1.0, [(torch.zeros(10), torch.zeros(10))])
        hook.after_update(skipped=False)
    hook.close()
    assert told == [{"memory": {"measured_by": SIZES, "step": 2, "weights_bytes": 4000, "batch_bytes": 80}}]
