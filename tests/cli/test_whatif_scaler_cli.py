"""`precgui whatif --scaler`: the table, the JSON document, and what cannot be asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from precgui.cli.main import main
from precgui.config import RunConfig
from tests.runs.synthetic import open_writer
from tests.runs.test_scaler_simulation import events


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    with open_writer(tmp_path / "run.h5", RunConfig(precision="fp32", title="looked at")) as writer:
        for event in events((1, 5, 9)):
            writer(event)
    return tmp_path / "run.h5"


def test_that_policies_stand_in_a_table_with_how_much_was_measured(
    run_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", str(run_path), "--scaler", "initial=2^30", "--scaler", "initial=1", "--inject", "4"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("looked at: gradients in fp16, steps 1 to 9")
    assert "1 of 9 step 1 2^-1" in out
    assert "Certainty: estimate." in out
    assert "measured in 3 of 9 steps" in out


def test_that_json_tells_each_step_of_each_policy(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["whatif", str(run_path), "--scaler", "initial=4,interval=2", "--inject", "5", "--inject", "5", "--json"]
    assert main(asked) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["measured_steps"], document["steps"], document["injected"]) == (3, 9, [5])
    (policy,) = document["policies"]
    assert policy["scale"] == [4, 4, 8, 8, 16, 8, 8, 16, 16]
    assert [step for step, bad in zip(policy["step"], policy["skipped"], strict=True) if bad] == [5]
    assert (policy["skipped_steps"], policy["growth_interval"]) == (1, 2)
    assert len(policy["underflow"]) == 9


def test_that_made_up_gradients_need_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", "--scaler", "", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["run"], document["measured_steps"]) == (None, 0)
    assert "made up" in document["notes"][0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--scaler", "initial=0"], "initial=0: input should be greater than 0"),
        (["--scaler", "a=1"], "a=1 is not a setting of the scaler"),
        (["--scaler", "", "--format", "fp16,bf16"], "one format"),
        (["--scaler", "", "--inject", "77"], "choose a step from 1 to 9"),
        (["--inject", "3"], "--inject belongs to --scaler"),
        ([*["--scaler", ""] * 4], "up to 3 policies"),
    ],
)
def test_that_what_cannot_be_simulated_is_one_sentence(
    run_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["whatif", str(run_path), *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_that_nothing_to_simulate_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_writer(tmp_path / "plain.h5"):
        pass
    assert main(["whatif", str(tmp_path / "plain.h5"), "--scaler", ""]) == 2
    assert "has no finite gradients" in capsys.readouterr().err
    assert main(["whatif"]) == 2
    assert "needs a run file" in capsys.readouterr().err
