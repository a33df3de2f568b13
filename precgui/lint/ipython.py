"""Commands of IPython in a cell of a notebook as Python with the same lines. Nothing is run."""

from __future__ import annotations

import re

from precgui.lint.fragment import syntax_error

_MOST_COMMANDS = 200  # that are found one after the other, at the line where the parser stops
_CELL_MAGIC = re.compile(r"\s*%%(\w+)")
_PYTHON_MAGICS = {"time", "timeit", "capture", "prun", "memit"}  # whose cells are Python all the same
_WRITES = re.compile(
    r"\s*%%(?:writefile|file)[ \t]+(-a[ \t]+|--append[ \t]+)?[\"']?([^\n\"']+?\.py)[\"']?[ \t]*(?:\n|$)"
)
_INDENT = re.compile(r"[ \t]*")
_COMMAND = re.compile(
    r"[ \t]*(?:"
    r"(?:[^\W\d][\w., \[\]]*=\s*)?[%!]"  # %magic, !command, and what they are assigned to
    r"|\?"
    r"|[^#'\"\n]*[\w*\])]\?{1,2}[ \t]*(?:[;#].*)?$"  # help behind a name
    r"|[/,;][^\W\d]"  # calls without brackets
    r")"
)
_TIMED = re.compile(
    r"[ \t]*(?P<target>[^\W\d][\w., \[\]]*=\s*)?%{1,2}(?P<name>time|timeit|prun|memit)[ \t]+"
    r"(?:-[nrplsTDi][ \t]*\S+[ \t]+|--?[A-Za-z][\w-]*[ \t]+)*(?P<code>.+)",
    re.DOTALL,
)


def written_file(source: str) -> tuple[str, bool] | None:
    """The Python file to which a cell is written and whether it is appended; None for a cell that is run."""
    match = _WRITES.match(source)
    return None if match is None else (match[2], match[1] is not None)


def python_of_cell(source: str) -> str | None:
    """The text of a cell with its commands as `pass` and the Python that `%time` and the like run; None where the
    first line says that it is another language. The result may be no Python. Raises ValueError for a null character."""
    if written_file(source) is not None:
        blank, body = _after_first_line(source)
        return blank + body
    magic = _CELL_MAGIC.match(source)
    if magic is not None and magic[1] not in _PYTHON_MAGICS:
        return None
    lines = source.split("\n")
    for _ in range(_MOST_COMMANDS):
        error = syntax_error("\n".join(lines))
        if error is None:
            return "\n".join(lines)
        place = (error.lineno or 0) - 1
        if not (0 <= place < len(lines) and _COMMAND.match(lines[place])):
            break
        _replace(lines, place)
    for place in range(len(lines)):
        if _COMMAND.match(lines[place]):
            _replace(lines, place)
    return "\n".join(lines)


def _after_first_line(source: str) -> tuple[str, str]:
    """The ends of the lines up to that of a cell's magic, and the text after it."""
    head = len(source) - len(source.lstrip())
    _, end, body = source[head:].partition("\n")
    return "\n" * source[:head].count("\n") + end, body


def _replace(lines: list[str], place: int) -> None:
    """Replace a command, with the lines in which a backslash continues it."""
    stop = place + 1
    while stop < len(lines) and lines[stop - 1].endswith("\\"):
        stop += 1
    lines[place:stop] = _statement("\n".join(lines[place:stop])).split("\n")


def _statement(command: str) -> str:
    """A command as Python with as many lines."""
    indent = _INDENT.match(command)[0]  # type: ignore[index]
    if timed := _TIMED.match(command):
        target = timed["target"] if timed["target"] and timed["name"] == "time" else ""
        code = f"{target}{timed['code']}"
        if syntax_error(code) is None:
            return indent + code
    return indent + "pass" + "\n" * command.count("\n")
