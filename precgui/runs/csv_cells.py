"""CSV that a spreadsheet takes for data: no text of a run is a formula of it."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from precgui.sanitize import sanitize

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_table(file: TextIO, header: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a header and rows. A text that a spreadsheet would compute gets an apostrophe before it; numbers stay."""
    csv.writer(file).writerow([cell(name) for name in header])
    write_rows(file, rows)


def write_rows(file: TextIO, rows: Iterable[Iterable[Any]]) -> None:
    """Write more rows, as `write_table` does."""
    csv.writer(file).writerows([cell(value) for value in row] for row in rows)


def cell(value: Any) -> Any:
    """The value of a cell, harmless in a terminal, in Excel and in LibreOffice (OWASP, "CSV injection")."""
    if not isinstance(value, str):
        return value
    text = sanitize(value)
    return f"'{text}" if value.startswith(_FORMULA) and not _is_number(value) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.strip() == text
