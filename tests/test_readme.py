"""What the README tells a stranger to type really works, and what it points at is there."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from precgui import config
from precgui.cli.main import main
from precgui.paths import runs_dir
from tests.warm_children import python

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language, in their order."""
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def command_lines(*start: str) -> list[list[str]]:
    """The lines of the shell blocks that begin with these words, without their comments."""
    lines = [shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line[: len(start)] == list(start)]


@dataclass(frozen=True)
class Typed:
    returncode: int
    stdout: str
    stderr: str


def typed(line: list[str], folder: Path) -> Typed:
    """What a command line prints in a folder; in this process, because importing torch takes seconds."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(line[1:])
    return Typed(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the training commands of the README were typed, cut to one epoch, and a script was written."""
    place = tmp_path_factory.mktemp("readme")
    lines = [line for line in command_lines("precgui", "run") if "-o" in line]
    assert len(lines) == 4
    for line in lines:
        result = typed([*line, "--set", "train.epochs=1"], place)
        assert result.returncode == 0, result.stderr
        if "--json" in line:
            assert json.loads(result.stdout)["status"] == "completed"
    assert (place / "w.safetensors").is_file()
    (line,) = [line for line in command_lines("precgui", "export") if "--script" in line]
    assert typed(line, place).returncode == 0
    assert (place / line[-1]).exists()
    return place


def test_that_the_runs_can_be_compared(folder: Path) -> None:
    (line,) = command_lines("precgui", "compare")
    result = typed(line, folder)
    assert result.returncode == 0, result.stderr
    assert all(Path(name).stem in result.stdout for name in line[2:])


def test_that_the_run_file_is_read_without_precgui(folder: Path) -> None:
    (program,) = blocks("python")
    assert "precgui" not in re.sub(r"#.*", "", program)
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False, timeout=240
    )
    assert result.returncode == 0, result.stderr
    assert re.fullmatch(r"bf16-amp \d+ steps, \d+ skipped, accuracy 0\.\d+\n", result.stdout)


def test_that_a_first_run_goes_to_the_folder_of_runs(tmp_path: Path) -> None:
    place = runs_dir()
    assert not place.exists()
    result = python("-m", "precgui.cli.main", "run", "--set", "train.max_steps=2", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert [path.suffix for path in place.iterdir()] == [".h5"]


OTHERS = [
    line for line in command_lines("precgui")
    if len(line) > 1 and line[1] != "compare" and not {"-o", "--script", "--place"} & {*line}
]  # fmt: skip


@pytest.mark.parametrize("line", [line for line in OTHERS if not line[1].endswith(".h5")], ids=shlex.join)
def test_that_every_other_command_works(line: list[str], folder: Path) -> None:
    until_stopped = line[-1] == "--watch"
    result = typed([*line, "0.01"] if until_stopped else line, folder)
    missed = line[1] == "checklist"  # lines that one short epoch on a CPU does not meet
    assert result.returncode in ((0, 1) if missed else (0,)), result.stderr
    assert result.stdout.strip() or any((folder / word).exists() for word in line[2:])


def test_that_the_example_config_is_valid(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    path = tmp_path / "example.toml"
    path.write_text(text, encoding="utf-8")
    assert config.load(path).scaling.initial_scale == 1024


def test_that_every_make_command_and_every_link_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    asked = set(re.findall(r"\bmake ([a-z]+)\b", TEXT))
    assert asked >= {"run", "test"}
    assert {target for target in asked if not re.search(rf"^{target}:", makefile, re.MULTILINE)} == set()
    links = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert len(links) > 3
    assert [link for link in links if not (ROOT / link).exists()] == []
