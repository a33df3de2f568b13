"""All rules on one script."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from precgui.errors import SentenceError
from precgui.events import Severity
from precgui.lint import (
    average_rules,
    checkpoint_rules,
    count_rules,
    dtype_rules,
    fp16_range_rules,
    half_gradients,
    integer_rules,
    kept_rules,
    library_rules,
    loop_rules,
    loss_rules,
    measure_rules,
    order_rules,
    overflow_rules,
    position_rules,
    pretrained_rules,
    ratio_rules,
    refused_rules,
    scaler_rules,
    slope_rules,
    trained_rules,
    trainer_rules,
    undefined_rules,
    weight_rules,
)
from precgui.lint.fragment import Fragment
from precgui.lint.notebook import SUFFIX, Notebook, NotebookError, read_notebook
from precgui.lint.source import Source
from precgui.safe_open import read_text
from precgui.sentences import L_, Sentence

_MOST_BYTES = 512 << 10  # a script of this length takes about 300 MB while it is checked
_MOST_NOTEBOOK_BYTES = 64 << 20  # with the pictures of its outputs, which are left out
_NO_PYTHON = L_("is no Python that can be parsed")


class ScriptError(SentenceError, ValueError):
    """The script cannot be read: one sentence with the cure."""


@dataclass(frozen=True)
class ScriptFinding:
    """One mistake. `line` counts from 1, in a notebook within its `cell`, the n-th one of code."""

    rule: str
    line: int
    severity: Severity
    title: str
    fix: str
    cell: int | None = None


LINT_RULES: dict[str, Callable[[Source], Iterator[tuple[int, Severity, str, str]]]] = {
    **scaler_rules.RULES,
    **order_rules.RULES,
    **loop_rules.RULES,
    **weight_rules.RULES,
    **kept_rules.RULES,
    **average_rules.RULES,
    **checkpoint_rules.RULES,
    **loss_rules.RULES,
    **dtype_rules.RULES,
    **measure_rules.RULES,
    **library_rules.RULES,
    **trainer_rules.RULES,
    **trained_rules.RULES,
    **pretrained_rules.RULES,
    **slope_rules.RULES,
    **undefined_rules.RULES,
    **overflow_rules.RULES,
    **fp16_range_rules.RULES,
    **ratio_rules.RULES,
    **integer_rules.RULES,
    **count_rules.RULES,
    **position_rules.RULES,
    **half_gradients.RULES,
    **refused_rules.RULES,
}


def check(text: str) -> list[ScriptFinding]:
    """The findings in the text of a script, in the order of its lines.

    The text may be a fragment: indented, with doctest prompts, with prose or Markdown fences around it. `line` of a
    finding counts the lines of the text as it was given. To change the code of a fragment and keep the rest, see
    `precgui.lint.fragment.Fragment`.

    Raises ScriptError for text that is no Python, and for text that is too large or too deeply nested to check."""
    if len(text) > _MOST_BYTES:
        raise ScriptError(_too_large(_MOST_BYTES))
    try:
        source = Source(Fragment.of(text).code)
        results = [ScriptFinding(name, *each) for name, rule in LINT_RULES.items() for each in rule(source)]
    except IndentationError as error:
        raise ScriptError(
            Sentence(
                "{no_python} (line {lineno}): it is not indented evenly, paste a whole file",
                no_python=_NO_PYTHON,
                lineno=error.lineno,
            )
        ) from None
    except SyntaxError as error:
        raise ScriptError(
            Sentence("{no_python} (line {line})", no_python=_NO_PYTHON, line=error.lineno)
            if error.lineno
            else _NO_PYTHON
        ) from None
    except ValueError:
        raise ScriptError(_NO_PYTHON) from None
    except (RecursionError, MemoryError):
        raise ScriptError(Sentence("{no_python}: it is nested too deeply", no_python=_NO_PYTHON)) from None
    return sorted(dict.fromkeys(results), key=lambda each: (each.line, each.rule))


def check_file(path: Path) -> list[ScriptFinding]:
    """As `check`, of a file, also of a notebook, whose findings have a cell. Raises ScriptError, a sentence that names
    the file."""
    notebook = notebook_at(path)
    texts = [_text(path, _MOST_BYTES)] if notebook is None else [notebook.text, *notebook.scripts]
    try:
        findings = [each for text in texts for each in check(text)]
    except ScriptError as error:
        raise ScriptError(Sentence("{path} {error}; choose a training script.", path=path, error=error)) from None
    if notebook is None:
        return findings
    return [_in_cell(notebook, each) for each in sorted(findings, key=lambda each: (each.line, each.rule))]


def _in_cell(notebook: Notebook, finding: ScriptFinding) -> ScriptFinding:
    cell, line = notebook.place(finding.line)
    title, fix = notebook.placed(finding.title), notebook.placed(finding.fix)
    return replace(finding, cell=cell, line=line, title=title, fix=fix)


def notebook_at(path: Path) -> Notebook | None:
    """The notebook of a file that ends in .ipynb, None for others. Raises ScriptError, which names the file."""
    if path.suffix.lower() != SUFFIX:
        return None
    try:
        return read_notebook(_text(path, _MOST_NOTEBOOK_BYTES))
    except NotebookError as error:
        raise ScriptError(Sentence("{path} {error}; choose a training script.", path=path, error=error)) from None


def read_script(path: Path) -> str:
    """The text of a script, of a notebook that of its code cells. Raises ScriptError, which names the file."""
    notebook = notebook_at(path)
    return _text(path, _MOST_BYTES) if notebook is None else notebook.text


def _too_large(most_bytes: int) -> Sentence:
    return Sentence("is too large to check (more than {most_bytes} KiB)", most_bytes=most_bytes >> 10)


def _text(path: Path, most_bytes: int) -> str:
    if path.is_dir():
        raise ScriptError(Sentence("{path} is a folder; name the training scripts in it.", path=path))
    try:
        return read_text(path, most_bytes).removeprefix("\ufeff")
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            too_large = Sentence("{path} {error}; choose a training script.", path=path, error=_too_large(most_bytes))
            raise ScriptError(too_large) from None
        reason = error.strerror if isinstance(error, OSError) else L_("it is no UTF-8 text")
        raise ScriptError(
            Sentence(
                "{path} cannot be read: {reason}; choose a training script.",
                path=path,
                reason=reason,
            )
        ) from None
