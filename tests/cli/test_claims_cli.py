"""`precgui claims` as a user and as another program meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from precgui.cli.main import main
from precgui.formats.claims import CLAIMS, claims_about
from precgui.lint.check import LINT_RULES
from precgui.runs.diagnosis import RULES
from precgui.runs.study.guide_claims import guide_claims
from tests.lint.test_check import MISTAKES


def test_that_every_statement_is_listed_with_its_truth_and_its_bits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["claim"] for row in document["wrong"]] == [claim.claim for claim in CLAIMS]
    assert [row["id"] for row in document["measured"]] == [claim.id for claim in guide_claims()]
    (int8,) = [row for row in document["wrong"] if row["claim"].startswith("0.1 to 1.2")]
    assert int8["evidence"] == ["153 in int8: 0x7f = 127"]


def test_that_words_choose_statements(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "gradscaler", "bf16"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "A GradScaler with BF16 does no harm." in said
    assert "TF32" not in said


def test_that_words_that_no_statement_holds_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "posit64"]) == 2
    assert "no statement holds posit64" in capsys.readouterr().err


def test_that_each_statement_is_there_once() -> None:
    assert len({claim.claim for claim in CLAIMS}) == len(CLAIMS) >= 51


def test_that_findings_carry_the_wrong_statement_that_they_contradict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {rule.name for rule in RULES} | set(LINT_RULES)
    assert {rule for claim in CLAIMS for rule in claim.rules} <= known
    assert [claim.claim[:17] for claim in claims_about("lost-updates")] == ["In BF16 weights f"]
    script = tmp_path / "train.py"
    script.write_text(MISTAKES["clip-before-unscale"], encoding="utf-8")
    assert main(["check", str(script)]) == 1
    assert "Guides say, wrongly: “scaler.step() unscales, clips" in " ".join(capsys.readouterr().out.split())
