"""The measures of the window: spaces from one table, four sizes of text, one look of tabs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from pytestqt.qtbot import QtBot

import precgui.gui
from precgui.gui.colours import LIGHT
from precgui.gui.kit.measures import SPACES_PX, TEXT_SCALE, points
from precgui.gui.style_sheet import style_sheet

GUI = Path(precgui.gui.__file__).parent
SPACED = {"setContentsMargins", "setSpacing", "setHorizontalSpacing", "setVerticalSpacing"}


def spaces(tree: ast.AST) -> Iterator[tuple[int, int]]:
    """Line and pixels of each number in a margin or a spacing."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            named = [each.value for each in call.keywords if each.arg in ("spacing", "margins")]
            for argument in call.args if name in SPACED else named if name in ("row", "column") else ():
                for number in ast.walk(argument):
                    if isinstance(number, ast.Constant) and isinstance(number.value, int):
                        yield number.lineno, number.value


def test_that_every_space_is_in_the_table() -> None:
    sources = sorted(GUI.rglob("*.py"))
    others = [
        f"{path.relative_to(GUI)}:{line}: {pixels}"
        for path in sources
        for line, pixels in spaces(ast.parse(path.read_text(encoding="utf-8")))
        if pixels not in SPACES_PX
    ]
    assert len(sources) > 100 and not others


def test_that_text_has_four_sizes(qtbot: QtBot) -> None:
    sizes = set(re.findall(r"font-size: ([\d.]+)pt", style_sheet(LIGHT)))
    assert len(TEXT_SCALE) == 4
    assert sizes == {str(points("title")), str(points("answer"))}
    assert points("answer") > points("title") > points("text") > points("small")
