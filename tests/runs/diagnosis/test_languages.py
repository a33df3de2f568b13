"""Findings in another language: shown in it, the same English everywhere else."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from copy import deepcopy

import pytest

from precgui import words
from precgui.runs.diagnosis import as_json, blame_sentence, examine
from precgui.words import translated
from tests.runs.diagnosis.hand_made import FALLING, run_of, steps, tensors

BROKEN = [*FALLING[:20], *[math.nan] * 20]
HAN = re.compile(r"[\u4e00-\u9fff]")


@pytest.fixture
def chinese() -> Iterator[None]:
    words.use("zh_CN")
    yield
    words.use("en")


@pytest.mark.parametrize("precision", ["fp32", "fp16-amp"])
def test_that_a_finding_is_chinese_where_it_is_shown_and_english_in_json(precision: str, chinese: None) -> None:
    rows = [tensors(21, "activation", {"head": {"nan": 3.0}})]
    found = examine(run_of([*steps(BROKEN), *rows], precision))
    finding = found.problems[0]
    texts = [finding.title, finding.fix, finding.steps, blame_sentence(finding), found.sentence]
    texts += [text for each in finding.evidence for text in (each.text, each.formula)]
    texts += [each.why for each in found.ruled_out]
    assert [text for text in texts if not HAN.search(translated(text))] == []
    english = json.dumps(as_json(finding))
    assert not HAN.search(english)
    assert translated(deepcopy(finding.title)) == translated(finding.title)
    words.use("en")
    assert english == json.dumps(as_json(examine(run_of([*steps(BROKEN), *rows], precision)).problems[0]))
