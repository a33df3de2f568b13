"""Sweeps without training: a spec, and run files written by hand for its members."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from precgui import config
from precgui.events import Evaluated, Event, Incident, RunEnded, RunStarted, StepDone
from precgui.runs.file.writer import RunWriter
from precgui.sweeps.folder import SweepFolder, create_sweep
from precgui.sweeps.plan import Member
from precgui.sweeps.spec import SweepSpec, make_spec
from tests.written_once import written_once


def small_spec(
    seeds: int = 2, precisions: tuple[str, ...] = ("fp32", "bf16-amp"), device: str = "cpu", **options: Any
) -> SweepSpec:
    base = config.load("regression-precise", ["train.max_steps=5", f"device={device}", "threads=1"])
    return make_spec(base, precisions, seeds, order_seed=7, **options)


def small_sweep(folder: Path, **options: Any) -> SweepFolder:
    return create_sweep(folder / "sweep", small_spec(**options))


def write_member(
    folder: SweepFolder,
    member: Member,
    *,
    status: str | None = "completed",
    loss: float = 0.5,
    accuracy: float = 0.9,
    step_s: float = 0.01,
    engine: dict[str, Any] | None = None,
    host: str = "h",
    emulated: str = "",
    message: str = "",
) -> Path:
    """The file of a member as a run would leave it; without a status it looks killed."""
    weights = f"{member.seed}{' twin' * (member.kind == 'twin')}"
    facts = {"initial_weights_sha256": weights, "threads": 1, "data": {"validation_samples": 100}, **(engine or {})}
    events: list[Event] = [RunStarted(0.0, 5, 5, "cpu", facts)]
    if emulated:
        events.append(Incident(0.0, 0, "emulated", "info", emulated))
    for step in range(1, 6):
        time_s = step * 0.1
        events.append(StepDone(step, time_s, loss, 1.0, False, 0.1, 1.0, step_s, 0.0, 8, math.nan, cpu_s=step_s))
    events.append(Evaluated(5, 1, 0.6, loss, accuracy))
    config_ = folder.config_of(member)

    def write(path: Path) -> None:
        created = "2026-01-02T03:04:05+00:00"
        writer = RunWriter(path, config_, run_id=member.name, created=created, machine={"host": host}, environment={})
        for event in events:
            writer(event)
        if status is None:
            writer.flush()
            whole = path.read_bytes()  # as it is when nobody writes on
            writer.close()
            path.write_bytes(whole)
        else:
            writer(RunEnded(0.7, status, message))
            writer.close()

    key = ("member", member.name, config_.model_dump_json(), repr(events), status, message, host)
    return written_once(folder.path_of(member), key, write)
