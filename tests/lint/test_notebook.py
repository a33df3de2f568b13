"""Notebooks: their cells are one script, and a finding has the cell and the line in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from precgui.cli.main import main
from precgui.lint.check import ScriptError, check_file, read_script
from precgui.lint.notebook import NotebookError, read_notebook

MADE = "import torch\n\nscaler = torch.amp.GradScaler('cuda')"
TRAINED = (
    "%%time\nfor x in loader:\n    optimizer.zero_grad()\n    scaler.scale(model(x).sum()).backward()\n"
    "    scaler.step(optimizer)\n    scaler.unscale_(optimizer)\n    scaler.update()"
)


def notebook(*cells: str, language: str = "python", **others: object) -> str:
    made = [{"cell_type": "markdown", "source": ["# Title"]}]
    made += [{"cell_type": "code", "outputs": [], "source": each.splitlines(keepends=True)} for each in cells]
    return json.dumps({"cells": made, "metadata": {"language_info": {"name": language}}, "nbformat": 4, **others})


def written(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "train.ipynb"
    path.write_text(content, encoding="utf-8")
    return path


def test_that_cells_are_one_script_and_lines_are_those_of_the_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, notebook("!pip install torch", MADE, "", TRAINED))
    [found] = check_file(path)
    assert (found.rule, found.cell, found.line) == ("scaler-out-of-order", 4, 6)
    assert "in line 4:5" in found.title
    assert main(["check", str(path)]) == 1
    assert f"{path}:4:6: error" in capsys.readouterr().out
    assert main(["check", str(path), "--json", "--diff"]) == 1
    [row] = json.loads(capsys.readouterr().out)["findings"]
    assert (row["cell"], row["line"], row["diff"]) == (4, 6, "")


def test_that_commands_of_ipython_keep_their_lines_and_other_languages_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = ("if colab:\n    !pip install torch\nfiles = !ls", "%%bash\nls", "?torch\n" + MADE, "for for", TRAINED)
    path = written(tmp_path, notebook(*cells))
    [found] = check_file(path)
    assert (found.cell, found.line) == (5, 6)
    assert main(["check", str(path)]) == 1
    assert "cell 2, 4: left out" in capsys.readouterr().out
    assert main(["check", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["cells_left_out"] == [2, 4]
    assert "# %% cell 3\n" in read_script(path) and "# %% cell 4, left out" in read_script(path)


def test_that_the_older_format_is_read() -> None:
    sheet = {"cells": [{"cell_type": "code", "input": [MADE]}, {"cell_type": "code", "input": TRAINED}]}
    assert read_notebook(json.dumps({"worksheets": [sheet], "nbformat": 3})).starts == (1, 5)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("x = 1\n", "not JSON"), ("[" * 100_000, "not JSON"), ("[1]", "it has no cells"), ("{}", "no cells"),
        ('{"cells": 3}', "no cells"), (notebook(), "cells of code"), (notebook("1", language="R"), "of R, not of"),
    ],
)  # fmt: skip
def test_that_what_is_no_notebook_of_python_is_one_sentence(tmp_path: Path, content: str, reason: str) -> None:
    with pytest.raises(ScriptError, match=r"train\.ipynb .*" + reason):
        check_file(written(tmp_path, content))


def test_that_odd_parts_of_a_notebook_are_passed_over() -> None:
    odd = {"cells": [1, {"cell_type": "code"}, {"cell_type": "code", "source": [None, "x = 1"]}], "metadata": []}
    assert read_notebook(json.dumps(odd)).starts == (1, 3)
    with pytest.raises(NotebookError, match="JSON"):
        read_notebook('{"cells": [')


@pytest.mark.parametrize("cells", [("for for",), ("%%bash\nls", "", "x = = 1")])
def test_that_a_notebook_without_any_python_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cells: tuple[str, ...]
) -> None:
    assert main(["check", str(written(tmp_path, notebook(*cells)))]) == 2
    told = capsys.readouterr()
    assert "train.ipynb holds no Python that can be parsed" in told.err and "nothing found" not in told.out


def test_that_a_file_that_a_cell_writes_is_a_script_of_its_own(tmp_path: Path) -> None:
    plain = TRAINED.removeprefix("%%time\n")
    cells = ("scaler = 3", f"%%writefile train.py\n{MADE}", "model = 1", f"%%writefile -a train.py\n{plain}")
    path = written(tmp_path, notebook(*cells, "%%writefile a.yaml\nx: 1"))
    [found] = check_file(path)
    assert (found.rule, found.cell, found.line) == ("scaler-out-of-order", 4, 6)
    assert "in line 4:5" in found.title
    book = read_notebook(path.read_text(encoding="utf-8"))
    assert book.left_out == (5,) and "written to train.py" in book.text and "GradScaler" not in book.text


@pytest.mark.parametrize("magic", ["%%time", "%%capture out", "%%timeit -n 10 y = 1", "\n%%timeit", "%%prun -l 5"])
def test_that_cells_under_a_magic_of_python_are_checked(tmp_path: Path, magic: str) -> None:
    cell = TRAINED.replace("%%time", magic)
    assert [each.cell for each in check_file(written(tmp_path, notebook(MADE, cell)))] == [2]


@pytest.mark.parametrize(
    "command",
    [
        "torch.nn??", "?x", "x?", "x.y?  # why", "!echo it's (", "!pip install a \\\n   b", "/print 1", ",foo a",
        ";foo a",
        "x = !ls", "x = %magic -a b", "a, b = !ls", "display(x);", "%matplotlib inline", "%time", "%time for for",
        "%timeit -n 10 -r3 f(x)", "x = %time f(x)", "y = (a\n % b)\n%pwd", "if a:\n    !ls\n    x?\n# why?",
    ],
)  # fmt: skip
def test_that_a_command_never_loses_the_rest_of_its_cell(tmp_path: Path, command: str) -> None:
    cell = f"{MADE}\n{command}\n" + TRAINED.removeprefix("%%time\n")
    path = written(tmp_path, notebook(cell))
    [found] = check_file(path)
    assert (found.rule, found.line) == ("scaler-out-of-order", 9 + command.count("\n"))
    assert read_notebook(path.read_text(encoding="utf-8")).left_out == ()


@pytest.mark.parametrize(
    ("command", "python"),
    [
        ("%time model.half()", "model.half()"), ("y = %time f(x)", "y = f(x)"), ("  %timeit -n 9 -r3 f(x)", "  f(x)"),
        ("t = %timeit -o f(x)", "f(x)"), ("%prun -s cumulative f(x)", "f(x)"), ("%time f(x, \\\n  y)", "f(x, \\\n  y)"),
    ],
)  # fmt: skip
def test_that_the_python_behind_a_timing_command_is_read(command: str, python: str) -> None:
    assert f"if a:\n  b\n{python}\n" in read_notebook(notebook(f"if a:\n  b\n{command}")).text


def test_that_a_folder_is_one_clear_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path)]) == 2
    assert f"{tmp_path} is a folder; name the training scripts in it." in " ".join(capsys.readouterr().err.split())
    assert main(["check", str(tmp_path / "none.py")]) == 2
    assert capsys.readouterr().err.count("choose a training script") == 1
