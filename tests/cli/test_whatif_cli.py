"""`precgui whatif`: the table, the JSON document, the CSV file, and what cannot be asked."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from precgui.cli.main import main
from precgui.runs.tensors.grouping import ALL
from tests.runs.synthetic import open_writer
from tests.runs.tensors.test_what_if_table import NAMES, path

__all__ = ["path"]


def test_that_each_kind_has_a_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("fp16 at scale 2^0; steps 1 to 5")
    lines = {
        line.split()[0]: line.split() for line in out.splitlines() if line.split()[:1] in (["gradient"], ["update"])
    }
    assert lines["gradient"][1:5] == ["49", "±", "10", "%"]
    assert lines["gradient"][-1] == "3"
    assert "Estimated from samples" in out


def test_that_no_figure_is_cut_in_a_narrow_terminal(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 80 columns the largest gradient of a run in two formats was 4.21e-..., without its exponent."""
    monkeypatch.setenv("COLUMNS", "48")
    assert main(["whatif", str(path), "--format", "fp16,e4m3fn"]) == 0
    assert "…" not in capsys.readouterr().out


def test_that_every_tensor_is_listed_the_worst_first(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(path), "--tensors", "gradient", "--sort", "safe-scale", "--scale", "2^8"]) == 0
    out = capsys.readouterr().out
    places = [out.index(name) for name in (ALL, "last.weight", "first.bias", "first.weight")]
    assert places == sorted(places)
    assert "2^6" in out


def test_that_json_is_one_document(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        "whatif",
        str(path),
        "--json",
        "--format",
        "fp16,float8_e4m3fn",
        "--scale",
        "65536",
        "--tensors",
        "gradient",
    ]
    assert main(asked) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["precision"], document["scale"]) == ("fp32", 65536)
    (kind,) = document["kinds"]
    assert (kind["kind"], kind["certainty"], kind["recorded_steps"]) == ("gradient", "estimate", 5)
    assert [(line["tensor"], line["format"]) for line in kind["tensors"]] == [
        (name, fmt) for fmt in ("fp16", "e4m3fn") for name in (ALL, *NAMES)
    ]
    bias = kind["tensors"][2]
    assert (bias["underflow"], bias["overflow"], bias["elements"]) == (0, 0.5, 1000)


def test_that_csv_has_every_kind_and_overwrites_nothing(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "told.csv"
    assert main(["whatif", str(path), "--csv", str(target), "--group-by", "layer"]) == 0
    with target.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["kind"], row["tensor"]) for row in rows] == [
        (kind, name) for kind in ("gradient", "update") for name in (ALL, "first", "last")
    ]
    assert main(["whatif", str(path), "--csv", str(target)]) == 2
    assert "already exists" in capsys.readouterr().err


def test_that_lines_can_be_grouped_by_parameter_type_and_the_earlier_option_still_works(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = []
    for option in (["--group-by", "type"], ["--for", "sort"], ["--for", "type"]):
        assert main(["whatif", str(path), "--tensors", "gradient", "--json", *option]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] == outputs[2]
    with pytest.raises(SystemExit):
        main(["whatif", "--help"])
    shown = capsys.readouterr().out
    assert "--group-by" in shown
    assert "--for" not in shown.replace("--format", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--scale", "1000"], "no power of two; the nearest one is 1024, 2^10"),
        (["--scale", "0"], "a power of two is needed"),
        (["--scale", "nan"], "a power of two is needed"),
        (["--scale", "2^9999"], "a power of two is needed"),
        (["--format", "fp17"], "fp17"),
        (["--format", "int8"], "no exponents"),
        (["--format", "mxfp4"], "ask for its elements"),
        (["--tensors", "weight"], "no weight: choose from gradient, update"),
        (["--sort", "worst"], "choose from"),
    ],
)
def test_that_what_cannot_be_asked_is_one_sentence(
    path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["whatif", str(path), *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert said in err


def test_that_a_run_without_tensors_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_writer(tmp_path / "plain.h5"):
        pass
    assert main(["whatif", str(tmp_path / "plain.h5")]) == 2
    assert "has no tensors" in capsys.readouterr().err
    assert main(["whatif", str(tmp_path / "none.h5")]) == 2


def test_that_updates_say_what_weights_in_a_format_would_lose(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(path), "--tensors", "update", "--format", "bf16", "--sort", "lost"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "changed lost" in out
    assert "87 % in bf16" in out
    assert main(["whatif", str(path), "--json"]) == 0
    kinds = {kind["kind"]: kind for kind in json.loads(capsys.readouterr().out)["kinds"]}
    assert kinds["gradient"]["tensors"][0]["lost_bf16"] is None
    assert kinds["update"]["tensors"][0]["lost_bf16"] == pytest.approx(0.874, abs=1e-3)
