"""Commands on the pretended device and on the CPU, in a process of `on_pretended_gpu`."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler_util import FunctionEvent

import precgui
from precgui import config
from precgui.cli.main import main
from precgui.engine.bench.run import BenchPlan, run_bench
from precgui.events import Event, StepDone
from precgui.job import Job
from tests.pretended import host_math


def _print(row: dict[str, Any]) -> None:
    print("ROW " + json.dumps({**row, "lost": host_math.lost(), "waits": host_math.record.waits}))  # noqa: T201


def print_command(*words: str) -> None:
    """Print one line of JSON: the exit code of a command, the document that it prints with --json, and its errors."""
    host_math.record.clear()
    printed, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
        try:
            code = main([*words, "--json"])
        except SystemExit as end:
            code = int(end.code or 0)
    document = json.loads(printed.getvalue()) if printed.getvalue() else {}
    _print({"code": code, "document": document, "told": told.getvalue()})


def print_resumed(folder: str, device: str, *settings: str) -> None:
    """Print the losses of a run that failed after its third step and went on, and of one that was never cut."""
    common = [f"device={device}", "threads=1", "data.batch_size=16", "train.max_steps=5", "train.checkpoint_every=2"]
    chosen = config.load("digits-quick", [*common, "record.budget=100", *settings])
    losses: dict[str, list[list[float]]] = {"whole": [], "cut": []}

    def take(event: Event, name: str = "whole") -> None:
        if isinstance(event, StepDone):
            losses[name].append([event.step, event.loss])

    def cut(event: Event) -> None:
        take(event, "cut")
        if isinstance(event, StepDone) and event.step == 3:
            raise RuntimeError("the loop is broken")

    host_math.record.clear()
    of_device = Path(folder) / device.replace(":", "-")
    of_device.mkdir()
    Job(chosen, of_device / "whole.h5", [take]).run()
    failed = Job(chosen, of_device / "cut.h5", [cut]).run()
    ended = Job.going_on(of_device / "cut.h5", [lambda event: take(event, "cut")]).run()
    _print({**losses, "failed": [failed.status, failed.message], "ended": [ended.status, ended.message]})


def print_shadow(device: str) -> None:
    """Print the verdict of `precgui.shadow` on one step of a model in BF16, whose loss is in FP32.

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

    host_math.record.clear()
    shadow = precgui.shadow(step, [*model.parameters(), *head.parameters()])
    lines = [[line.line, line.share] for line in shadow.lines()]
    left = shadow.with_fp64(next(line for line in shadow.lines() if line.source.startswith("logits =")))
    _print({"verdict": shadow.verdict, "error": shadow.gradient_error, "lines": lines, "left": left})


def print_bench(device: str) -> None:
    """Print the result of a bench of small products."""
    host_math.record.clear()
    parts = ("accumulation", "gemm", "alignment")
    _print(run_bench(BenchPlan(device, ("fp32", "bf16", "e4m3fn"), (64,), parts=parts), lambda _: None, lambda: False))


def print_profile(device: str) -> None:
    """Print a profile in which the kernels of an operation took as long as the host; torch records none here."""
    words = (
        "profile",
        "digits-quick",
        "--set",
        f"device={device}",
        "--set",
        "precision=bf16-amp",
        "--seconds",
        "1",
        "--no-trials",
    )
    print_command(*words)
    FunctionEvent.self_device_time_total = property(
        lambda event: event.self_cpu_time_total if event.name.startswith("aten::") else 0.0
    )
    print_command(*words)
