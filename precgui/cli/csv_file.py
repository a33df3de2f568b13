"""A table that a command writes to a new file of comma-separated values."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from precgui.cli.parser import UserError
from precgui.words import _


def write_new_csv(path: Path, titles: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Raises UserError where the file exists or cannot be written."""
    from precgui.runs.csv_cells import write_table

    try:
        with path.open("x", newline="", encoding="utf-8") as file:
            write_table(file, titles, rows)
    except FileExistsError:
        raise UserError(_("{path} already exists; choose another name or delete it first").format(path=path)) from None
    except OSError as error:
        raise UserError(
            _("{path} cannot be written: {strerror}; choose another place").format(path=path, strerror=error.strerror)
        ) from None
    except csv.Error as error:
        raise UserError(_("{path} cannot be written: {error}").format(path=path, error=error)) from None
