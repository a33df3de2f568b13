"""The user's own task: found, checked, completed, and wrong in words."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

import pytest

from precgui import config
from precgui.engine.errors import EngineError
from precgui.events import Evaluated, Incident, RunStarted, StepDone
from precgui.job import Job
from precgui.runs.metric import metric_of
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
    assert loaded.display_title == f"{file.name}:make_task fp32"


def test_that_the_example_of_the_documentation_is_learned(record: Record, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "own-task.md").read_text(encoding="utf-8")
    file = tmp_path / "spirals.py"
    file.write_text(page.split("```python\n")[1].split("```")[0])
    events = record(
        "record.tensors=false", f"task={file}:make_task", "train.epochs=40", "optimizer.name=adamw", "optimizer.lr=0.01"
    )
    assert [event for event in events if isinstance(event, Evaluated)][-1].accuracy > 0.9


# What goes wrong in it

SCORE = "    def score(self, *_):\n"


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("self.x.split(16)]", "self.x[:0].split(16)][:0]", "steps_per_epoch is 0; set it to the number of batches"),
        ("return self.train_batches()", "return []", r"validation_batches\(\) gave no batches; is the data set empty"),
        ("(part, 3 * part + 1)", "part", r"train_batches\(\) gave a tensor of shape \[16, 1\], not a pair of inputs"),
        ("(part, 3 * part + 1)", "(part, part, part)", r"train_batches\(\) gave a tuple of 3, not a pair of inputs"),
        ("(part, 3 * part + 1)", "(part, 5)", r"the targets that train_batches\(\) gave are int, not a tensor"),
        ("(part, 3 * part + 1)", "(part, part.sum())", r"gave are a tensor of shape \[\], not a tensor with a row"),
        ("mse_loss(outputs, targets)", "mse_loss(outputs.detach(), targets)", r"loss\(\) gave a tensor that does not"),
        ("return nn.functional.mse_loss(outputs, targets)", "return 1.0", r"loss\(\) gave float, not a tensor"),
        ("return nn.Linear(1, 1)", "return nn.ReLU()", "the model has no parameters to train"),
        ("return nn.Linear(1, 1)", "return nn.Linear", r"model\(\) gave type, not a torch\.nn\.Module"),
        ("    def loss", f"{SCORE}        return 3\n\n    def loss", r"score\(\) gave int, not a tensor"),
        ("    def loss", f"{SCORE}        return torch.ones(3)\n\n    def loss",
         r"score\(\) gave a tensor of shape \[3\], not a tensor of two"),
        ("    def loss", f"{SCORE}        return 3\n\n    def result(self, _):\n        return 'fine'\n\n    def loss",
         r"result\(\) gave 'fine', not a number"),
        ("class Line:", "class Line:\n    facts = 5", "facts must be a dict of plain values, not 5"),
        ("class Line:", "class Line:\n    metric = 5", "metric must be a name or a precgui.engine.tasks.Metric, not 5"),
    ],
)  # fmt: skip
def test_that_a_fault_of_a_task_is_one_sentence(
    record: Record, file: Path, before: str, after: str, sentence: str
) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    with pytest.raises(EngineError, match=sentence) as caught:
        record("record.tensors=false", f"task={file}:make_task", "train.epochs=1")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"task {file}:make_task: ")


def test_that_an_iterator_that_is_used_up_does_not_hang_the_run(record: Record, file: Path) -> None:
    text = file.read_text().replace("return [(part, 3 * part + 1) for part in self.x.split(16)]", "return self.once")
    text = text.replace("        self.x =", "        self.steps_per_epoch = 4\n        self.x =")
    text = text.replace(
        "    def model", "        self.once = ((part, 3 * part + 1) for part in self.x.split(16))\n\n    def model"
    )
    text = text.replace("return self.train_batches()", "return [(self.x, self.x)]")
    file.write_text(text)
    with pytest.raises(EngineError, match=r"train_batches\(\) gave no batches; .* did it return the same iterator"):
        record("record.tensors=false", f"task={file}:make_task", "train.epochs=2")


@pytest.mark.parametrize(
    ("line", "raised", "told"),
    [
        ("return nn.functional.mse_loss(outputs, targets)", "return outputs @ targets.view(3, 5)",
         "RuntimeError at step 1"),
        ("return nn.functional.mse_loss(outputs, targets)", "raise SystemExit(3)", "SystemExit at step 1"),
        ("self.x = torch", "raise ValueError('no such data')\n        self.x = torch",
         "ValueError before the first step"),
    ],
)  # fmt: skip
def test_that_the_line_that_raised_is_named(file: Path, tmp_path: Path, line: str, raised: str, told: str) -> None:
    text = file.read_text().replace(line, raised)
    file.write_text(text)
    number = next(n for n, each in enumerate(text.splitlines(), 1) if raised.splitlines()[0] in each)
    ended = Job(config.build({"task": f"{file}:make_task", "device": "cpu"}), tmp_path / "a.h5").run()
    assert ended.status == "failed"
    assert re.match(rf"{told}, line\.py line {number}: \S", ended.message)
    assert "\n" not in ended.message
    assert "Traceback" in ended.details


@pytest.mark.parametrize(("part", "told"), [("part * float('nan'), 3 * part", "inputs"), ("part, part / 0", "targets")])
def test_that_data_that_are_not_finite_are_blamed(record: Record, file: Path, part: str, told: str) -> None:
    file.write_text(file.read_text().replace("part, 3 * part + 1", part))
    events = record(f"task={file}:make_task", "train.epochs=1")
    first = next(event for event in events if isinstance(event, Incident) and event.kind == "nonfinite_loss")
    assert re.fullmatch(
        rf"the loss is (nan|inf), because the {told} of this step hold NaN or Inf; clean the data", first.message
    )


# What it may say of its metric


def test_that_a_task_names_its_metric_with_a_word(record: Record, file: Path) -> None:
    score = "\n\n    def score(self, outputs, targets):\n        return torch.tensor([1.0, 2.0])"
    file.write_text(LINE.format(extra=score).replace("class Line:", "class Line:\n    metric = 'Hits'"))
    started = record("record.tensors=false", f"task={file}:make_task", "train.epochs=1")[0]
    assert isinstance(started, RunStarted)
    assert metric_of(started.engine).title == "Hits"


def test_that_a_task_computes_its_metric_from_all_scores(record: Record, file: Path) -> None:
    extra = (
        "\n\n    def score(self, outputs, targets):\n        return (outputs - targets).abs()"
        "\n\n    def result(self, scores):\n        return torch.cat(scores).median()"
    )
    file.write_text(LINE.format(extra=extra))
    events = record("record.tensors=false", f"task={file}:make_task", "train.epochs=20", "optimizer.lr=0.2")
    found = [event.accuracy for event in events if isinstance(event, Evaluated)]
    assert 0 <= found[-1] < 0.1 < found[0]


def test_that_the_code_of_a_task_is_recorded(record: Record, file: Path) -> None:
    started = record("record.tensors=false", f"task={file}:make_task", "train.max_steps=1")[0]
    assert isinstance(started, RunStarted)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert started.engine["data"] == {"file": str(file), "code_sha256": digest}


def test_that_a_file_finds_the_modules_beside_it(record: Record, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    (file.parent / "line_by_itself.py").write_text(file.read_text())
    file.write_text("from line_by_itself import make_task")
    events = record("record.tensors=false", f"task={file}:make_task", "train.max_steps=1")
    assert len([event for event in events if isinstance(event, StepDone)]) == 1
