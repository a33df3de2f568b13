"""Findings on the profile that is kept beside a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from precgui.runs.diagnosis import examine
from precgui.runs.file.reader import open_run
from precgui.runs.speedup.profile_file import profile_path, write_profile
from tests.cli.test_profile_cli import document
from tests.gui.conftest import write_run
from tests.runs.speedup.test_waterfall import CASES

NAMES = {
    "small products": "products-below-peak", "odd sizes": "odd-sizes", "casts": "cast-tax", "launches": "launch-bound",
    "slow loader": "data-wait", "slow operations": "slower-operations",
}  # fmt: skip
OWN = {*NAMES.values(), "no-memory-saved", "ledger-residual"}


def _examined(folder: Path, profile: dict[str, Any] | None, precision: str = "bf16-amp") -> tuple[list[Any], set[str]]:
    path = write_run(folder / "run.h5", "run", precision)
    if profile is not None:
        write_profile(profile_path(path), profile)
    with open_run(path) as run:
        found = examine(run)
    return [each for each in found.findings if each.rule in OWN], {each.rule for each in found.ruled_out} & OWN


@pytest.mark.parametrize("case", NAMES)
def test_that_the_planted_cause_is_a_finding(tmp_path: Path, case: str) -> None:
    findings, ruled_out = _examined(tmp_path, CASES[case][1])
    assert [found.rule for found in findings] == [NAMES[case]]
    assert ruled_out == {*NAMES.values()} - {NAMES[case]}
    assert findings[0].evidence[0].values["cost"] > 0.1
    assert findings[0].fix


def test_that_a_run_without_a_profile_is_not_asked(tmp_path: Path) -> None:
    assert _examined(tmp_path, None) == ([], set())


def test_that_a_profile_of_another_precision_is_not_used(tmp_path: Path) -> None:
    assert _examined(tmp_path, CASES["casts"][1], "bf16-pure") == ([], set())


def test_that_memory_is_judged(tmp_path: Path) -> None:
    findings, _ = _examined(tmp_path, document())
    assert "ledger-residual" in {found.rule for found in findings}
    same = document()
    same["memory"]["fp32"] = same["memory"]["measured"] = same["memory"]["predicted"]
    findings, ruled_out = _examined(tmp_path / "same", same)
    assert "no-memory-saved" in {found.rule for found in findings}
    assert "ledger-residual" in ruled_out


def test_that_ledgers_that_cannot_be_read_are_not_judged(tmp_path: Path) -> None:
    findings, ruled_out = _examined(tmp_path, {**document(), "memory": {"fp32": 3}})
    assert {found.rule for found in findings} | ruled_out == {*NAMES.values()}
