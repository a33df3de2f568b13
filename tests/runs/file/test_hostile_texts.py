"""Titles, dates and messages from a file of somebody else: one line, bounded, with nothing that acts on a screen."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import precgui
from precgui.runs.file.user_notes import notes_path, read_notes
from precgui.runs.library import read_entry
from precgui.runs.metric import metric_of
from precgui.runs.page import page
from precgui.runs.report.ungrouped import ungrouped_report
from precgui.runs.report.writing import write_report
from precgui.sanitize import MOST_TITLE, one_line, sanitize

ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]")
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


def test_that_machine_and_environment_act_on_no_screen(write: Callable[..., Path]) -> None:
    path = write()
    with h5py.File(path, "r+") as file:
        for name in ("machine", "environment"):
            del file[name]
            document = {TURNED: [ESCAPES, {"name": TURNED}], "system": ESCAPES, "count": 3}
            file[name] = np.bytes_(json.dumps(document).encode())
    with precgui.open_run(path) as run:
        for document in (run.machine, run.environment):
            assert document["\\u202egnp.exe\\u202c"] == [sanitize(ESCAPES), {"name": sanitize(TURNED)}]
            assert (document["system"], document["count"]) == (sanitize(ESCAPES), 3)


@pytest.mark.skipif(os.name == "nt", reason="names are text there")
def test_that_pages_hold_nothing_that_acts_whatever_the_name_of_the_file(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    """A name that is no UTF-8 is half of a surrogate pair, which no page can hold."""
    paths = [write(tmp_path / os.fsdecode(name)) for name in (b"a\xff\x1b[2J.h5", "b\u202e.h5".encode())]
    for path in paths:
        replace_attribute(path, "title", f"{ESCAPES}{TURNED}")
        with precgui.open_run(path) as run:
            assert not ACTING.search(page(run))
    content = ungrouped_report(paths)
    for kind in ("html", "markdown", "csv"):
        write_report(content, kind, tmp_path / kind)
        text = (tmp_path / kind).read_text(encoding="utf-8")
        assert not ACTING.search(text)
        assert "\\r\n" not in text  # ends of lines stay what they are


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
        assert sanitize(text) == text
        assert one_line(text) == text
    assert one_line("a" * 10_000_000, 20) == "a" * 19 + "…"
    assert one_line(" \n ") == ""
