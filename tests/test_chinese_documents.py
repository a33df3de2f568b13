"""The documents in Chinese have the sections, commands and links of the English ones, and their commands work."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from precgui import words
from precgui.cli.main import COMMANDS, main
from precgui.cli.parser import Parser

ROOT = Path(__file__).parent.parent
CHINESE = ".zh-CN.md"
DOCUMENTS = sorted((ROOT / "docs").glob(f"*{CHINESE}"))
FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def english_again() -> Iterator[None]:
    yield
    words.use("en")


def english_of(path: Path) -> Path:
    return path.with_name(path.name.replace(CHINESE, ".md"))


def headings(text: str) -> list[str]:
    return re.findall(r"^(#+) ", FENCE.sub("", text), re.MULTILINE)


def commands(text: str) -> list[str]:
    """The lines of the fenced blocks that call precgui, without their comments."""
    lines = [line.partition("  #")[0].strip() for block in FENCE.findall(text) for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if re.match(r"(\$ )?precgui\b", line)]


def links(text: str) -> list[str]:
    """Targets of links and pictures; a document or picture counts as its English form."""
    return [link.replace(".zh-CN.", ".") for link in re.findall(r"\]\(([^)]+)\)", text)]


def codes(text: str) -> set[str]:
    """The inline code of a document."""
    return set(re.findall(r"`[^`\n]+`", FENCE.sub("", text)))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_that_a_chinese_document_has_the_sections_commands_links_and_code_of_the_english(path: Path) -> None:
    english, chinese = english_of(path).read_text(encoding="utf-8"), path.read_text(encoding="utf-8")
    assert headings(chinese) == headings(english)
    assert commands(chinese) == commands(english)
    assert links(chinese) == links(english)
    assert f"]({path.name})" in english and f"]({english_of(path).name})" in chinese
    assert codes(chinese) == codes(english)
    assert english.count("\n|") == chinese.count("\n|")  # rows of tables


def test_that_the_chinese_readme_has_all_of_the_english_and_names_every_document_in_chinese() -> None:
    english, chinese = ((ROOT / f"README{end}").read_text(encoding="utf-8") for end in (".md", CHINESE))
    assert headings(chinese) == headings(english)
    assert commands(chinese) == commands(english)
    assert set(links(english)) - set(links(chinese)) == set()
    assert codes(english) - codes(chinese) == set()
    assert [path.name for path in DOCUMENTS if f"](docs/{path.name})" not in chinese] == []


def whole(line: str) -> bool:
    """Whether a command can be typed as it stands."""
    return not re.search(r"[\[|]|\.\.\.", line)


TYPED = {
    (path, line)
    for path in (ROOT / "docs/formats.md", ROOT / "docs/formats.zh-CN.md")
    for line in commands(path.read_text(encoding="utf-8"))
    if whole(line)
}


@pytest.mark.parametrize(("path", "line"), sorted(TYPED), ids=str)
def test_that_a_command_of_the_documents_works_in_its_language(path: Path, line: str) -> None:
    words.use("zh_CN" if path.name.endswith(CHINESE) else "en")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(shlex.split(line)[1:]) == 0
    assert out.getvalue().strip()


def whole_commands(path: Path) -> set[str]:
    """The commands of a document, of its sentences those with an operand, with a number for N and without `> FILE`."""
    text = path.read_text(encoding="utf-8")
    lines = [*commands(text), *re.findall(r"`(precgui [\w-]+ [^-`\n][^`\n]*)`", FENCE.sub("", text))]
    return {re.sub(r"\bN\b", "1", line.partition(" > ")[0]) for line in lines if whole(line)}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_that_the_program_understands_every_command_of_a_chinese_document(path: Path) -> None:
    words.use("zh_CN")
    for _, command, *arguments in map(shlex.split, sorted(whole_commands(path))):
        parser = Parser(prog="precgui")
        importlib.import_module(COMMANDS[command]).add_parsers(parser.add_subparsers(required=True))
        assert parser.parse_args([command, *arguments]).run is not None
