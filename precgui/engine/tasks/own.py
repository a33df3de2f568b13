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
from precgui.sentences import L_, Sentence

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
            Sentence(
                "task {task}: a place runs no code that was not sent to it; `precgui run --place NAME --own-code` "
                "sends the file of a task",
                task=config.task,
            )
        )
    try:
        module = _from_file(Path(place).expanduser()) if place.endswith(".py") else _installed(place)
        make: Callable[[RunConfig], Any] | None = getattr(module, name, None)
        if not callable(make):
            raise EngineError(
                Sentence(
                    "task {task}: {module} has no function {function}", task=config.task, module=place, function=name
                )
            )
        created = make(config)
    except ModuleNotFoundError as error:
        if sent is None:
            raise
        raise EngineError(
            Sentence(
                "task {task}: there is no module {missing_module} at this place; modules beside {module} are not "
                "sent: put {missing_module} into {module}, or install it there",
                task=config.task,
                missing_module=error.name,
                module=place,
            )
        ) from None
    file = Path(module.__file__).absolute() if module.__file__ else None
    missing = [part for part in _NEEDED if not callable(getattr(created, part, None))]
    if missing:
        raise EngineError(
            Sentence(
                "task {task}: what {function} returns has no {methods}; a task needs the methods {needed}, see "
                "docs/own-task.md",
                task=config.task,
                function=name,
                methods=", ".join(missing),
                needed=", ".join(_NEEDED),
            )
        )
    return OwnTask(config.task, created, file)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise EngineError(Sentence("task: there is no file {path}", path=path))
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
            Sentence(
                "task: there is no module {module}; install it into this Python, or write the path of its file, "
                "{path}.py:make_task",
                module=name,
                path=name.replace(".", "/"),
            )
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
                Sentence(
                    "task {task}: metric must be a name or a precgui.engine.tasks.Metric, not {given}",
                    task=self._name,
                    given=repr(requested),
                )
            )
        return Metric("score", L_("Score"), L_("what score() of the task gives")) if scores else NO_SCORE

    def _facts(self) -> Mapping[str, Any]:
        facts = getattr(self._object, "facts", {})
        if not isinstance(facts, Mapping):
            raise EngineError(
                Sentence(
                    "task {task}: facts must be a dict of plain values, not {given}", task=self._name, given=repr(facts)
                )
            )
        return facts

    def _steps(self) -> int:
        steps = getattr(self._object, "steps_per_epoch", None)
        if steps is None:
            batches = self._object.train_batches()
            steps = len(batches) if isinstance(batches, Sized) else None
        if not isinstance(steps, int) or steps < 1:
            raise EngineError(
                Sentence(
                    "task {task}: steps_per_epoch is {steps}; set it to the number of batches, or let train_batches "
                    "return something with a length",
                    task=self._name,
                    steps=steps,
                )
            )
        return steps

    def model(self) -> nn.Module:
        created = self._object.model()
        if not isinstance(created, nn.Module):
            raise EngineError(
                Sentence(
                    "task {task}: model() gave {given}, not a torch.nn.Module",
                    task=self._name,
                    given=type(created).__name__,
                )
            )
        if not any(parameter.requires_grad for parameter in created.parameters()):
            raise EngineError(Sentence("task {task}: the model has no parameters to train", task=self._name))
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
                Sentence(
                    "task {task}: {function}() gave no batches; is the data set empty, or did it return the same "
                    "iterator as before?",
                    task=self._name,
                    function=name,
                )
            )

    def _check(self, name: str, batch: Any) -> None:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise EngineError(
                Sentence(
                    "task {task}: {function}() gave {given}, not a pair of inputs and targets",
                    task=self._name,
                    function=name,
                    given=_kind(batch),
                )
            )
        if not isinstance(batch[1], Tensor) or not batch[1].dim():
            raise EngineError(
                Sentence(
                    "task {task}: the targets that {function}() gave are {given}, not a tensor with a row for each "
                    "sample",
                    task=self._name,
                    function=name,
                    given=_kind(batch[1]),
                )
            )

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        loss = self._object.loss(outputs, targets)
        if not isinstance(loss, Tensor):
            raise EngineError(
                Sentence("task {task}: loss() gave {given}, not a tensor", task=self._name, given=type(loss).__name__)
            )
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise EngineError(
                Sentence(
                    "task {task}: loss() gave a tensor that does not depend on the weights; compute it from "
                    "outputs, without detach() or item()",
                    task=self._name,
                )
            )
        return loss

    def score(self, outputs: Any, targets: Tensor) -> Any:
        if not hasattr(self._object, "score"):
            return torch.zeros(2)
        score = self._object.score(outputs, targets)
        if not hasattr(self._object, "result") and not (isinstance(score, Tensor) and _is_ratio(score)):
            raise EngineError(
                Sentence(
                    "task {task}: score() gave {given}, not a tensor of two numbers or rows: what was reached and "
                    "what can be",
                    task=self._name,
                    given=_kind(score),
                )
            )
        return score

    def result(self, scores: Sequence[Any]) -> float:
        if not hasattr(self._object, "result"):
            return ratio(scores)
        value = self._object.result(scores)
        if isinstance(value, Tensor) and value.numel() == 1:
            value = value.item()
        if not isinstance(value, numbers.Real):
            raise EngineError(
                Sentence("task {task}: result() gave {given}, not a number", task=self._name, given=repr(value))
            )
        return float(value)


def _is_ratio(score: Tensor) -> bool:
    return 1 <= score.dim() <= 2 and len(score) == 2


def _code(file: Path | None) -> dict[str, Any]:
    if file is None or not file.is_file():
        return {}
    return {"file": str(file), "code_sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return Sentence("a tensor of shape {shape}", shape=list(value.shape))
    return f"a {type(value).__name__} of {len(value)}" if isinstance(value, tuple | list) else type(value).__name__


def place_in_task(task: str, error: BaseException) -> str:
    """Where the user's own code was when it raised, as ", FILE line 12"; empty when it was not in it."""
    if not is_own_task(task):
        return ""
    place = task.rpartition(":")[0]
    name = f"precgui_task_{Path(place).stem}" if place.endswith(".py") else place
    file = str(getattr(sys.modules.get(name), "__file__", None) or Path(place).expanduser())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return Sentence(", {file} line {line}", file=Path(file).name, line=lines[-1]) if lines else ""
