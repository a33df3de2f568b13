"""What a recorder adds to steps of a millisecond or two, with and without the least number of measurements.

`python benchmarks/small_steps.py [--steps N ...]` trains a small perceptron plain and recorded in turns and prints the
ratio of the CPU time of the whole process, what opening, the first step and closing cost once, the record's own
account, and how often each kind was measured.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import precgui
from precgui.config import RecordConfig
from precgui.runs.recorded_facts import measurement_counts


def trained(steps: int, record: RecordConfig | None) -> tuple[float, float, str]:
    """CPU milliseconds of the process a step after the first, those of all else together (opening the record, its first
    step, closing it), and what the record tells of itself."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    inputs, targets = torch.randn(128, 64), torch.randint(10, (128,))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        begin = time.process_time()
        recorder = precgui.Recorder(path, model, optimizer, record=record) if record else None
        after_first = begin
        for step in range(steps):
            if step == 1:
                after_first = time.process_time()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
            if recorder:
                recorder.step(loss, samples=128)
        last = time.process_time()
        told = ""
        if recorder is not None:
            recorder.close()
            whole = time.process_time() - begin
            with precgui.open_run(path) as run:
                share = run.environment["record"]["cost_share"]
                told = f"by its own account {share:.1%}, {measurement_counts(run)}"
        else:
            whole = last - begin
        each = 1e3 * (last - after_first) / (steps - 1)
        return each, 1e3 * whole - each * (steps - 1), told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[100, 300, 1000])
    torch.set_num_threads(1)
    trained(30, RecordConfig())
    for steps in parser.parse_args().steps:
        plain = min(trained(steps, None)[0] for _ in range(2))
        for least in (0, 20):
            each, once, told = min(trained(steps, RecordConfig(least_measurements=least)) for _ in range(2))
            print(
                f"{steps} steps of {plain:.2f} ms, at least {least}: {each / plain:.2f} x a step "
                f"({each - plain:+.2f} ms), once {once:.0f} ms; {told}",
                flush=True,
            )


if __name__ == "__main__":
    main()
