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
