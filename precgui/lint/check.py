"""All rules on one script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from precgui.events import Severity
from precgui.lint import dtype_rules, scaler_rules
from precgui.lint.source import Source
from precgui.regular_files import read_text

_MOST_BYTES = 4 << 20


class ScriptError(ValueError):
    """The script cannot be read: one sentence with the cure."""


@dataclass(frozen=True)
class ScriptFinding:
    """One mistake. `line` counts from 1."""

    rule: str
    line: int
    severity: Severity
    title: str
    fix: str


LINT_RULES: dict[str, Callable[[Source], Iterator[tuple[int, Severity, str, str]]]] = {
    **scaler_rules.RULES,
    **dtype_rules.RULES,
}


def check(text: str) -> list[ScriptFinding]:
    """The findings in the text of a script, in the order of its lines. Raises ScriptError for what is no Python."""
    try:
        source = Source(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        text = f"is no Python that can be parsed (line {line})" if line else "is no Python that can be parsed"
        raise ScriptError(text) from None
    results = [ScriptFinding(name, *each) for name, rule in LINT_RULES.items() for each in rule(source)]
    return sorted(dict.fromkeys(results), key=lambda each: (each.line, each.rule))


def check_file(path: Path) -> list[ScriptFinding]:
    """As `check`, of a file. Raises ScriptError, a sentence that names the file."""
    try:
        text = read_text(path, _MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ScriptError(f"{path} cannot be read: {reason}; choose a training script.") from None
    try:
        return check(text.removeprefix("\ufeff"))
    except ScriptError as error:
        raise ScriptError(f"{path} {error}; choose a training script.") from None
