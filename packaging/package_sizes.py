"""Write the files and lines of each package of precgui into the last column of the table in docs/architecture.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = "## Size of the packages"
ALL = "all, with the rest"
_ROW = re.compile(r"^\| ([\w, ]+?) \|(.*\|) [\d ]*(?:, [\d ]+)? \|$", re.MULTILINE)


def size_of(package: Path) -> tuple[int, int]:
    """The number of Python files below a folder, and of their lines."""
    files = sorted(package.rglob("*.py"))
    return len(files), sum(path.read_bytes().count(b"\n") for path in files)


def with_sizes(text: str, source: Path) -> str:
    """The document with the sizes of the packages in `source`; a row may name several packages, or all of it.

    Raises ValueError for a document without the table, or for a row that names no package.
    """
    before, heading, rest = text.partition(TABLE)
    if not heading:
        raise ValueError(f"docs/architecture.md has no section {TABLE!r}; restore it")
    table, gap, after = rest.partition("\n\n| step ")
    return before + heading + _ROW.sub(lambda row: _row(row, source), table) + gap + after


def _row(row: re.Match[str], source: Path) -> str:
    named = row[1]
    folders = [source] if named == ALL else [source / name for name in named.split(", ")]
    missing = [folder.name for folder in folders if not folder.is_dir()]
    if missing:
        raise ValueError(f"precgui has no package {', '.join(missing)}; mend the table in docs/architecture.md")
    sizes = [size_of(folder) for folder in folders]
    files, lines = (sum(column) for column in zip(*sizes, strict=True))
    return f"| {named} |{row[2]} {files}, {lines:,} |".replace(f"{lines:,}", f"{lines:,}".replace(",", " "))


def main() -> int:
    document = ROOT / "docs" / "architecture.md"
    try:
        document.write_text(with_sizes(document.read_text(encoding="utf-8"), ROOT / "precgui"), encoding="utf-8")
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
