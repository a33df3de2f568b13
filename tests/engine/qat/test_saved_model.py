"""A converted model that was saved is evaluated again as it was, and a file that is none does no harm."""

from __future__ import annotations

import json
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import precgui
from precgui import config
from precgui.cli.main import main
from precgui.engine.errors import EngineError
from precgui.engine.qat import saved_model
from precgui.events import Facts
from precgui.job import Job
from tests import needs
from tests.engine.conftest import Record

QUIET = ("record.tensors=false", "train.epochs=1", "data.epoch_steps=8")


@pytest.mark.parametrize(
    "settings",
    [
        ("precision=int8-qat",),
        ("precision=int4-qat", "model.name=resnet", "qat.per_channel=false", "qat.activations=fp32"),
        ("precision=int2-qat", "qat.ends=fp32"),
        ("precision=int1-qat", "qat.activations=int4", "precision_options.keep_fp32=head"),
        ("precision=int4-qat", "qat.learned_scales=true", "model.name=vit"),
    ],
)
def test_that_a_saved_model_is_evaluated_again_as_it_was(
    record: Record, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    path = tmp_path / "model.pt"
    events = record(*QUIET, *settings, f"qat.save_to={path}")
    facts = next(e.values["quantised"] for e in events if isinstance(e, Facts) and "quantised" in e.values)
    assert facts["file"] == str(path)
    again = saved_model.evaluate_file(path)
    assert again["saved"] == facts["evaluation"]["integer"]
    assert again["now"]["metric"] == again["saved"]["metric"]
    assert again["now"]["loss"] == pytest.approx(again["saved"]["loss"], rel=1e-5)
    assert again["samples"] == facts["evaluated_samples"]
    assert again["bytes"] == path.stat().st_size < facts["bytes"]["fp32"]
    assert again["weights_bytes"] == pytest.approx(facts["bytes"]["integer"], abs=64)  # the archive names its file


def test_that_few_bits_are_packed_in_the_file(record: Record, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    record(*QUIET, "precision=int2-qat", f"qat.save_to={path}")
    packed = torch.load(path, weights_only=True)["state"]["features.3.packed"]
    assert packed.dtype == torch.uint8
    assert packed.numel() == 32 * 16 * 9 // 4


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run file with its converted model beside it."""
    folder = tmp_path_factory.mktemp("runs")
    settings = ["device=cpu", "threads=1", *QUIET, "precision=int8-qat", "qat.save_to=auto", "model.name=mlp"]
    Job(config.load("digits-quick", settings), folder / "mine.h5").run()
    return folder / "mine.int8.pt"


def test_that_the_command_line_evaluates_it_again(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(trained), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["model"] == str(trained)
    assert told["now"]["metric"] == told["saved"]["metric"]
    assert main(["evaluate", str(trained)]) == 0
    text = capsys.readouterr().out
    assert "int8-qat" in text
    assert "359 samples" in text
    with precgui.open_run(trained.with_name("mine.h5")) as run:
        weights = f"weights of {run.environment['quantised']['bytes']['integer'] / 1024:.0f} KiB"
        assert any(weights in event.message for event in run.events())
    assert f"{weights} in a file of {trained.stat().st_size / 1024:.0f} KiB" in text
    assert f"{told['now']['metric']:.2%}" in text


def _refused(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["evaluate", str(path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("precgui: ")
    assert told.count("\n") == 1
    return told


def test_that_files_that_are_no_model_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "does not exist" in _refused(tmp_path / "none.pt", capsys)
    (tmp_path / "text.pt").write_text("hello")
    assert "cannot be read as a model" in _refused(tmp_path / "text.pt", capsys)
    assert "cannot be read as a model" in _refused(tmp_path, capsys)
    torch.save({"weights": torch.zeros(3)}, tmp_path / "other.pt")
    assert "is no integer model of precgui" in _refused(tmp_path / "other.pt", capsys)


@needs.named_pipes
def test_that_pipes_and_devices_are_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "endless.pt").symlink_to("/dev/zero")
    for name in ("pipe.pt", "endless.pt"):
        assert "it is not a regular file" in _refused(tmp_path / name, capsys)


def test_that_a_compressed_model_is_refused_before_it_is_unpacked(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch reads compressed entries, and 3 MB of them can be 3 GB of zeros; torch.save writes none."""
    with zipfile.ZipFile(trained) as source, zipfile.ZipFile(tmp_path / "bomb.pt", "w") as bomb:
        for entry in source.infolist():
            bomb.writestr(entry.filename, source.read(entry), zipfile.ZIP_DEFLATED)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was unpacked"))
    assert "in it is compressed, as nothing is that torch writes" in _refused(tmp_path / "bomb.pt", capsys)


def test_that_a_tensor_in_place_of_the_schema_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"precgui_integer_model": torch.zeros(3)}, tmp_path / "odd.pt")
    assert "is no integer model of precgui" in _refused(tmp_path / "odd.pt", capsys)


