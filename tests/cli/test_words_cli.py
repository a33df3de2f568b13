"""The command line in Chinese: people read another language, programs read the same bytes."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len

from precgui import words
from precgui.cli.main import COMMANDS, main
from precgui.paths import examples_dir
from tests import needs

pytestmark = needs.babel
RUN, STUDY = str(examples_dir() / "scale-collapse.h5"), str(examples_dir() / "digits-study")
LOOP = "import torch\nscaler = torch.amp.GradScaler()\nwith torch.autocast('cuda', dtype=torch.bfloat16):\n    pass\n"
FOR_PROGRAMS = (
    ["formats", "--json"],
    ["encode", "1e9", "--json"],
    ["encode", "-0.0", "--format", "e8m0", "--json"],
    ["decode", "0x7c00", "--json"],
    ["arithmetic", "sum", "repeat(0.1, 50)", "--format", "fp16,bf16", "--json"],
    ["quantise", "0.1,0.5,1/3,9", "--format", "int8,nvfp4,nf4,ternary", "--json"],
    ["cards", "4096", "--json"],
    ["claims", "--json"],
    ["examples", "--json"],
    ["check", "loop.py", "--json"],
    ["diagnose", RUN, "--json"],
    ["whatif", RUN, "--format", "bf16,e4m3fn", "--json"],
    ["compare", RUN, "--csv", "runs.csv"],
    ["compare", RUN, "--json"],
    ["compare", STUDY, "--json"],
    ["sweep", STUDY, "--plan", "--json"],
    ["fp16-or-bf16", STUDY, "--json"],
    ["checklist", RUN, "--json"],
    ["whatif", RUN, "--csv", "runs.csv"],
    ["whatif", "--scaler", "initial=65536", "--json"],
    ["plan", "--network", "own", "--device", "8GB", "--link", "10Gb/s", "--json"],
    ["run", "--keys", "--json"],
    ["bench", "--list", "--json"],
    ["places", "list", "--json"],
    ["compare", "--targets-template"],
)
WRONG = (
    ["encode", "1/0"], ["formats", "--jsn"], ["encode"], ["quantise", "1", "--format", "int9"], ["fromats"],
    ["compare"], ["sweep", "digits-quick"], ["plan", "--network", "own", "--width", "7"],
    ["twin", "digits-quick", "--branches", "1"],
    ["whatif", RUN, "--scale", "3"], ["bench", "--sizes", "1"], ["run", "digits-quick", "--resume", "-o", "a.h5"],
    ["assign", "digits-quick", "--formats", "fp16", "--budget", "x"],
    ["places", "test", "nowhere"], ["run", "digits-quick", "--place", ""],
)  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Path("loop.py").write_text(LOOP, encoding="utf-8")
    yield
    words.use("en")


def typed(line: list[str], language: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command line in a language."""
    words.use(language)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(line)
        except SystemExit as end:  # --help
            code = int(end.code or 0)
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize("line", FOR_PROGRAMS, ids=" ".join)
def test_that_programs_read_the_same_in_every_language(line: list[str]) -> None:
    english = typed(line, "en")
    files = {path: path.read_bytes() for path in Path().iterdir()}
    for language in ("zh_CN", "pseudo"):
        Path("runs.csv").unlink(missing_ok=True)
        assert typed(line, language)[:2] == english[:2]
        assert {path: path.read_bytes() for path in Path().iterdir()} == files
    assert english[0] in (0, 1), english[2]
    assert english[1] or len(files) == 2


@pytest.mark.parametrize("line", WRONG, ids=" ".join)
def test_that_a_mistake_is_one_sentence_with_the_same_exit_code(line: list[str]) -> None:
    code, out, err = typed(line, "zh_CN")
    assert (code, out) == (2, "")
    assert err.startswith("precgui: ")
    assert err.count("\n") == 1
    assert any("\u4e00" <= letter <= "\u9fff" for letter in err)
    assert typed(line, "en")[0] == 2


def test_that_help_is_chinese_and_names_the_same_commands_and_options() -> None:
    for line in (["--help"], *([command, "--help"] for command in COMMANDS)):
        english, chinese = typed(line, "en")[1], typed(line, "zh_CN")[1]
        assert chinese.startswith("用法：")
        assert "显示此帮助并退出" in chinese
        wanted = COMMANDS if line == ["--help"] else [word for word in english.split() if word.startswith("--")]
        assert [word for word in wanted if word.strip(",.;:)") not in chinese] == []


def test_that_columns_of_chinese_tables_line_up() -> None:
    lines = typed(["encode", "0.1", "--format", "fp16,bf16,e4m3fn"], "zh_CN")[1].splitlines()
    head = next(line for line in lines if "格式" in line and "位" in line)
    below = [line for line in lines if "0x" in line]
    assert len(below) == 3
    place = cell_len(head[: head.index("位", head.index("格式") + 2)])
    assert {cell_len(line[: line.index("0x")]) for line in below} == {place}


@pytest.mark.parametrize("line", [["compare", RUN, RUN], ["sweep", STUDY, "--plan"], ["plan", "--network", "own"]])
def test_that_columns_of_other_commands_line_up(line: list[str]) -> None:
    """The last column begins, or ends, at the same cell in every row of a table."""
    rows = [row for row in typed(line, "zh_CN")[1].splitlines() if "│" in row or " " * 3 in row]
    chinese = [row for row in rows if any("\u4e00" <= letter <= "\u9fff" for letter in row)]
    assert chinese
    assert len({cell_len(row) for row in rows if "│" in row}) <= 1
