"""A table that a command writes to a new file of comma-separated values."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from precgui.cli.parser import UserError


def write_new_csv(path: Path, titles: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Raises UserError where the file exists or cannot be written."""
    from precgui.runs.csv_cells import write_table

    try:
        with path.open("x", newline="", encoding="utf-8") as file:
            write_table(file, titles, rows)
    except FileExistsError:
        raise UserError(f"{path} already exists; choose another name or delete it first") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; choose another place") from None
    except csv.Error as error:
        raise UserError(f"{path} cannot be written: {error}") from None