def test_that_weights_of_nan_are_json_all_the_same(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = torch.load(trained, weights_only=True)
    state = document["state"]
    document["state"] = {
        name: torch.full_like(value, math.nan) if value.is_floating_point() else value for name, value in state.items()
    }
    torch.save(document, tmp_path / "nan.pt")
    assert main(["evaluate", str(tmp_path / "nan.pt"), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert reported["now"]["loss"] is None


class _Harmful:
    def __reduce__(self) -> Any:
        return os.system, ("echo harmed > /dev/stderr",)


def test_that_a_file_cannot_run_code(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torch.save({"precgui_integer_model": 1, "state": _Harmful()}, tmp_path / "evil.pt")
    with pytest.raises(EngineError, match="cannot be read as a model") as refused:
        saved_model.evaluate_file(tmp_path / "evil.pt")
    assert "weights_only" not in str(refused.value)  # torch advises to switch it off
    assert "harmed" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"config": "{}}"}, "is damaged"),
        ({"config": '{"task": "nothing"}'}, "is damaged"),
        ({"layers": {"body.1": [3, 8]}}, "odd number of bits"),
        ({"layers": {"nowhere": [8, 8]}}, "nowhere is no layer"),
        ({"state": {"a": 1}}, "no tensors"),
        ({"state": {}}, "no layer that can be quantised"),
        ({"config": '{"task": "digits", "precision": "int8-qat"}'}, "does not fit the model"),
    ],
)
def test_that_damage_is_one_sentence(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], told: str
) -> None:
    document = torch.load(trained, weights_only=True)
    torch.save({**document, **change}, tmp_path / "damaged.pt")
    assert told in _refused(tmp_path / "damaged.pt", capsys)


def test_that_a_task_of_ones_own_wants_consent(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = torch.load(trained, weights_only=True)
    own = json.dumps({**json.loads(document["config"]), "task": "somewhere.py:make_task", "model": {}})
    torch.save({**document, "config": own}, tmp_path / "own.pt")
    assert "allow it with --own-code" in _refused(tmp_path / "own.pt", capsys)


def test_that_a_place_that_cannot_be_written_is_told_before_the_training(record: Record, tmp_path: Path) -> None:
    (tmp_path / "there.pt").write_text("mine")
    with pytest.raises(EngineError, match="already exists"):
        record("precision=int8-qat", f"qat.save_to={tmp_path / 'there.pt'}")
    assert (tmp_path / "there.pt").read_text() == "mine"
    with pytest.raises(EngineError, match=r"qat\.measure = false does not make"):
        record("precision=int8-qat", f"qat.save_to={tmp_path / 'a.pt'}", "qat.measure=false")
    with pytest.raises(EngineError, match="is not a folder that can be written"):
        record("precision=int8-qat", f"qat.save_to={tmp_path / 'nowhere' / 'a.pt'}")
