"""Runs written as plain scripts do the same again, bit for bit, without precgui."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from precgui import config
from precgui.cli.main import main
from precgui.config import PRECISIONS, RunConfig
from precgui.engine.export.script import write_script
from precgui.engine.quantize import torch_form
from precgui.engine.quantize.blocks import quantize_blocks
from precgui.engine.quantize.elements import quantize
from precgui.engine.train import train
from precgui.events import Evaluated, Event, RunStarted, StepDone
from precgui.formats.rounding import ROUNDINGS
from precgui.job import Job
from tests.engine.export.script_output import printed_by

_OPTION = "precision_options"
# Each name with the settings of a run; every precision, and every switch at least once.
RUNS: dict[str, tuple[str, ...]] = {
    **{name: (f"precision={name}",) for name in PRECISIONS if not name.endswith("-qat")},
    "masters": ("precision=fp16-pure", f"{_OPTION}.master_weights=true", "optimizer.name=adamw", "optimizer.lr=0.002"),
    "kept": ("precision=bf16-amp", f"{_OPTION}.keep_fp32=*norm*,head", "train.channels_last=true"),
    "kept in low": ("precision=mxfp8", f"{_OPTION}.keep_fp32=first", f"{_OPTION}.scale_rule=rceil"),
    "layers": ("precision=mxfp8", f"{_OPTION}.layers=first=e5m2, head=fp32"),
    "rows": ("precision=fp8", f"{_OPTION}.fp8_scaling=rowwise", "train.checkpointing=true", "train.accumulation=2"),
    "delayed": ("precision=fp8", f"{_OPTION}.fp8_amax=delayed", "train.ema_decay=0.9", "train.clip_norm=1"),
    "skipping": ("precision=fp16-amp", "scaling.initial_scale=1e9", "scaling.growth_interval=3", "train.ema_decay=0.9"),
    "static": ("precision=fp16-amp", "scaling.mode=static", "scaling.initial_scale=512", "optimizer.schedule=constant"),
    "any": (
        "precision=emulated:e5m2", f"{_OPTION}.updates=bf16", f"{_OPTION}.rounding=stochastic",
        f"{_OPTION}.accumulator=bf16", f"{_OPTION}.weights=int8", f"{_OPTION}.gradients=mxfp6_e3m2",
    ),
    "text": ("task=text", "precision=bf16-pure", "data.sequence_length=16", "data.batch_size=4", "data.epoch_steps=4"),
    "text in fp16": ("task=text", "precision=fp16-amp", "data.sequence_length=16", "data.batch_size=4"),
    "text in any": ("task=text", "precision=emulated:e5m2", "data.sequence_length=16", "data.batch_size=4"),
    "recurrent": (
        "task=text", "model.name=lstm", "precision=emulated:fp16", "data.sequence_length=16", "data.batch_size=4",
        f"{_OPTION}.keep_fp32=head",
    ),
    "limited": ("data.epoch_steps=3", "train.deterministic=true", "train.attention=math", "model.name=vit"),
}  # fmt: skip


def recorded(settings: tuple[str, ...]) -> tuple[RunConfig, list[Event]]:
    events: list[Event] = []
    wanted = config.load(
        "digits-quick", ["device=cpu", "threads=1", "record.tensors=false", "train.max_steps=5", *settings]
    )
    train(wanted, events.append, lambda: False)
    return wanted, events


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[Event], str]]:
    """Every run with what its script printed; the scripts run in one process, because importing torch takes seconds."""
    folder = tmp_path_factory.mktemp("scripts")
    runs: dict[str, list[Event]] = {}
    paths = []
    for place, (name, settings) in enumerate(RUNS.items()):
        wanted, runs[name] = recorded(settings)
        started = next(e for e in runs[name] if isinstance(e, RunStarted))
        paths.append(folder / f"script_{place}.py")
        write_script(wanted, started.engine, paths[-1])
    return {name: (runs[name], text) for name, text in zip(RUNS, printed_by(paths), strict=True)}


@pytest.mark.parametrize("name", RUNS)
def test_that_a_script_repeats_the_run_bit_for_bit(outputs: dict[str, tuple[list[Event], str]], name: str) -> None:
    events, printed = outputs[name]
    losses = [float(text) for text in re.findall(r"^step \d+: loss (\S+)$", printed, re.MULTILINE)]
    assert losses == [e.loss for e in events if isinstance(e, StepDone)]
    validation = [float(text) for text in re.findall(r"validation loss (\S+),", printed)]
    assert validation == [e.loss for e in events if isinstance(e, Evaluated)]


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
        fast = quantize_blocks(values, name, rule=rule, axis=axis)  # type: ignore[arg-type]
        assert torch.equal(torch_form.quantize_blocks(values, name, rule=rule, axis=axis), fast)
