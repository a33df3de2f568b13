"""Scripts of all tasks: data that have changed are told, and nothing in a run file becomes code."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from precgui import config
from precgui.engine import backend_flags
from precgui.engine.export.script import script, write_script
from precgui.events import RunStarted
from tests.engine.export.script_output import recorded

_FEW = ("data.batch_size=4", "data.epoch_steps=3", "train.max_steps=2", "train.epochs=1", "optimizer.lr=0.001")


def test_that_every_task_of_precgui_has_a_script() -> None:
    for task in config.TASKS:
        text = script(config.load("digits-quick", [f"task={task}"]), {})
        compile(text, f"{task}.py", "exec")


def test_that_a_script_says_when_the_data_have_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "prose.txt").write_text("what was read by the run " * 20)
    wanted, events = recorded((*_FEW, "task=text", f"data.path={tmp_path / 'prose.txt'}", "data.sequence_length=8"))
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
