"""Commands and runs on a device, and the places at which what they tell differs from that of the CPU."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import precgui
from precgui import config
from precgui.cli.main import main
from precgui.events import Event, StepDone
from precgui.job import Job

QUICK = ("data.batch_size=16", "threads=1", "record.budget=100")
_OF_DEVICE = {"run", "time_s", "before_first_step_s", "step_s_median", "samples_per_s", "memory_peak_bytes", "energy_j",
              "notes", "message", "verdict_text", "anatomy", "device", "tensor_use", "latency_s", "file"}  # fmt: skip


def words_of(*words: str, settings: tuple[str, ...] = ()) -> list[str]:
    """The words of a command with its settings."""
    return [*words, *(word for setting in settings for word in ("--set", setting))]


def command(*words: str) -> dict[str, Any]:
    """The exit code of a command, the document that it prints with --json, and its errors."""
    printed, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
        try:
            code = main([*words, "--json"])
        except SystemExit as end:
            code = int(end.code or 0)
    document = json.loads(printed.getvalue()) if printed.getvalue() else {}
    return {"code": code, "document": document, "told": told.getvalue()}


def resumed(folder: Path, device: str, *settings: str) -> dict[str, Any]:
    """The losses of a run that failed after its third step and went on, and of one that was never cut."""
    common = [f"device={device}", *QUICK, "train.max_steps=5", "train.checkpoint_every=2"]
    chosen = config.load("digits-quick", [*common, *settings])
    losses: dict[str, list[list[float]]] = {"whole": [], "cut": []}

    def take(event: Event, name: str = "whole") -> None:
        if isinstance(event, StepDone):
            losses[name].append([event.step, event.loss])

    def cut(event: Event) -> None:
        take(event, "cut")
        if isinstance(event, StepDone) and event.step == 3:
            raise RuntimeError("the loop is broken")

    of_device = folder / device.replace(":", "-")
    of_device.mkdir()
    Job(chosen, of_device / "whole.h5", [take]).run()
    failed = Job(chosen, of_device / "cut.h5", [cut]).run()
    ended = Job.going_on(of_device / "cut.h5", [lambda event: take(event, "cut")]).run()
    return {**losses, "failed": [failed.status, failed.message], "ended": [ended.status, ended.message]}


def check_resumed(row: Mapping[str, Any]) -> None:
    """A run that went on has the losses of one that was never cut, to the last bit."""
    status, message = row["failed"]
    assert (status, message.endswith("the loop is broken")) == ("failed", True), message
    assert row["ended"] == ["completed", ""]
    cut = dict(map(tuple, row["cut"]))  # a step that was made twice has the losses of the second time
    assert cut == dict(map(tuple, row["whole"]))
    assert [step for step, _ in row["whole"]] == [1, 2, 3, 4, 5]


def shadow(device: str) -> dict[str, Any]:
    """The verdict of `precgui.shadow` on one step of a model in BF16, whose loss is in FP32.

    In autocast the devices would differ: that of CUDA keeps more operations in FP32 than that of the CPU.
    """
    torch.manual_seed(3)
    network = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
    model, head = network.to(device, torch.bfloat16), torch.nn.Linear(16, 4).to(device, torch.bfloat16)
    x, y = torch.randn(8, 12).to(device, torch.bfloat16), torch.arange(8).remainder(4).to(device)

    def step() -> torch.Tensor:
        logits = head(model(x))
        loss = torch.nn.functional.cross_entropy(logits.float(), y)
        loss.backward()
        return loss

    found = precgui.shadow(step, [*model.parameters(), *head.parameters()])
    lines = [[line.line, line.share] for line in found.lines()]
    left = found.with_fp64(next(line for line in found.lines() if line.source.startswith("logits =")))
    return {"verdict": found.verdict, "error": found.gradient_error, "lines": lines, "left": left}


def differences(own: Any, other: Any, close: float, place: str = "") -> list[str]:
    """The places at which two documents differ; times, devices and files are not compared."""
    if isinstance(own, dict) and isinstance(other, dict):
        keys = (own.keys() | other.keys()) - _OF_DEVICE
        return [d for key in keys for d in differences(own.get(key), other.get(key), close, f"{place}.{key}")]
    if isinstance(own, list) and isinstance(other, list) and len(own) == len(other):
        pairs = enumerate(zip(own, other, strict=True))
        return [d for number, pair in pairs for d in differences(*pair, close, f"{place}[{number}]")]
    if isinstance(own, float) and isinstance(other, float):
        alike = own == pytest.approx(other, rel=close, abs=close, nan_ok=True)
    else:
        alike = own == other
    return [] if alike else [f"{place}: {own!r}, on the CPU {other!r}"]
