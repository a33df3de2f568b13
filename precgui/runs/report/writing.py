"""Writes the report of a study into a new file: HTML, Markdown or CSV."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from precgui.harmless_text import harmless
from precgui.runs.errors import RunFileError
from precgui.runs.report.content import ReportContent
from precgui.runs.report.csv_table import csv_table
from precgui.runs.report.html import html_report
from precgui.runs.report.markdown import markdown_report

ReportKind = Literal["html", "markdown", "csv"]

_REPORTS: dict[ReportKind, Callable[[ReportContent], str]] = {
    "html": html_report, "markdown": markdown_report, "csv": lambda content: csv_table(content.study),
}  # fmt: skip


def write_report(content: ReportContent, kind: ReportKind, path: Path) -> None:
    """Raises RunFileError for a file that exists already and for a place that cannot be written."""
    text = harmless(_REPORTS[kind](content))  # acts on no terminal that shows it, and turns no writing
    try:
        with path.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
    except FileExistsError:
        raise RunFileError(f"{path} already exists; choose another name or delete it first.") from None
    except OSError as error:
        raise RunFileError(f"{path} cannot be written: {error.strerror}; choose another place.") from None
