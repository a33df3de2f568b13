"""The console of the command line: nothing of a cell that may wrap is lost."""

from __future__ import annotations

import io

from rich.cells import cell_len
from rich.table import Table

from precgui.cli.console import HarmlessConsole


def test_that_a_chinese_cell_is_folded_and_not_cut() -> None:
    text, out = "无法测量：此处的运算是模拟的，速度不能说明该格式的快慢", io.StringIO()
    table = Table("精度", "加速比")
    table.add_row("fp16-amp", text)
    HarmlessConsole(file=out, width=30).print(table)
    lines = out.getvalue().splitlines()
    assert all(cell_len(line) <= 30 for line in lines)
    cells = "".join(line.split("│")[2].strip() for line in lines if line.startswith("│"))
    assert cells == text


def test_that_a_column_that_must_not_wrap_is_still_cut() -> None:
    out, table = io.StringIO(), Table()
    table.add_column("path", no_wrap=True)
    table.add_row("/a/path/that/is/far/longer/than/the/console")
    HarmlessConsole(file=out, width=20).print(table)
    assert "…" in out.getvalue()
