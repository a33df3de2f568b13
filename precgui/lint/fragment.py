"""Python in a text that is no whole script: indented lines, doctest prompts, prose or Markdown fences around it."""

from __future__ import annotations

import ast
import difflib
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, takewhile

_MOST_TRIES = 400  # lines that may turn out to be no code, one after the other
_FENCE = re.compile(r"\s*(`{3,}|~{3,})\s*(.*?)\s*$")
_PYTHON = {"", "py", "python", "python3", "pycon", "ipython", "ipython3", "pytorch"}
_PROMPT = re.compile(r"\s*(?:>>>|\.\.\.)(?: |$)")
_MAGIC = re.compile(r"\s*[%!]")
_MARKUP = re.compile(r"\s*(?:[-*+>|]\s|\d+[.)]\s|={3,}|-{3,}|\[\.\.\.\]|…)")
_WORDS = re.compile(r"\s*([A-Za-z][\w'’-]*)[,:;]?\s+([A-Za-z][\w'’-]*)")
_STATEMENTS = {
    "and", "as", "assert", "async", "await", "class", "def", "del", "elif", "else", "except", "exec", "finally", "for",
    "from", "global", "if", "import", "in", "is", "lambda", "match", "case", "nonlocal", "not", "or", "print", "raise",
    "return", "type", "while", "with", "yield",
}  # fmt: skip


@dataclass(frozen=True)
class Fragment:
    """A text, and its Python with the same number of lines: lines that are no code are empty in `code`.

    A finding of `check(text)` has the number of its line in both. To change the code and keep what stands around it:

        fragment = Fragment.of(text)
        changed = fragment.with_code(change(fragment.code))
    """

    text: str
    code: str

    @classmethod
    def of(cls, text: str) -> Fragment:
        """The Python of a text. Raises SyntaxError where there is none that can be parsed."""
        error = syntax_error(text)
        if error is None:
            return cls(text, text)
        for lines in (_without_indentation(lines_of(text)), _extracted(lines_of(text))):
            if syntax_error(code := "".join(lines)) is None and code.strip():
                return cls(text, code)
        raise error

    def with_code(self, changed: str) -> str:
        """The text with other code. Lines that stayed keep their prompts and indentation, new ones take those of the
        line that they replace, or of the code before them."""
        if self.text == self.code:
            return changed
        before, after, whole = lines_of(self.code), lines_of(changed), lines_of(self.text)
        result: list[str] = []
        done = 0
        for start, stop, first, last in _changes(before, after):
            result += whole[done:start]
            result += [line for line, code in zip(whole[start:stop], before[start:stop], strict=True)
                       if line.strip() and not code.strip()]  # fmt: skip
            prefix = _prefix(before, whole, start)
            result += [_prompted(prefix, line) if line.strip() else line for line in after[first:last]]
            done = stop
        return "".join(result + whole[done:])


def _changes(before: list[str], after: list[str]) -> Iterator[tuple[int, int, int, int]]:
    """The first line and the end of each part that differs, in both. Equal lines at both ends are taken off, because
    the search for the others takes time with the square of the number of lines that repeat, as empty ones do."""
    head = _count_equal(before, after)
    tail = _count_equal(before[head:][::-1], after[head:][::-1])
    own, other = before[head : len(before) - tail], after[head : len(after) - tail]
    for tag, start, stop, first, last in difflib.SequenceMatcher(None, own, other, autojunk=False).get_opcodes():
        if tag != "equal":
            yield head + start, head + stop, head + first, head + last


def _count_equal(before: list[str], after: list[str]) -> int:
    """The number of lines at the begin of both that are equal."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))


def _prefix(code: list[str], whole: list[str], place: int) -> str:
    """The text that was taken away before the code of a line, or of the nearest line with code before or after it."""
    here = range(place, min(place + 1, len(code)))
    for i in chain(here, range(place - 1, -1, -1), range(place, len(code))):
        if code[i].strip() and whole[i].endswith(code[i]):
            return whole[i][: len(whole[i]) - len(code[i])]
    return ""


def _prompted(prefix: str, line: str) -> str:
    """A line after a prefix. An indented line of a doctest continues a statement, whatever stood in its place."""
    return (prefix.replace(">>> ", "... ") if _depth(line) else prefix) + line


def lines_of(text: str) -> list[str]:
    """Lines with their ends, as Python counts them: a form feed ends none."""
    return [match[0] for match in re.finditer(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)]


def syntax_error(text: str) -> SyntaxError | None:
    """The error at which the parser stops, None for Python. Raises ValueError for a null character."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an escape that Python deprecates is not our subject
        try:
            ast.parse(text)
        except SyntaxError as error:
            return error
    return None


