"""The user's own task: found, checked, completed, and wrong in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from precgui import config
from precgui.engine.errors import EngineError
from precgui.events import Evaluated, RunStarted, StepDone
from tests.engine.conftest import Record

LINE = """
import torch
from torch import nn


class Line:
    def __init__(self, seed):
        self.x = torch.randn(64, 1, generator=torch.Generator().manual_seed(seed))

    def model(self):
        return nn.Linear(1, 1)

    def train_batches(self):
        return [(part, 3 * part + 1) for part in self.x.split(16)]

    def validation_batches(self):
        return self.train_batches()

    def loss(self, outputs, targets):
        return nn.functional.mse_loss(outputs, targets){extra}


def make_task(config):
    return Line(config.seed)


def nothing(config):
    return object()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "line.py"
    path.write_text(LINE.format(extra=""))
    return path


def test_that_a_task_from_a_file_is_learned(record: Record, file: Path) -> None:
    events = record("record.tensors=false", f"task={file}:make_task", "train.epochs=20")
    started = events[0]
    assert isinstance(started, RunStarted)
    assert started.steps_per_epoch == 4
    last = [event for event in events if isinstance(event, Evaluated)][-1]
    assert last.loss < 1e-2
    assert last.accuracy != last.accuracy, "without a score there is no metric"


def test_that_a_score_gives_the_metric(record: Record, file: Path) -> None:
    file.write_text(
        LINE.format(
            extra="\n\n    def score(self, outputs, targets):\n"
            "        near = (outputs - targets).abs() < 0.5\n"
            "        return torch.tensor([near.sum(), len(targets)])"
        )
    )
    events = record("record.tensors=false", f"task={file}:make_task", "train.epochs=20")
    assert [event for event in events if isinstance(event, Evaluated)][-1].accuracy == 1.0


def test_that_a_task_from_a_module_is_learned(record: Record, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(file.parent))
    events = record("record.tensors=false", "task=line:make_task", "train.epochs=2")
    assert len([event for event in events if isinstance(event, StepDone)]) == 8


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        ("no_such_module_here:make_task", "there is no module no_such_module_here; install it"),
        ("{folder}/other.py:make_task", "there is no file .*other.py"),
        ("{folder}/line.py:make", "line.py has no function make"),
        ("{folder}/line.py:nothing", "has no model, train_batches, validation_batches, loss"),
    ],
)
def test_that_a_task_that_cannot_be_used_is_named(record: Record, file: Path, task: str, sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        record("task=" + task.format(folder=file.parent))


def test_that_a_loss_that_is_no_single_number_is_named(record: Record, file: Path) -> None:
    file.write_text(
        LINE.format(extra="").replace("mse_loss(outputs, targets)", "mse_loss(outputs, targets, reduction='none')")
    )
    with pytest.raises(EngineError, match=r"has the shape \[16, 1\], but must be a single number"):
        record(f"task={file}:make_task")


def test_that_what_the_code_raises_reaches_the_caller(record: Record, file: Path) -> None:
    file.write_text("raise ZeroDivisionError('mine')")
    with pytest.raises(ZeroDivisionError, match="mine"):
        record(f"task={file}:make_task")


def test_that_a_missing_import_of_the_module_is_not_called_a_missing_module(
    record: Record, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file.parent / "needy.py").write_text("import no_such_library_at_all")
    monkeypatch.syspath_prepend(str(file.parent))
    with pytest.raises(ModuleNotFoundError, match="no_such_library_at_all"):
        record("task=needy:make_task")


@pytest.mark.parametrize("name", ["nonsense", "a b:c", ":make", "module:", "os.system('x'):y"])
def test_that_only_names_of_code_are_taken(name: str) -> None:
    with pytest.raises(config.ConfigError, match="nor your own as module:function"):
        config.build({"task": name})


def test_that_reading_a_config_runs_nothing(file: Path) -> None:
    file.write_text("raise SystemExit")
    loaded = config.build({"task": f"{file}:make_task"})
    assert loaded.display_title.endswith("own fp32")


def test_that_the_example_of_the_documentation_is_learned(record: Record, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "own-task.md").read_text(encoding="utf-8")
    file = tmp_path / "spirals.py"
    file.write_text(page.split("```python\n")[1].split("```")[0])
    events = record(
        "record.tensors=false", f"task={file}:make_task", "train.epochs=40", "optimizer.name=adamw", "optimizer.lr=0.01"
    )
    assert [event for event in events if isinstance(event, Evaluated)][-1].accuracy > 0.9
