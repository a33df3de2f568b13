"""The user's own task: code from a module or a file that the config names, checked and completed."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import numbers
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from precgui.config.names import is_own_task
from precgui.engine.errors import EngineError
from precgui.engine.tasks.base import Batch, Task, ratio
from precgui.events import NO_METRIC, Metric
from precgui.hardware.environment import SENT_CODE_VARIABLE
from precgui.sentences import L_

if TYPE_CHECKING:
    from precgui.config import RunConfig

_NEEDED = ("model", "train_batches", "validation_batches", "loss")
NO_SCORE = Metric(NO_METRIC, L_("No metric"), L_("the task gives no score"))


def make_own(config: RunConfig) -> Task:
    """Call `function(config)` for a task written `module:function` or `file.py:function`.

    This runs the code that is named: the caller has asked the user. Raises EngineError when it is not there or does not
    give a task; what the code itself raises is let through.
    """
    place, _, name = config.task.rpartition(":")
    sent = os.environ.get(SENT_CODE_VARIABLE)  # None outside a place
    if sent is not None and place not in sent.split(","):
        raise EngineError(
            f"task {config.task}: a place runs no code that was not sent to it; `precgui run --place NAME --own-code` "
            "sends the file of a task"
        )
    try:
        module = _from_file(Path(place).expanduser()) if place.endswith(".py") else _installed(place)
        make: Callable[[RunConfig], Any] | None = getattr(module, name, None)
        if not callable(make):
            raise EngineError(f"task {config.task}: {place} has no function {name}")
        created = make(config)
    except ModuleNotFoundError as error:
        if sent is None:
            raise
        raise EngineError(
            f"task {config.task}: there is no module {error.name} at this place; modules beside {place} are not sent: "
            f"put {error.name} into {place}, or install it there"
        ) from None
    file = Path(module.__file__).absolute() if module.__file__ else None
    missing = [part for part in _NEEDED if not callable(getattr(created, part, None))]
    if missing:
        raise EngineError(
            f"task {config.task}: what {name} returns has no {', '.join(missing)}; a task needs the methods "
            f"{', '.join(_NEEDED)}, see docs/own-task.md"
        )
    return OwnTask(config.task, created, file)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise EngineError(f"task: there is no file {path}")
    name = f"precgui_task_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that loader processes find its classes
    if str(path.parent.absolute()) not in sys.path:
        sys.path.append(str(path.parent.absolute()))  # so that it finds the modules beside it
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
    """The user's object with all that the loop asks for, and a sentence for what it does wrong.

    Without a score, the metric is NaN. `file` is where the code comes from; the record keeps its SHA-256.
    """

    def __init__(self, name: str, created: Any, file: Path | None) -> None:
        self._name, self._object = name, created
        self.metric: Metric = self._metric()
        self.facts: Mapping[str, Any] = {**self._facts(), **_code(file)}
        self.steps_per_epoch = self._steps()

    def _metric(self) -> Metric:
        requested = getattr(self._object, "metric", None)
        scores = hasattr(self._object, "score")
        if isinstance(requested, str):
            return Metric(requested, requested, requested)
        if isinstance(requested, Metric):
            return requested
        if requested is not None:
            raise EngineError(
                f"task {self._name}: metric must be a name or a precgui.engine.tasks.Metric, not {requested!r}"
            )
        return Metric("score", L_("Score"), L_("what score() of the task gives")) if scores else NO_SCORE

    def _facts(self) -> Mapping[str, Any]:
        facts = getattr(self._object, "facts", {})
        if not isinstance(facts, Mapping):
            raise EngineError(f"task {self._name}: facts must be a dict of plain values, not {facts!r}")
        return facts

    def _steps(self) -> int:
        steps = getattr(self._object, "steps_per_epoch", None)
        if steps is None:
            batches = self._object.train_batches()
            steps = len(batches) if isinstance(batches, Sized) else None
        if not isinstance(steps, int) or steps < 1:
            raise EngineError(
                f"task {self._name}: steps_per_epoch is {steps}; set it to the number of batches, or let train_batches "
                "return something with a length"
            )
        return steps

    def model(self) -> nn.Module:
        created = self._object.model()
        if not isinstance(created, nn.Module):
            raise EngineError(f"task {self._name}: model() gave {type(created).__name__}, not a torch.nn.Module")
        if not any(parameter.requires_grad for parameter in created.parameters()):
            raise EngineError(f"task {self._name}: the model has no parameters to train")
        return created

    def train_batches(self) -> Iterable[Batch]:
        return self._checked("train_batches")

    def validation_batches(self) -> Iterable[Batch]:
        return self._checked("validation_batches")

    def _checked(self, name: str) -> Iterator[Batch]:
        """The batches of one epoch, of which there must be one at least."""
        empty = True
        for batch in getattr(self._object, name)():
            self._check(name, batch)
            empty = False
            yield batch
        if empty:
            raise EngineError(
                f"task {self._name}: {name}() gave no batches; is the data set empty, or did it return the same "
                "iterator as before?"
            )

    def _check(self, name: str, batch: Any) -> None:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise EngineError(f"task {self._name}: {name}() gave {_kind(batch)}, not a pair of inputs and targets")
        if not isinstance(batch[1], Tensor) or not batch[1].dim():
            raise EngineError(
                f"task {self._name}: the targets that {name}() gave are {_kind(batch[1])}, not a tensor with a row for "
                "each sample"
            )

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        loss = self._object.loss(outputs, targets)
        if not isinstance(loss, Tensor):
            raise EngineError(f"task {self._name}: loss() gave {type(loss).__name__}, not a tensor")
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise EngineError(
                f"task {self._name}: loss() gave a tensor that does not depend on the weights; compute it from "
                "outputs, without detach() or item()"
            )
        return loss

    def score(self, outputs: Any, targets: Tensor) -> Any:
        if not hasattr(self._object, "score"):
            return torch.zeros(2)
        score = self._object.score(outputs, targets)
        if not hasattr(self._object, "result") and not (isinstance(score, Tensor) and _is_ratio(score)):
            raise EngineError(
                f"task {self._name}: score() gave {_kind(score)}, not a tensor of two numbers or rows: what was "
                "reached and what can be"
            )
        return score

    def result(self, scores: Sequence[Any]) -> float:
        if not hasattr(self._object, "result"):
            return ratio(scores)
        value = self._object.result(scores)
        if isinstance(value, Tensor) and value.numel() == 1:
            value = value.item()
        if not isinstance(value, numbers.Real):
            raise EngineError(f"task {self._name}: result() gave {value!r}, not a number")
        return float(value)


def _is_ratio(score: Tensor) -> bool:
    return 1 <= score.dim() <= 2 and len(score) == 2


def _code(file: Path | None) -> dict[str, Any]:
    if file is None or not file.is_file():
        return {}
    return {"file": str(file), "code_sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return f"a {type(value).__name__} of {len(value)}" if isinstance(value, tuple | list) else type(value).__name__


def place_in_task(task: str, error: BaseException) -> str:
    """Where the user's own code was when it raised, as ", FILE line 12"; empty when it was not in it."""
    if not is_own_task(task):
        return ""
    place = task.rpartition(":")[0]
    name = f"precgui_task_{Path(place).stem}" if place.endswith(".py") else place
    file = str(getattr(sys.modules.get(name), "__file__", None) or Path(place).expanduser())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f", {Path(file).name} line {lines[-1]}" if lines else ""
