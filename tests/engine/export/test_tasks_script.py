"""The scripts of all tasks repeat their runs bit for bit, without precgui."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from precgui import config
from precgui.engine import backend_flags
from precgui.engine.export.script import script, write_script
from precgui.engine.tasks.images import digits
from precgui.engine.train import train
from precgui.events import Evaluated, Event, RunStarted, StepDone
from tests.engine.export.script_output import printed_by
from tests.engine.tasks.test_images import write_idx
from tests.engine.tasks.test_own import LINE

_FEW = ("data.batch_size=4", "data.epoch_steps=3", "train.max_steps=2", "train.epochs=1", "optimizer.lr=0.001")
_FOLDER = ("task=image-folder", "data.path={folder}/classes", "data.pixels=16")
# Each name with the settings of a run; {folder} holds the data and the code of the user's.
RUNS: dict[str, tuple[str, ...]] = {
    "digits": ("data.augment=true", "model.name=mlp", "data.workers=1"),
    "vit": (*_FOLDER, "model.name=vit"),
    "torchvision": (*_FOLDER, "model.name=squeezenet1_1"),
    "small stem": (*_FOLDER, "model.name=resnet18"),
    "mnist": ("task=mnist", "data.path={folder}", "model.name=cnn"),
    "image folder": (*_FOLDER, "model.name=resnet", "data.augment=true"),
    "lstm": ("task=text", "model.name=lstm", "data.sequence_length=8", "data.path={folder}/prose.txt"),
    "segmentation": ("task=segmentation",),
    "regression": ("task=regression",),
    "perceptron": ("task=regression", "model.name=mlp", "precision=fp64"),
    "gan": ("task=gan", "train.accumulation=2"),
    "cartpole": ("task=cartpole", "train.max_steps=2"),
    "detection": ("task=detection", "train.channels_last=true"),
    "own": ("task={folder}/line.py:make_task", "precision=bf16-amp"),
}  # fmt: skip
Outputs = dict[str, tuple[list[Event], str]]


def recorded(settings: tuple[str, ...]) -> tuple[config.RunConfig, list[Event]]:
    events: list[Event] = []
    wanted = config.load("digits-quick", ["device=cpu", "threads=1", "record.tensors=false", *_FEW, *settings])
    train(wanted, events.append, lambda: False)
    return wanted, events


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, code, images by class, and a folder as torchvision's MNIST has it."""
    root = tmp_path_factory.mktemp("data")
    (root / "prose.txt").write_text("the quick brown fox jumps over the lazy dog. " * 40)
    (root / "line.py").write_text(LINE.format(extra=""))
    images, labels = digits()
    enlarged = torch.nn.functional.interpolate(images[:40], size=28)[:, 0].mul(255).to(torch.uint8)
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, part in (("train", slice(0, 30)), ("t10k", slice(30, 40))):
        write_idx(raw / f"{name}-images-idx3-ubyte", enlarged[part])
        write_idx(raw / f"{name}-labels-idx1-ubyte", labels[:40][part])
    for n, image in enumerate(enlarged):
        place = root / "classes" / ("even", "odd")[n % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.numpy()).save(place / f"{n:02}.png")
    return root


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Outputs:
    """Every run with what its script printed; the scripts run in one process, because importing torch takes seconds."""
    place = tmp_path_factory.mktemp("scripts")
    runs, paths = {}, []
    for n, (name, settings) in enumerate(RUNS.items()):
        wanted, runs[name] = recorded(tuple(setting.format(folder=folder) for setting in settings))
        started = next(e for e in runs[name] if isinstance(e, RunStarted))
        paths.append(place / f"script_{n}.py")
        write_script(wanted, started.engine, paths[-1])
    return {name: (runs[name], text) for name, text in zip(RUNS, printed_by(paths), strict=True)}


@pytest.mark.parametrize("name", RUNS)
def test_that_a_script_repeats_the_run_bit_for_bit(outputs: Outputs, name: str) -> None:
    events, printed = outputs[name]
    losses = [float(text) for text in re.findall(r"^step \d+: loss (\S+)$", printed, re.MULTILINE)]
    assert len(losses) > 0
    assert losses == [e.loss for e in events if isinstance(e, StepDone)]
    pairs = re.findall(r"validation loss (\S+), .* (\S+)$", printed, re.MULTILINE)
    told = [tuple(map(float, pair)) for pair in pairs]
    expected = [(e.loss, e.accuracy) for e in events if isinstance(e, Evaluated)]
    assert str(told) == str(expected), "NaN included, for a task without a score"
    assert "are not those of the run" not in printed


def test_that_every_task_of_precgui_has_a_script() -> None:
    for task in config.TASKS:
        text = script(config.load("digits-quick", [f"task={task}"]), {})
        compile(text, f"{task}.py", "exec")


def test_that_a_script_says_when_the_data_have_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "prose.txt").write_text("what was read by the run " * 20)
    wanted, events = recorded(("task=text", f"data.path={tmp_path / 'prose.txt'}", "data.sequence_length=8"))
    started = next(e for e in events if isinstance(e, RunStarted))
    write_script(wanted, started.engine, tmp_path / "script.py")
    (tmp_path / "prose.txt").write_text("what is read by the script " * 20)
    with backend_flags.restored():
        runpy.run_path(str(tmp_path / "script.py"), run_name="__main__")
    assert "the data are not those of the run (bytes, sha256), so the losses will differ" in capsys.readouterr().out


@pytest.mark.parametrize(
    "hostile",
    [
        lambda text: {"title": f'"""{text}"""'},
        lambda text: {"title": f"\\{text}\\"},
        lambda text: {"device": f'cpu"); {text} #'},
        lambda text: {"kept": f"'] ; {text} #"},
        lambda text: {"data": {"folder": f'"); {text} #', "'); " + text: 1}},
    ],
)
def test_that_nothing_in_a_run_file_becomes_code(hostile: Callable[[str], dict[str, object]]) -> None:
    told = hostile("import precgui_was_here")
    wanted = config.load("digits-quick", ["task=mnist", "precision=bf16-amp", "precision_options.keep_fp32=head"])
    wanted = wanted.model_copy(update={"title": told.get("title", "")})
    environment = {"kept_in_fp32": [told.get("kept", "head")], **told}
    text = script(wanted, environment)
    statements = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import)]
    assert "precgui_was_here" not in {alias.name for node in statements for alias in node.names}


@pytest.mark.parametrize(
    ("task", "recorded_file", "named"),
    [
        ("/mine/spirals.py:make_task", "/theirs/evil_other.py", "/mine/spirals.py:make_task"),
        ("spirals.py:make_task", "/theirs/evil_other.py", "spirals.py:make_task"),
        ("spirals.py:make_task", "/mine/spirals.py", "/mine/spirals.py:make_task"),
        ("package.module:make_task", "/theirs/module.py", "package.module:make_task"),
    ],
)
def test_that_a_script_imports_the_task_of_its_config_whatever_file_the_run_names(
    task: str, recorded_file: str, named: str
) -> None:
    """A file of somebody else may name any file as that of its task."""
    text = script(config.load("digits-quick", [f"task={task}"]), {"data": {"file": recorded_file}})
    assert f"'{named}'" in text.replace('"', "'")
    assert "evil_other" not in text
