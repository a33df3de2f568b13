"""Pictures and tables of the documents: none is missing, none is left over, and a command renews the table of sizes."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


def load_script(name: str) -> ModuleType:
    """A script of the folder `packaging`, which shares its name with a library."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "packaging" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for their module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pictures() -> ModuleType:
    return load_script("pictures")


@pytest.fixture
def sizes() -> ModuleType:
    return load_script("package_sizes")


def test_that_the_documents_show_every_picture_and_no_other(pictures: ModuleType) -> None:
    kept = {path.name for path in (ROOT / "docs" / "images").glob("*.png")}
    assert pictures.shown_pictures() == kept == {f"{name}.png" for name in pictures.PICTURES}


def test_that_every_finding_has_a_row_and_every_picture_of_a_change_is_shown() -> None:
    docs = ROOT / "docs"
    table = (docs / "findings.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| F")]
    assert [row[1].split()[0] for row in rows] == [f"F{number}" for number in range(5, 26)]
    assert all(len(row) == 5 and row[2].strip() and row[3].strip() for row in rows)
    shown = {
        name for path in docs.glob("*.md") for name in re.findall(r"images/changes/([\w.-]+)", path.read_text("utf-8"))
    }
    kept = {path.name: path.stat().st_size for path in (docs / "images" / "changes").glob("*.png")}
    assert shown == kept.keys()
    assert sum(size for name, size in kept.items() if name.startswith("F")) < 1_500_000


def test_that_the_tests_and_benchmarks_that_prove_a_finding_exist() -> None:
    table = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    named = {*re.findall(r"\b(?:tests|benchmarks|packaging)/[\w/.-]*\w", table)}
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_that_pictures_older_than_their_sources_are_named_with_the_command_that_renews_them(
    pictures: ModuleType, tmp_path: Path
) -> None:
    names = ["formats-bits-dark", "setup-light", "time-dark"]
    pictures.keep_hashes(names, tmp_path)
    stale = pictures.stale_pictures(tmp_path)
    assert not set(names) & set(stale) and "formats-line-dark" in stale
    kept = pictures.kept_hashes(tmp_path)
    (tmp_path / pictures.HASHES).write_text(json.dumps({**kept, "setup-light": "older", "time-dark": "older"}))
    older = [name for name in pictures.stale_pictures(tmp_path) if name in names]
    by_hand, command = pictures.report(older)
    assert by_hand.startswith("time-dark.png is older than its sources") and "precgui profile" in by_hand
    assert command.endswith("screenshots.py docs/images --only setup-light")


def test_that_every_picture_names_sources_that_are_there(pictures: ModuleType) -> None:
    gui = ROOT / "precgui" / "gui"
    for name, picture in pictures.PICTURES.items():
        assert picture.rooms and all((gui / room).exists() for room in (*picture.rooms, *pictures.LOOK)), name
        assert (picture.state == "measured") == bool(picture.how), name


def test_that_the_table_of_sizes_counts_files_and_lines(sizes: ModuleType, tmp_path: Path) -> None:
    for name, lines in (("engine/train.py", 1200), ("engine/deep/loop.py", 3), ("cli/run.py", 5)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n" * lines, encoding="utf-8")
    rows = (
        "| engine | 1, 2 | 3, 4 | 5, 6 |",
        "| engine, cli |  |  | 9, 1 000 |",
        "| all, with the rest | 1, 2 | 3, 4 |  |",
    )
    text = "\n".join(("# x", "", sizes.TABLE, "", *rows, "", "| step | lines before |", "| a | 3 |", ""))
    changed = sizes.with_sizes(text, tmp_path).splitlines()
    assert changed[4:7] == [
        "| engine | 1, 2 | 3, 4 | 2, 1 203 |",
        "| engine, cli |  |  | 3, 1 208 |",
        "| all, with the rest | 1, 2 | 3, 4 | 3, 1 208 |",
    ]
    assert changed[7:] == text.splitlines()[7:]
    with pytest.raises(ValueError, match="no package engine"):
        sizes.with_sizes(text.replace("engine, cli", "cli"), tmp_path / "engine")


def test_that_the_table_of_the_documents_names_only_packages_that_exist(sizes: ModuleType) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert sizes.with_sizes(text, ROOT / "precgui").count("\n") == text.count("\n")