def _without_indentation(lines: list[str]) -> list[str]:
    """Lines of one block moved to the left. A first line that lost its own when it was copied stays; lines that are
    deeper than the block that follows them are the end of a block whose head is missing."""
    filled = [line for line in lines if line.strip()]
    if not filled:
        return lines
    first, *others = filled
    rest = min((_depth(line) for line in others), default=0)
    opens = first.rstrip().endswith((":", "(", "[", "{", ",", "\\"))
    if not _depth(first) and rest and not (opens and _depth(others[0]) == rest):
        return [line if line is first else line[rest:] if line.strip() else line.lstrip(" \t") for line in lines]
    result, least = [], _depth(filled[0])
    for line in lines:
        if line.strip():
            least = min(least, _depth(line))
        result.append(line[least:] if line.strip() else line.lstrip(" \t"))
    return result


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def _extracted(lines: list[str]) -> list[str]:
    """The code of fenced blocks of Python, or else of the lines that do not look like prose."""
    blocks = _fenced(lines)
    code = [_blank(line) for line in lines]
    for start, stop in blocks if blocks else [(0, len(lines))]:
        block = _without_prompts(lines[start:stop])
        for attempt in (block, _without_indentation(block), _without_prose(block)):
            if syntax_error("".join(attempt)) is None:
                code[start:stop] = attempt
                break
    return code


def _fenced(lines: list[str]) -> list[tuple[int, int]]:
    """The lines between the fences of each block of Python, and of one that is not closed."""
    blocks: list[tuple[int, int]] = []
    opened, mark, is_python = -1, "", False
    for i, line in enumerate(lines):
        match = _FENCE.match(line)
        if match is None:
            continue
        if opened < 0:
            words = match[2].strip("{}.").split()
            opened, mark, is_python = i + 1, match[1], (words[0].lower() if words else "") in _PYTHON
        elif match[1].startswith(mark) and not match[2]:
            blocks += [(opened, i)] if is_python else []
            opened = -1
    return blocks + ([(opened, len(lines))] if opened >= 0 and is_python else [])


def _without_prompts(lines: list[str]) -> list[str]:
    """The input of a doctest without its prompts, and without the output; other lines as they are."""
    if not any(line.lstrip().startswith(">>> ") for line in lines):
        return lines
    return [line[match.end() :] or "\n" if (match := _PROMPT.match(line)) else _blank(line) for line in lines]


def _without_prose(lines: list[str]) -> list[str]:
    """Lines without those that look like prose, markup or commands of a notebook; then without those of the same looks
    at which the parser stops."""
    kept = _without_indentation([_blank(line) if _is_prose(line) else line for line in lines])
    for _ in range(_MOST_TRIES):
        error = syntax_error("".join(kept))
        line = error.lineno if error is not None else None
        if error is None or line is None or not 0 < line <= len(kept):
            return kept
        if not (kept[line - 1].strip() and _is_doubtful(kept[line - 1])):
            return kept
        kept[line - 1] = _blank(kept[line - 1])
        kept = _without_indentation(kept)
    return kept


def _blank(line: str) -> str:
    return line[len(line.rstrip("\r\n")) :]


def _is_prose(line: str) -> bool:
    """Whether a line cannot be code: two words side by side of which neither begins a statement, a list, a command."""
    if not line.strip() or line.lstrip().startswith("#"):
        return False
    if _MAGIC.match(line) or _MARKUP.match(line):
        return True
    words = _WORDS.match(line)
    if words is None or line.lstrip()[:1] in "'\"":
        return False
    return words[1] not in _STATEMENTS and words[2] not in _STATEMENTS and syntax_error(line.strip()) is not None


def _is_doubtful(line: str) -> bool:
    """Whether a line at which the parser stops reads like a sentence, and not like a statement with a mistake."""
    words = line.split()
    plain = [word for word in words if re.fullmatch(r"[A-Za-z][A-Za-z'’-]*[,.:;?!)]*", word)]
    return len(words) == len(plain) or (len(plain) >= 3 and 2 * len(plain) > len(words))
