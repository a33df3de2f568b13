"""Commands on the pretended device and on the CPU, in a process of `on_pretended_gpu`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch.autograd.profiler_util import FunctionEvent

from precgui.engine.bench.run import BenchPlan, run_bench
from tests.devices import commands
from tests.pretended import host_math


def _print(row: dict[str, Any]) -> None:
    print("ROW " + json.dumps({**row, "lost": host_math.lost(), "waits": host_math.record.waits}))  # noqa: T201


def print_command(*words: str) -> None:
    """Print one line of JSON: the exit code of a command, the document that it prints with --json, and its errors."""
    host_math.record.clear()
    _print(commands.command(*words))


def print_resumed(folder: str, device: str, *settings: str) -> None:
    """Print the losses of a run that failed after its third step and went on, and of one that was never cut."""
    host_math.record.clear()
    _print(commands.resumed(Path(folder), device, *settings))


def print_shadow(device: str) -> None:
    """Print the verdict of `precgui.shadow` on one step."""
    host_math.record.clear()
    _print(commands.shadow(device))


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
