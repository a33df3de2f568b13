"""A kept integer model as a PT2 program: the same numbers, and integer kernels where torchao lowers it."""

from __future__ import annotations

import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from precgui import config
from precgui.cli.main import main
from precgui.engine.casting import cast_floats
from precgui.engine.qat import saved_model
from precgui.engine.qat.onednn import integer_kernels
from precgui.engine.qat.pt2 import write_program
from precgui.job import Job
from precgui.runs.file.reader import open_run

SETTINGS = ("device=cpu", "threads=1", "record.tensors=false", "train.max_steps=8", "qat.save_to=auto")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run file with its integer model beside it."""
    path = tmp_path_factory.mktemp("kept") / "mine.h5"
    Job(config.load("digits-quick", [*SETTINGS, "precision=int8-qat"]), path).run()
    return path


def test_that_the_command_line_writes_a_program_with_the_numbers_of_the_model(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "model.pt2"
    assert main(["export", str(kept), "--pt2", str(target)]) == 0
    assert capsys.readouterr().out.split() == [str(target)]
    integers = saved_model.restore_file(kept.with_name("mine.int8.pt"))
    inputs = cast_floats(integers.batches[0][0], torch.float32)
    program = torch.export.load(target).module()
    names = [str(node.target) for node in program.graph.nodes]
    assert sum("quantize_per_tensor" in name for name in names) == 2 * len(integers.saved["layers"])
    with torch.no_grad():
        exact = integers.model(inputs)
        for count in (1, 5, len(inputs)):
            torch.testing.assert_close(
                program(inputs[:count]), exact[:count], rtol=0, atol=0.01 * float(exact.abs().max())
            )
    assert main(["export", str(kept), "--pt2", str(target)]) == 2
    assert "already exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    "settings",
    [
        ("precision=int4-qat", "qat.activations=int4", "qat.ends=same", "model.name=resnet"),
        ("precision=int1-qat", "qat.activations=fp32", "qat.per_channel=false", "model.name=mlp"),
    ],
)
def test_that_few_bits_keep_their_numbers(tmp_path: Path, settings: tuple[str, ...]) -> None:
    Job(config.load("digits-quick", [*SETTINGS, *settings]), tmp_path / "few.h5").run()
    model = next(tmp_path.glob("few.int*.pt"))
    write_program(model, tmp_path / "few.pt2")
    integers = saved_model.restore_file(model)
    inputs = cast_floats(integers.batches[0][0], torch.float32)
    with torch.no_grad():
        exact, found = integers.model(inputs), torch.export.load(tmp_path / "few.pt2").module()(inputs)
    assert float((found - exact).norm() / exact.norm()) < 0.01


@pytest.mark.filterwarnings("ignore")
def test_that_torchao_puts_integer_kernels_in_its_place(tmp_path: Path) -> None:
    if integer_kernels() != "exact":  # here, since to find out takes kernels of their own
        pytest.skip("this processor has no exact integer kernels")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
        lowering = pytest.importorskip("torchao.quantization.pt2e.lowering")
    Job(config.load("digits-quick", [*SETTINGS, "precision=int8-qat", "model.name=mlp"]), tmp_path / "mlp.h5").run()
    write_program(tmp_path / "mlp.int8.pt", tmp_path / "mlp.pt2")
    integers = saved_model.restore_file(tmp_path / "mlp.int8.pt")
    inputs = cast_floats(integers.batches[0][0], torch.float32)[:8].clone()
    with torch.no_grad():
        lowered = lowering.lower_pt2e_quantized_to_x86(torch.export.load(tmp_path / "mlp.pt2").module(), (inputs,))
        names = [str(node.target) for node in lowered.graph.nodes]
        assert sum(name.startswith("onednn.qlinear") for name in names) == len(integers.saved["layers"])
        exact = integers.model(inputs)
        assert float((lowered(inputs) - exact).norm() / exact.norm()) < 0.01


def test_that_a_run_without_a_kept_model_is_one_sentence(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = tmp_path / "alone.h5"
    moved.write_bytes(kept.read_bytes())
    kept_model = kept.with_name("mine.int8.pt")
    away = kept_model.rename(tmp_path / "elsewhere.pt")
    assert main(["export", str(moved), "--pt2", str(tmp_path / "a.pt2")]) == 2
    assert "is no longer where it was written" in capsys.readouterr().err
    away.rename(kept_model)
    plain = tmp_path / "plain.h5"
    Job(config.load("digits-quick", ["device=cpu", "train.max_steps=1", "record.tensors=false"]), plain).run()
    assert main(["export", str(plain), "--pt2", str(tmp_path / "a.pt2")]) == 2
    assert "has no integer model; train in int8-qat" in capsys.readouterr().err
    assert not (tmp_path / "a.pt2").exists()


def test_that_torchao_as_back_end_is_one_sentence_in_configs_and_models(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert config.build({"qat": {"backend": "own", "per_channel": False}}).qat.per_channel is False
    assert main(["run", "digits-int8", "--set", "qat.backend=torchao"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "qat.backend: torchao trains no runs any more" in told
    document = torch.load(kept.with_name("mine.int8.pt"), weights_only=True)
    document["config"] = document["config"].replace('"qat":{', '"qat":{"backend":"torchao",')
    torch.save(document, tmp_path / "old.pt")
    assert main(["evaluate", str(tmp_path / "old.pt")]) == 2
    assert "holds a graph of torchao, which precgui reads no more" in capsys.readouterr().err


def test_that_a_saved_run_of_torchao_opens_and_says_so(kept: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.h5"
    old.write_bytes(kept.read_bytes())
    with h5py.File(old, "r+") as file:
        text = file["config"][()].decode().replace('"qat": {', '"qat": {"backend": "torchao",', 1)
        text = text if "torchao" in text else text.replace('"qat":{', '"qat":{"backend":"torchao",', 1)
        assert "torchao" in text
        del file["config"]
        file["config"] = np.bytes_(text.encode())
    with open_run(old) as run:
        assert run.config.precision == "int8-qat"
        assert len(run.series("loss")[1]) == 8
        assert any("qat.backend" in note for note in run.notes)
