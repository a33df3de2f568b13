"""A loss scale of 0 in a proof, its curve and its words."""

from __future__ import annotations

import math

from precgui.gui.panels.diagnose.sparkline import summary
from precgui.runs.diagnosis import examine
from tests.runs.diagnosis.hand_made import FALLING, run_of, steps


def test_that_a_scale_of_zero_is_printed_as_zero_and_no_search_is_called_healthy_in_a_lost_run() -> None:
    lost = [True, True, False, False, *[True] * 1200]
    scales = [2.0**16, 2.0**15, *[2.0**14] * 2, *(2.0 ** (14 - k) for k in range(1200))]
    assert scales[-1] == 0.0
    losses = (FALLING * 1204)[: len(lost)]
    result = examine(run_of(steps(losses, scale=scales, skipped=[float(each) for each in lost]), "fp16-amp"))
    assert "warm-up" not in {each.rule for each in result.findings}
    (collapse,) = [each for each in result.findings if each.rule == "scale-collapse"]
    proof = collapse.evidence[0]
    assert proof.text.endswith("to 0.")
    assert proof.signal == "log2 of the loss scale"
    assert proof.series[-1][1] == -math.inf
    said = summary(proof)
    assert "-996" not in said
    assert "the loss scale is 0 at " in said
    assert said.endswith("the last among them")
