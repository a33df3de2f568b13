"""The user's own task: code from a module or a file that the config names, checked and completed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from precgui.config import RunConfig
from precgui.engine.errors import EngineError
from precgui.engine.tasks.base import Batch, Task, ratio
from precgui.events import NO_METRIC, Metric

_NEEDED = ("model", "train_batches", "validation_batches", "loss")
NO_SCORE = Metric(NO_METRIC, "No metric", "the task gives no score")


def make_own(config: RunConfig) -> Task:
    """Call `function(config)` for a task written `module:function` or `file.py:function`.

    This runs the code that is named: the caller has asked the user. Raises EngineError when it is not there or does not
    give a task; what the code itself raises is let through.
    """
    place, _, name = config.task.rpartition(":")
    module = _from_file(Path(place).expanduser()) if place.endswith(".py") else _installed(place)
    make: Callable[[RunConfig], Any] | None = getattr(module, name, None)
    if not callable(make):
        raise EngineError(f"task {config.task}: {place} has no function {name}")
    made = make(config)
    missing = [part for part in _NEEDED if not callable(getattr(made, part, None))]
    if missing:
        raise EngineError(
            f"task {config.task}: what {name} returns has no {', '.join(missing)}; a task needs the methods "
            f"{', '.join(_NEEDED)}, see docs/own-task.md"
        )
    return OwnTask(config.task, made)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise EngineError(f"task: there is no file {path}")
    name = f"precgui_task_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that loader processes find its classes
    spec.loader.exec_module(module)
    return module


def _installed(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # it is there, but something that it imports is not
        raise EngineError(
            f"task: there is no module {name}; install it into this Python, or write the path of its file, "
            f"{name.replace('.', '/')}.py:make_task"
        ) from None


class OwnTask:
    """The user's object with all that the loop asks for: without a score, the metric is NaN."""

    def __init__(self, name: str, made: Any) -> None:
        self._name, self._made = name, made
        self.metric: Metric = getattr(made, "metric", NO_SCORE)
        if not isinstance(self.metric, Metric):
            raise EngineError(f"task {name}: metric must be a precgui.engine.tasks.Metric, not {self.metric!r}")
        self.facts: Mapping[str, Any] = getattr(made, "facts", {})
        self.steps_per_epoch = self._steps()

    def _steps(self) -> int:
        steps = getattr(self._made, "steps_per_epoch", None)
        if steps is None:
            batches = self._made.train_batches()
            steps = len(batches) if isinstance(batches, Sized) else None
        if not isinstance(steps, int) or steps < 1:
            raise EngineError(
                f"task {self._name}: steps_per_epoch is {steps}; set it to the number of batches, or let train_batches "
                "return something with a length"
            )
        return steps

    def model(self) -> nn.Module:
        made = self._made.model()
        if not isinstance(made, nn.Module):
            raise EngineError(f"task {self._name}: model() gave {type(made).__name__}, not a torch.nn.Module")
        return made

    def train_batches(self) -> Iterable[Batch]:
        batches: Iterable[Batch] = self._made.train_batches()
        return batches

    def validation_batches(self) -> Iterable[Batch]:
        batches: Iterable[Batch] = self._made.validation_batches()
        return batches

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        loss = self._made.loss(outputs, targets)
        if not isinstance(loss, Tensor):
            raise EngineError(f"task {self._name}: loss() gave {type(loss).__name__}, not a tensor")
        return loss

    def score(self, outputs: Any, targets: Tensor) -> Any:
        return self._made.score(outputs, targets) if hasattr(self._made, "score") else torch.zeros(2)

    def result(self, scores: Sequence[Any]) -> float:
        if hasattr(self._made, "result"):
            return float(self._made.result(scores))
        return ratio(scores)
