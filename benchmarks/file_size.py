"""How many bytes a recorded step takes in the run file, for steps of several durations.

    python benchmarks/file_size.py [--model resnet18] [--steps 400] [--step-ms 10,50,100,200,700]

The gradients of a few real steps of a network (a ResNet-18 has 62 tensors) are counted, every element of them. The run
writer then keeps them over and over, flushed as often as it would for steps that long. What the file grows by between
the 100th step and the last is told by step. Target: below 6 000 bytes with 62 tensors in every step.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from precgui import config
from precgui.engine.train import train
from precgui.events import Event, RunStarted, StepDone, TensorStats
from precgui.runs.file import writer

WARM_STEPS = 100  # in which the tables take their first room
REAL_STEPS = 8


def recorded_gradients(model: str) -> list[TensorStats]:
    settings = (f"model.name={model}", f"train.max_steps={REAL_STEPS}", "data.batch_size=32", "record.budget=1.0")
    seen: list[Event] = []
    train(config.load("digits-quick", settings), seen.append, lambda: False)
    return [event for event in seen if isinstance(event, TensorStats) and event.kind == "gradient"]


def bytes_per_step(gradients: list[TensorStats], steps: int, step_s: float, folder: Path) -> float:
    path = folder / f"{step_s}.h5"
    described = {"run_id": path.stem, "created": "", "machine": {}, "environment": {}}
    with writer.RunWriter(path, config.RunConfig(), **described) as emit:  # type: ignore[arg-type]
        emit(RunStarted(0.0, steps, steps, "cpu", tensors=2 * len(gradients[0].names)))  # and as many modules
        flushed_s = 0.0
        for step in range(1, WARM_STEPS + steps + 1):
            at = step * step_s
            emit(StepDone(step, at, 1 / step, 1.0, False, 0.1, 1.0, step_s, 0.0, 32, 1e9))
            emit(replace(gradients[step % len(gradients)], step=step, time_s=at))
            if at - flushed_s >= writer.FLUSH_S or step == WARM_STEPS:
                emit.flush()
                flushed_s = at
            if step == WARM_STEPS:
                before = path.stat().st_size
        emit.flush()
        return (path.stat().st_size - before) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--step-ms", default="10,50,100,200,700")
    options = parser.parse_args()
    gradients = recorded_gradients(options.model)
    print(f"{len(gradients[0].names)} gradients of {options.model} in every step, a flush every {writer.FLUSH_S} s")
    with tempfile.TemporaryDirectory() as folder:
        for step_ms in map(float, options.step_ms.split(",")):
            size = bytes_per_step(gradients, options.steps, step_ms / 1000, Path(folder))
            print(f"steps of {step_ms:5.0f} ms: {size:7.0f} bytes a step")


if __name__ == "__main__":
    main()
