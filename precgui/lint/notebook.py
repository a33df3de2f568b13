"""The code cells of a Jupyter notebook as one script, and the cell and line of each of its lines. Nothing is run."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from precgui.lint.fragment import Fragment
from precgui.lint.ipython import python_of_cell, written_file
from precgui.sentences import L_, Sentence

SUFFIX = ".ipynb"
_LINE = re.compile(r"\bline (\d+)")
_HEAD = "# %% cell {cell}"
_WRITES = _HEAD + ", written to {name}: open that file to check it"
_LEFT_OUT = _HEAD + ", left out: no Python that can be parsed"


class NotebookError(ValueError):
    """Why a file is no notebook of Python: the end of a sentence that names the file."""


@dataclass(frozen=True)
class Notebook:
    """A notebook as a script in the percent format: a comment before each code cell, then its lines.

    Code cells are counted from 1, Markdown and raw cells are not. `left_out` are those that hold no Python.
    `scripts` are the files that `%%writefile` cells write, each after empty lines: its lines have the
    numbers of those of `text`.
    """

    text: str
    starts: tuple[int, ...]  # the line of the comment before each cell, from 1
    left_out: tuple[int, ...]
    scripts: tuple[str, ...] = ()

    def place(self, line: int) -> tuple[int, int]:
        """The cell and the line in it, both from 1, of a line of `text`."""
        cell = max(bisect_right(self.starts, line), 1)
        return cell, max(line - self.starts[cell - 1], 1)

    def placed(self, sentence: str) -> str:
        """A sentence about `text` with the lines that it names as `cell:line`."""
        if not isinstance(sentence, Sentence):
            return _LINE.sub(lambda match: f"line {self._named(int(match[1]))}", sentence)
        values = {
            name: self._named(value) if name.startswith("line") and isinstance(value, int) else self.placed(value)
            if isinstance(value, Sentence) else value
            for name, value in sentence.values.items()
        }  # fmt: skip
        return sentence.with_values(**values)

    def _named(self, line: int) -> str:
        return "{}:{}".format(*self.place(line))


def read_notebook(content: str) -> Notebook:
    """The notebook in the text of an .ipynb file, format 3 or 4. Raises NotebookError."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise NotebookError(L_("is no notebook: it is not JSON")) from None
    language = _language(document)
    if language and not language.lower().startswith(("python", "ipython")):
        raise NotebookError(Sentence("is a notebook of {language}, not of Python", language=language[:40]))
    lines: list[str] = []
    starts, left_out, scripts = [], [], _Scripts()
    has_python = False
    for number, source in enumerate(_code_cells(document), start=1):
        code, written = _python(source), written_file(source)
        starts.append(len(lines) + 1)
        if code is None:
            lines.append(_LEFT_OUT.format(cell=number))
            left_out.append(number)
            continue
        has_python = has_python or bool(code.strip())
        if written is None:
            lines += [_HEAD.format(cell=number), *code.split("\n")]
        else:
            scripts.add(*written, code, after=len(lines) + 1)
            lines.append(_WRITES.format(cell=number, name=written[0]))
            lines += [""] * (code.count("\n") + 1)
    if not starts:
        raise NotebookError(L_("is no notebook with cells of code"))
    if left_out and not has_python:
        raise NotebookError(
            Sentence(
                "holds no Python that can be parsed in any of its cells (the first is cell {left_out})",
                left_out=left_out[0],
            )
        )
    return Notebook("\n".join(lines) + "\n", tuple(starts), tuple(left_out), tuple(scripts.texts))


class _Scripts:
    """The files that cells write; a cell that appends continues the last one of its name."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._last: dict[str, int] = {}

    def add(self, name: str, is_appended: bool, code: str, *, after: int) -> None:
        """Add the code of a cell that stands after so many lines of the notebook's text."""
        if is_appended and name in self._last:
            before = self.texts[self._last[name]]
            self.texts[self._last[name]] = before + "\n" * (after - before.count("\n")) + code + "\n"
        else:
            self._last[name] = len(self.texts)
            self.texts.append("\n" * after + code + "\n")


def _language(document: Any) -> str:
    """The language that the metadata name, '' for none."""
    metadata = document.get("metadata") if isinstance(document, dict) else None
    for part, key in (("language_info", "name"), ("kernelspec", "language")):
        named = metadata.get(part) if isinstance(metadata, dict) else None
        if isinstance(named, dict) and isinstance(named.get(key), str):
            return str(named[key])
    return ""


def _code_cells(document: Any) -> list[str]:
    """The texts of the code cells, also of each worksheet of format 3."""
    if not isinstance(document, dict):
        raise NotebookError(L_("is no notebook: it has no cells"))
    sheets = document.get("worksheets")
    parts = [document, *(sheets if isinstance(sheets, list) else [])]
    groups = [part["cells"] for part in parts if isinstance(part, dict) and isinstance(part.get("cells"), list)]
    if not groups:
        raise NotebookError(L_("is no notebook: it has no cells"))
    cells = [cell for group in groups for cell in group if isinstance(cell, dict) and cell.get("cell_type") == "code"]
    return [_joined(cell.get("source", cell.get("input", ""))) for cell in cells]


def _joined(source: Any) -> str:
    parts = source if isinstance(source, list) else [source]
    return "".join(part for part in parts if isinstance(part, str)).replace("\r\n", "\n").replace("\r", "\n")


def _python(source: str) -> str | None:
    """The Python of a cell with as many lines, commands of IPython as `pass`; None where it is another language."""
    try:
        code = python_of_cell(source)
        return code if code is None or not code.strip() else Fragment.of(code).code
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
