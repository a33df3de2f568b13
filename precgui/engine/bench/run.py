"""Measured rates of a device: matrix products by format and size, copies, conversions, a convolution, attention.

Every figure carries its spread, the clock and the throttle reasons beside it. The certificate tells by numerics in
which format a product really ran. Kernels that would take minutes (reference code for FP8 and FP16 on CPUs) are
found with a tiny product first and marked, not run.
"""

from __future__ import annotations

import contextlib
import datetime
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import psutil
import torch

from precgui.engine import device as devices
from precgui.engine.backend_flags import restored
from precgui.engine.bench import workloads as work
from precgui.engine.bench.parts import PARTS, Bench, Emit, measured, steps
from precgui.engine.torch_facts import torch_facts
from precgui.hardware.detect import detect
from precgui.hardware.gauge import ClockProbe
from precgui.hardware.measured import SCHEMA
from precgui.hardware.readings import known

CPU_SIZES = (256, 512, 1024, 2048)
ACCELERATOR_SIZES = (512, 1024, 2048, 4096, 8192)
NICE = 5  # of the bench of the window
DEFAULT_PARTS = tuple(part for part in PARTS if part != "energy")


class _Control(Protocol):
    def stopped(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The measurements to make. `device` is a torch device or auto; `threads` are CPU threads (None: as in a run);
    `parts` are some of PARTS, the certificate always comes first; `sizes` None: by the kind of device."""

    device: str = "auto"
    formats: Sequence[str] = work.FORMATS
    sizes: Sequence[int] | None = None
    threads: int | None = None
    parts: Sequence[str] = DEFAULT_PARTS


def serve(emit: Emit, control: _Control, **plan: Any) -> None:
    """Task of a child process: emits progress, rows, and the result at the end (also of a bench that was stopped).

    It gives way to the window; on a machine with nothing else to do that changes no figure.
    """
    process = psutil.Process()
    process.nice(psutil.BELOW_NORMAL_PRIORITY_CLASS if sys.platform == "win32" else NICE)
    run_bench(BenchPlan(**plan), emit, control.stopped)


def run_bench(plan: BenchPlan, emit: Emit, stopped: Callable[[], bool]) -> dict[str, Any]:
    """Measure and return the result (built-in types). Raises EngineError for a device that is not there."""
    device = devices.choose(plan.device)
    machine = detect(torch_facts())
    about = machine.device(str(device)) or machine.devices[-1]
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    sizes = sorted(set(plan.sizes or (CPU_SIZES if device.type == "cpu" else ACCELERATOR_SIZES)))
    on_device = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    with restored(), on_device, ClockProbe(about) as gauge:
        threads = devices.pin_threads(plan.threads)
        total = steps(plan.formats, sizes, plan.parts)
        bench = Bench(plan.formats, sizes, plan.parts, device, about, gauge, emit, stopped, total)
        result: dict[str, Any] = {
            "schema": SCHEMA,
            "started": started,
            "device": {"id": about.id, "name": about.name, "kind": about.kind, "architecture": about.architecture},
            "host": machine.host["host"],
            "torch": str(torch.__version__),
            "threads": threads,
            "bandwidth_gbs": known(about.bandwidth_gbs),
            **measured(bench),
        }
    result["complete"] = not stopped()
    emit({"kind": "done", "result": result})
    return result
