"""Scripts of runs have no import of precgui, and their plain forms of rounding answer as the fast ones."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from precgui import config
from precgui.cli.main import main
from precgui.engine.quantize import torch_form
from precgui.engine.quantize.blocks import quantize_blocks
from precgui.engine.quantize.elements import quantize
from precgui.formats.rounding import ROUNDINGS
from precgui.job import Job


def test_that_the_command_line_writes_a_script_from_a_run_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = config.load("digits-quick", ["device=cpu", "train.max_steps=1", "precision=mxfp4", "title=mine"])
    Job(wanted, tmp_path / "a.h5").run()
    assert main(["export", str(tmp_path / "a.h5"), "--script", str(tmp_path / "a.py")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "a.py"), str(tmp_path / "a_parts")]
    assert (tmp_path / "a.py").read_text().startswith('"""mine: a run of precgui')
    for path in [tmp_path / "a.py", *(tmp_path / "a_parts").rglob("*.py")]:
        text = path.read_text()
        top = [node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert not any("precgui" in ast.unparse(node) for node in top), path
        compile(text, path, "exec")
    assert main(["export", str(tmp_path / "a.h5"), "--script", str(tmp_path / "a.py")]) == 2
    assert "already exists" in capsys.readouterr().err


def _samples() -> Tensor:
    torch.manual_seed(0)
    wide = torch.randn(4000) * 2.0 ** torch.randint(-40, 40, (4000,))
    return torch.cat(
        [wide, torch.randn(4000), torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 464.0, 465.0])]
    )


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("name", ["tf32", "bf16", "fp16", "e4m3fn", "e5m2", "e2m1", "e3m2", "int8"])
def test_that_plain_rounding_gives_the_answers_of_the_fast_one(name: str, saturate: bool) -> None:
    values = _samples()
    if name in ("int8", "e2m1", "e3m2"):
        values = values[~values.isnan()]  # these formats have none
    for rounding in ROUNDINGS:
        fast = quantize(values, name, rounding=rounding, saturate=saturate, seed=5)
        plain = torch_form.quantize(values, name, rounding=rounding, saturate=saturate, seed=5)
        torch.testing.assert_close(plain, fast, rtol=0, atol=0, equal_nan=True, msg=f"{name} {rounding}")


@pytest.mark.parametrize("name", ["nf4", "sign1"])
def test_that_plain_code_books_give_the_answers_of_the_fast_ones(name: str) -> None:
    values = torch.randn(4000)
    for rounding in ROUNDINGS:
        if (name, rounding) == ("sign1", "toward_zero"):
            with pytest.raises(ValueError, match="no form in torch operations"):
                torch_form.quantize(values, name, rounding=rounding)
            continue
        fast = quantize(values, name, rounding=rounding, seed=5)
        assert torch.equal(torch_form.quantize(values, name, rounding=rounding, seed=5), fast)


@pytest.mark.parametrize(
    ("name", "rule"),
    [*itertools.product(["mxfp8_e4m3", "mxfp6_e2m3", "mxfp4", "mxint8"], ["floor", "ceil", "even", "rceil"]),
     ("nvfp4", "floor")],
)  # fmt: skip
def test_that_plain_blocks_give_the_answers_of_the_fast_ones(name: str, rule: str) -> None:
    torch.manual_seed(0)
    values = torch.randn(6, 5, 100) * 2.0 ** torch.randint(-9, 9, (6, 5, 1))
    values[2, 3] = 0
    for axis in (0, 2):
        fast = quantize_blocks(values, name, rule=rule, axis=axis)
        assert torch.equal(torch_form.quantize_blocks(values, name, rule=rule, axis=axis), fast)
