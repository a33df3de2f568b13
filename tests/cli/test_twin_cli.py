"""`precgui twin` on recipes and run files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from precgui.cli.main import main
from precgui.runs.twins import TWINS
from precgui.runs.verdict.branches import LEAST_BRANCHES

SETTINGS = ["device=cpu", "threads=1", "model.name=mlp", "train.max_steps=60"]
SMALL = [word for setting in SETTINGS for word in ("--set", setting)]


def test_that_branches_of_a_recipe_are_judged_in_one_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "twin.json"
    words = ["digits-quick", *SMALL, "--precision", "emulated:e2m1", "--branches", "12", "--steps", "4"]
    assert main(["twin", *words, "-o", str(kept), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "bias" and document["drift"]["mean"] > 0
    assert document["drift"]["p_t"] < 0.005 and document["drift"]["p_sign_flip"] < 0.005
    assert document["twin"]["verdict"] == "no bias"
    assert len(document["branches"]) == 12 and document["kept"] == str(kept) and kept.exists()
    assert document["first_step_outside"] == 1 and document["first_tensor_outside"]


def test_that_a_run_is_branched_in_its_own_precision_and_keeps_the_result_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.h5"
    assert main(["run", "digits-quick", "-o", str(path), "--json", *SMALL, "--set", "precision=bf16-amp"]) == 0
    capsys.readouterr()
    assert main(["twin", str(path), "--branches", "10", "--steps", "4"]) == 0
    captured = capsys.readouterr()
    assert "bf16-amp" in captured.out and "rounding twin" in captured.out and "branch 10 of 10" in captured.err
    assert [result.precision for result in TWINS.all(path)] == ["bf16-amp"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["digits-quick"], "the source is in FP32, which the branches are compared with; add --precision P"),
        (["digits-quick", "--precision", "bf17"], "--precision: "),
        (["digits-quick", "--precision", "int8-qat"], "int8-qat learns its ranges over a whole run"),
        (["digits-quick", "--precision", "bf16-amp", "--branches", "4"], "--branches 4 is outside 10 to 1000"),
        (["digits-quick", "--precision", "bf16-amp", "--steps", "100"], "the run has 60 steps, too few"),
        (["nowhere.h5", "--precision", "bf16-amp"], "nowhere.h5"),
    ],
)
def test_that_bad_input_is_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["twin", *words, *(SMALL if words[0] != "nowhere.h5" else [])]) == 2
    assert sentence in capsys.readouterr().err


def test_that_the_help_says_how_many_branches_are_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["twin", "--help"])
    assert f"{LEAST_BRANCHES} to 1000" in capsys.readouterr().out
