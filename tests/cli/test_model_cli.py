"""`precgui model` with a scan: figures, a file that goes on, and what is refused."""

from __future__ import annotations

import csv
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from precgui.cli.main import main
from precgui.formats.checkpoints.contents import open_checkpoint
from precgui.formats.weight_formats import weight_format
from precgui.model_job import scan_model
from precgui.runs.file.reader import open_run
from precgui.runs.models.model_file import read_model_file
from tests.formats.checkpoint_files import safetensors, sharded

RNG = np.random.default_rng(3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "model"
    place.mkdir()
    a, b = (RNG.standard_normal((8, 128)).astype(ml_dtypes.bfloat16) for _ in range(2))
    return sharded(place, [{"a": ("BF16", a)}, {"b": ("F32", b.astype(np.float32)), "n": ("I64", np.arange(3))}])


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["model", *words, "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


def test_that_the_scan_is_printed_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = document(capsys, str(folder), "--formats", "mxfp4, gguf:q8_0,e3m4/32,int4/row")
    row = printed["tensors"][0]
    assert list(row["formats"]) == ["mxfp4", "gguf:q8_0", "e3m4/32", "int4/row"]
    assert row["formats"]["mxfp4"]["bytes"] == 1024 * 4.25 / 8 and row["formats"]["mxfp4"]["scale"] == "floor"
    assert printed["totals"]["gguf:q8_0"]["bytes"] == 2 * 1024 * 34 / 32
    assert printed["skipped"] == [{"name": "n", "why": "whole numbers, no weights"}]
    exact = document(capsys, str(folder), "--formats", "bf16")
    assert exact["totals"]["bf16"]["sqnr_db"] == "inf"


def test_that_the_totals_of_each_format_are_of_the_whole_model(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Groups of 128 do not fit rows of 96: the format had the bytes of the other tensor alone, as if it were small."""
    c = RNG.standard_normal((4, 256)).astype(np.float32)
    safetensors(folder.parent / "c.safetensors", {"c": ("F32", c), "d": ("F32", c[:, :96].copy())})
    printed = document(capsys, str(folder.parent / "c.safetensors"), "--formats", "int4/128,int4/32")
    wide, narrow = printed["totals"]["int4/128"], printed["totals"]["int4/32"]
    assert wide["bytes"] == 1024 / 2 + 4 * 1024 / 128 + 4 * 4 * 96 and wide["as_stored"] == 1
    assert narrow["bytes"] == (1024 + 384) * (1 / 2 + 4 / 32) and narrow["as_stored"] == 0
    assert wide["bytes"] > narrow["bytes"]
    assert main(["model", str(folder.parent / "c.safetensors"), "--formats", "int4/128,int4/32"]) == 0
    assert "they count as they are stored" in capsys.readouterr().out


def test_that_a_scan_is_a_run_file_that_every_view_reads(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder.parent / "m.h5"
    assert main(["model", str(folder), "-o", str(file), "--formats", "int8,nvfp4"]) == 0
    assert "Signal to noise of each tensor" in capsys.readouterr().out
    kept = read_model_file(file)
    assert kept is not None and kept.is_complete and [each.name for each in kept.surveys] == ["a", "b"]
    assert [row["why_not"] for row in kept.tensors] == ["", "", "whole numbers, no weights"]
    with open_run(file) as run:
        assert (run.title, run.status) == ("model", "completed")
        history = run.tensors()["weight"]
        assert list(history.names) == ["a", "b"]
    assert main(["whatif", str(file), "--format", "fp16", "--json"]) == 0
    assert main(["diagnose", str(file)]) in (0, 1)
    values = kept.surveys[0].values()
    assert values[1].sum() == 1024
    assert sorted(path.name for path in folder.parent.iterdir()) == ["m.h5", "model"]


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no Ctrl+C for one process")
def test_that_a_scan_goes_on_where_it_was_broken_off(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from precgui.engine.survey import scan as scanning

    file, whole, asked = folder.parent / "m.h5", scanning.survey, []

    def broken(tensor: Any, *rest: Any) -> Any:
        asked.append(tensor.name)
        if len(asked) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            wait_until(rest[-1])
        return whole(tensor, *rest)

    words = ["model", str(folder), "-o", str(file), "--formats", "int8", "--threads", "1"]
    monkeypatch.setattr(scanning, "survey", broken)
    assert main(words) == 130
    assert "the same command goes on" in capsys.readouterr().err
    first = read_model_file(file)
    assert first is not None and not first.is_complete and len(first.surveys) == 1
    assert main(words) == 0
    assert asked[2:] == [name for name in ("a", "b") if name != first.surveys[0].name]
    kept = read_model_file(file)
    assert kept is not None and kept.is_complete
    assert main([*words[:-4], "--formats", "int4/row"]) == 2
    assert "choose another name" in capsys.readouterr().err


def test_that_the_scan_is_written_as_csv(folder: Path) -> None:
    file = folder.parent / "m.csv"
    assert main(["model", str(folder), "--csv", str(file), "--formats", "int8/row,gguf:q4_0"]) == 0
    rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
    assert [(row["tensor"], row["format"]) for row in rows] == [
        (name, fmt) for name in ("a", "b") for fmt in ("int8/row", "gguf:q4_0")
    ]


@pytest.mark.parametrize("name", ["int9x", "e3m4/7", "ue4m3", "e11m52", "int16", "nf4:odd"])
def test_that_a_format_that_is_none_is_refused(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", str(folder), "--formats", name]) == 2
    error = capsys.readouterr().err
    assert name in error and error.count("\n") == 1


def test_that_a_damaged_scan_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import h5py

    file = folder.parent / "m.h5"
    words = ["model", str(folder), "-o", str(file), "--formats", "int8"]
    assert main(words) == 0
    with h5py.File(file, "r+") as opened:
        opened["survey/starts"][0, 1] = 5000
    assert main(words) == 2
    assert "scan the model again" in capsys.readouterr().err
    reasons = ["(its counts do not fit its tensors); scan the model again", "without its figures; scan the model again"]
    for reason in reasons:
        assert main(["diagnose", str(file), "--json"]) == 1
        answer = json.loads(capsys.readouterr().out)
        assert answer["verdict"] == "cannot be told" and answer["not_told"] == []
        assert answer["sentence"].startswith("Cannot be told: ") and answer["sentence"].endswith(f"{reason}.")
        with h5py.File(file, "r+") as opened:
            opened.pop("survey", None)


def test_that_odd_names_are_kept_in_a_scan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["a\ud800", "a\nb", "a\x1b[31m", "a\0b"]
    safetensors(tmp_path / "m.safetensors", {name: ("F32", np.ones(64, np.float32)) for name in names})
    words = [str(tmp_path / "m.safetensors"), "--formats", "fp16", "-o", str(tmp_path / "m.h5")]
    assert [row["name"] for row in document(capsys, *words)["tensors"]] == names
    kept = read_model_file(tmp_path / "m.h5")
    assert kept is not None and sorted(each.name for each in kept.surveys) == sorted(names)
    with open_run(tmp_path / "m.h5") as run:
        assert run.tensors() is not None


def test_that_a_scan_broken_off_before_its_first_tensor_is_kept(folder: Path) -> None:
    file = folder.parent / "m.h5"
    formats = [weight_format("int8")]
    assert scan_model(open_checkpoint(folder), formats, file, lambda _: None, stopped=lambda: True) == ([], False)
    kept = read_model_file(file)
    assert kept is not None and not kept.is_complete and kept.surveys == () and Path(kept.source).is_absolute()
