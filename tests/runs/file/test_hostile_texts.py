"""Titles, dates and messages from a file of somebody else: one line, bounded, with nothing that acts on a screen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

import precgui
from precgui.harmless_text import MOST_TITLE, harmless, one_line
from precgui.runs.file.user_notes import notes_path, read_notes
from precgui.runs.library import read_entry
from precgui.runs.metric import metric_of

TURNED = "\u202egnp.exe\u202c"
ESCAPES = "\x1b]0;owned\x07\x1b[2J"


def replace_attribute(path: Path, name: str, text: str) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs[name] = np.bytes_(text.encode())


def test_that_a_title_is_one_line_without_turned_writing(write: Callable[..., Path]) -> None:
    path = write()
    replace_attribute(path, "title", f"first{ESCAPES}\nsecond\t{TURNED}")
    with precgui.open_run(path) as run:
        assert run.title == "first\\x1b]0;owned\\x07\\x1b[2J second \\u202egnp.exe\\u202c"
    assert read_entry(path).title == run.title


def test_that_huge_texts_cost_no_more_than_a_line(write: Callable[..., Path]) -> None:
    path = write()
    replace_attribute(path, "title", "A" * 60_000)
    replace_attribute(path, "created", "B" * 60_000)
    with precgui.open_run(path) as run:
        assert len(run.title) == MOST_TITLE
        assert run.title.endswith("…")
        assert len(run.created) <= MOST_TITLE
    notes_path(path).write_text(json.dumps({"title": "word " * 100_000, "note": "n" * 400_000}))
    assert len(read_entry(path).title) <= MOST_TITLE
    assert len(read_entry(path).note) == 10_000


def test_that_notes_and_metrics_turn_no_writing(write: Callable[..., Path]) -> None:
    path = write()
    notes_path(path).write_text(json.dumps({"title": TURNED, "note": f"{TURNED}\nsecond line"}))
    notes = read_notes(path)
    assert notes.title == "\\u202egnp.exe\\u202c"
    assert notes.note == "\\u202egnp.exe\\u202c\nsecond line"
    metric = metric_of({"metric": {"name": "m", "title": TURNED, "about": ESCAPES, "unit": "\u2066x"}})
    assert (metric.title, metric.about, metric.unit) == (
        "\\u202egnp.exe\\u202c", "\\x1b]0;owned\\x07\\x1b[2J", "\\u2066x",
    )  # fmt: skip


def test_that_texts_of_many_languages_stay_as_they_are() -> None:
    for text in ("Präzision", "训练 精度", "שלום", "مرحبا", "a\u200db"):
        assert harmless(text) == text
        assert one_line(text) == text
    assert one_line("a" * 10_000_000, 20) == "a" * 19 + "…"
    assert one_line(" \n ") == ""
