"""Pictures and tables of the documents: none is missing, none is left over, and a command renews the table of sizes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


def load_script(name: str) -> ModuleType:
    """A script of the folder `packaging`, which shares its name with a library."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "packaging" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sizes() -> ModuleType:
    return load_script("package_sizes")


def test_that_the_documents_show_every_picture_and_no_other() -> None:
    kept = {path.name for path in (ROOT / "docs" / "images").iterdir() if path.is_file()}
    assert load_script("screenshots").shown_pictures() == kept


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
