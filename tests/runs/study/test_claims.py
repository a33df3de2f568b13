"""Claims of guides beside a study: each word, and that every shipped claim can be judged."""

import pytest

from precgui.config import PRECISIONS
from precgui.runs.study.claims import ClaimResult, judge_claims
from precgui.runs.study.groups import make_study
from precgui.runs.study.guide_claims import claims_of, guide_claims
from tests.runs.study.sample_runs import arm

SEEDS = [0.90, 0.91, 0.89, 0.92, 0.90]


def _judged(**changes: object) -> dict[str, ClaimResult]:
    runs = [*arm("fp32", SEEDS), *arm("bf16-amp", SEEDS, **changes)]
    return {result.id: result for result in judge_claims(make_study(runs), runs)}


def test_that_every_claim_is_whole_and_about_a_precision_that_there_is() -> None:
    claims = guide_claims()
    assert 18 <= len(claims) <= 45
    assert len({claim.id for claim in claims}) == len(claims)
    for claim in claims:
        assert set(claim.precisions) <= set(PRECISIONS)
        assert claim.sentence.endswith(".")
        assert claim.source
        assert ("not opened" in claim.cited) != claim.was_read
        assert claim.url.startswith("https://") or "without a known address" in claim.source
        assert claim.low is not None or claim.high is not None
        assert set(claim.conditions) <= {"device", "device_name"}
    assert [claim.id for claim in claims_of("int8-qat")] == ["int8-accuracy", "int8-exceeds", "guide-accuracy-int8"]


@pytest.mark.parametrize(
    ("changes", "claim", "verdict"),
    [
        ({"memory_bytes": 500.0}, "autocast-memory", "holds here"),
        ({"memory_bytes": 900.0}, "autocast-memory", "does not hold here"),
        ({"step_s": 0.004}, "bf16-speed", "holds here"),
        ({}, "bf16-speed", "does not hold here"),
        ({}, "amp-accuracy-target", "holds here"),
        ({}, "amp-energy", "not tested here"),
        ({}, "fp8-accuracy", "not tested here"),
        ({}, "no-failure", "not decided here"),
        ({"emulated": "in FP32"}, "bf16-speed", "not tested here"),
        ({"step_s": 0.0065}, "guide-time-bf16", "holds here"),  # of 0.01 s in FP32: 35 % less
        ({"step_s": 0.004}, "guide-time-bf16", "does not hold here"),
        ({}, "guide-accuracy-bf16", "does not hold here"),
        ({}, "guide-time-tf32", "not tested here"),
    ],
)
def test_that_each_word_is_said_where_it_belongs(changes: dict[str, object], claim: str, verdict: str) -> None:
    assert _judged(**changes)[claim].verdict == verdict


def test_that_what_is_not_tested_says_why() -> None:
    judged = _judged(emulated="in FP32")
    assert judged["bf16-speed"].why == "emulated here"
    assert judged["fp8-accuracy"].why == "no runs in fp8"
    assert judged["amp-energy"].why in ("no value was measured", "emulated here")
    assert all(result.why or result.measured for result in judged.values())


def test_that_a_claim_about_gpus_is_not_tested_on_a_cpu() -> None:
    runs = [*arm("fp32", SEEDS), *arm("fp16-amp", SEEDS)]
    judged = {result.id: result for result in judge_claims(make_study(runs), runs)}
    assert judged["amp-speed-recipe"].why == "the claim is about a GPU, this was CPU"


def test_that_claims_are_about_fp32_as_baseline() -> None:
    runs = [*arm("tf32", SEEDS), *arm("bf16-amp", SEEDS)]
    judged = judge_claims(make_study(runs), runs)
    assert {result.verdict for result in judged} == {"not tested here"}
