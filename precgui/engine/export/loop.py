"""The training loop of exported scripts. `script` writes the values of a run into the lines marked below."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from precgui.engine import backend_flags, execution
from precgui.engine.precisions.full import FP32 as RunPrecision
from precgui.engine.tasks.regression import Regression as RunTask
from precgui.engine.update import learning_rate, make_average, make_optimizer, single_norms, total_norm

DEVICE, THREADS = "cpu", 1
CONFIG: dict[str, Any] = {}
DATA: dict[str, Any] = {}


def main() -> None:
    """Train and validate, printing every loss."""
    config = settings(CONFIG)
    torch.set_num_threads(THREADS)
    device = torch.device(DEVICE)
    if config.train.deterministic:
        backend_flags.set_deterministic(device)
    precision = RunPrecision(config, device)
    precision.prepare()
    torch.manual_seed(config.seed)
    task = RunTask(config)
    print_changes(task.facts)
    model = execution.prepare_model(precision.convert(task.model()), config.train, precision)
    weights = precision.weights(model)
    for note in precision.notes:
        print(note)
    average = make_average(config, model, weights)
    loop = TrainingLoop(config, task, precision, model, make_optimizer(config, weights), average)
    epoch = 0
    while loop.step < loop.total_steps:
        epoch += 1
        loop.train_epoch(epoch)
        with loop.averaged(), torch.inference_mode():
            loop.validate(epoch)
    with loop.averaged():
        for facts, sentences in precision.finish(model, task, lambda: False):
            print(*sentences, sep="\n")
            print(f"on integers: validation loss {facts['quantised']['evaluation']['integer']['loss']!r}")


class TrainingLoop:
    """The steps and the validation of a run."""

    def __init__(self, config: Any, task: Any, precision: Any, model: nn.Module, optimizer: Any, average: Any) -> None:
        self.config, self.task, self.precision = config, task, precision
        self.model, self.optimizer, self.average = model, optimizer, average
        self.step = 0
        self.total_steps = config.train.epochs * math.ceil(task.steps_per_epoch / config.train.accumulation)
        if config.train.max_steps is not None:
            self.total_steps = min(self.total_steps, config.train.max_steps)

    def train_epoch(self, epoch: int) -> None:
        self.model.train()
        self.precision.begin_epoch(self.model, epoch)
        for batches in grouped(self.task.train_batches(), self.config.train.accumulation):
            if self.step == self.total_steps:
                return
            self.step += 1
            self.train_step(batches)

    def train_step(self, batches: list[Any]) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.step, self.total_steps)
        self.optimizer.zero_grad(set_to_none=True)
        samples = sum(len(targets) for _, targets in batches)
        losses = []
        for batch in batches:
            outputs, targets = self.forward(batch)
            loss = self.task.loss(outputs, targets)
            if len(batches) > 1:
                loss = loss * (len(targets) / samples)
            self.precision.backward(loss)
            losses.append(loss.detach())
        self.precision.unscale(self.optimizer)
        if self.config.train.clip_norm is not None:
            weights = [w for group in self.optimizer.param_groups for w in group["params"] if w.grad is not None]
            norm = total_norm(single_norms([w.grad for w in weights]))
            nn.utils.clip_grads_with_norm_(weights, self.config.train.clip_norm, norm)
        skipped = self.precision.step(self.optimizer)
        if self.average is not None and not skipped:
            self.average.update()
        total = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
        print(f"step {self.step}: loss {total.item()!r}")

    def forward(self, batch: Any) -> tuple[Any, Any]:
        return execution.forward(self.model, self.precision, self.config.train, batch)

    def validate(self, epoch: int) -> None:
        self.model.eval()
        total, samples, scores = 0.0, 0, []
        for batch in self.task.validation_batches():
            outputs, targets = self.forward(batch)
            total += float(self.task.loss(outputs, targets)) * len(targets)
            samples += len(targets)
            scores.append(self.task.score(outputs, targets))
        metric = f"{self.task.metric.title} {self.task.result(scores)!r}"
        print(f"epoch {epoch}: validation loss {total / samples!r}, {metric}")

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the model has the average of its weights where one is kept."""
        return self.average.applied() if self.average is not None else contextlib.nullcontext()


def grouped(batches: Iterable[Any], count: int) -> Iterator[list[Any]]:
    """Up to `count` batches at a time."""
    iterator = iter(batches)
    while group := list(itertools.islice(iterator, count)):
        yield group


def settings(values: Mapping[str, Any]) -> Any:
    """Sections and their values as attributes."""
    parts = {name: SimpleNamespace(**value) if isinstance(value, dict) else value for name, value in values.items()}
    return SimpleNamespace(**parts)


def print_changes(facts: Mapping[str, Any]) -> None:
    """Say so when the data are not those of the run."""
    other = [name for name, value in DATA.items() if facts.get(name) != value]
    if other:
        print(f"the data are not those of the run ({', '.join(other)}), so the losses will differ")


if __name__ == "__main__":
    main()
