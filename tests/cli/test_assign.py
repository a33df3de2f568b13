"""`precgui assign`, with small trainings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from precgui import config
from precgui.cli import assign
from precgui.cli.main import main
from precgui.runs.verdict.judge import Verdict

SMALL = ["digits-quick", "--set", "model.name=mlp", "--set", "train.max_steps=10", "--set", "device=cpu"]


def test_that_a_plan_is_measured_and_trained_beside_fp32_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*SMALL, "--formats", "bf16,int2", "--budget", "bits=9", "--seeds", "2", "-o", str(tmp_path / "plan.toml")]
    code = main(["assign", *words, "--sweep", str(tmp_path / "runs"), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["bits"] <= 9 and set(document["layers"].values()) == {"bf16", "int2"}
    assert document["verdict"]["n"] == 2 and len(list((tmp_path / "runs").rglob("*.h5"))) == 5
    assert code == (0 if document["verdict"]["verdict"] == "met" else 1)
    assert (tmp_path / "plan.toml").exists() == (code == 0)


def test_that_a_verified_plan_is_a_config_that_names_the_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(assign, "_verify", lambda *_: (tmp_path, Verdict("accuracy_lost", "met", n=5)))
    output = tmp_path / "plan.toml"
    assert main(["assign", *SMALL, "--formats", "bf16", "--budget", "loss=0.5", "-o", str(output)]) == 0
    made = config.load(output)
    assert made.precision == "emulated:fp32" and set(made.precision_options.layers.values()) == {"bf16"}
    assert "the metric beside FP32, 5 seeds: met" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--formats", "bf16", "--budget", "bytes=3"], "--budget bytes=3 is no budget; write bits=6 or loss=0.05"),
        (["--formats", "bf17", "--budget", "bits=3"], "--formats: "),
        (["--formats", "bf16", "--budget", "bits=3"], "3 bits a weight are too few; the narrowest format has 16"),
    ],
)
def test_that_bad_input_is_one_sentence(options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["assign", *SMALL, *options]) == 2
    assert sentence in capsys.readouterr().err
