"""Writes the report of a study into a new file: HTML, Markdown or CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from precgui.harmless_text import harmless
from precgui.runs.errors import RunFileError
from precgui.runs.report.content import ReportContent
from precgui.runs.report.csv_table import csv_table
from precgui.runs.report.html import html_report
from precgui.runs.report.markdown import markdown_report

ReportKind = Literal["html", "markdown", "csv"]


def write_report(content: ReportContent, kind: ReportKind, path: Path) -> None:
    """Raises RunFileError for a file that exists already and for a place that cannot be written."""
    text = csv_table(content.study) if kind == "csv" else _page(content, kind)
    try:
        with path.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
    except FileExistsError:
        raise RunFileError(f"{path} already exists; choose another name or delete it first.") from None
    except OSError as error:
        raise RunFileError(f"{path} cannot be written: {error.strerror}; choose another place.") from None


def _page(content: ReportContent, kind: ReportKind) -> str:
    """The page, in which no text of a file acts on the terminal that shows it, or turns the direction of writing."""
    return harmless(html_report(content) if kind == "html" else markdown_report(content))
