"""What a recorder adds to steps of a millisecond or two, with and without the least number of measurements.

`python benchmarks/small_steps.py [--steps N ...]` trains a small perceptron plain and recorded in turns and prints the
ratio of the CPU time of the whole process, the record's own account, and how often each kind was measured.
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


def trained(steps: int, record: RecordConfig | None) -> tuple[float, str]:
    """CPU milliseconds of the process a step, and what the record tells of itself."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    inputs, targets = torch.randn(128, 64), torch.randint(10, (128,))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        recorder = precgui.Recorder(path, model, optimizer, record=record) if record else None
        begin = time.process_time()
        for _ in range(steps):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
            if recorder:
                recorder.step(loss, samples=128)
        taken = 1e3 * (time.process_time() - begin) / steps
        if recorder is None:
            return taken, ""
        recorder.close()
        with precgui.open_run(path) as run:
            share = run.environment["record"]["cost_share"]
            return taken, f"by its own account {share:.1%}, {measurement_counts(run)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[100, 300, 1000])
    torch.set_num_threads(1)
    trained(30, RecordConfig())
    for steps in parser.parse_args().steps:
        plain = min(trained(steps, None)[0] for _ in range(2))
        for least in (0, 20):
            taken, told = trained(steps, RecordConfig(least_measurements=least))
            print(f"{steps} steps of {plain:.2f} ms, at least {least}: {taken / plain:.2f} x, {told}", flush=True)


if __name__ == "__main__":
    main()
