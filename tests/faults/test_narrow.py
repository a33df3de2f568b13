"""Mistakes of narrow formats are named with who is to blame and a fix that mends them; sound loops are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tests.faults import channel_faults, difference_faults
from tests.faults.narrow_faults import NARROW, SOUND
from tests.faults.odd_loops import judged
from tests.faults.published_faults import Open, batches, network

assert channel_faults and difference_faults  # they add to both


@pytest.mark.parametrize("name", NARROW)
def test_that_a_mistake_of_a_narrow_format_is_named_and_its_fix_mends_it(name: str, tmp_path: Path) -> None:
    """The correction of each loop is the fix, in the words of the finding."""
    fault, losses = NARROW[name], list[float]()
    for broken in (True, False):

        def loop(opened: Open, broken: bool = broken) -> None:
            losses.append(fault.train(opened, broken))

        problems = judged(loop, tmp_path / f"{broken}.h5").problems
        answers = {(each.rule, each.precision_is_to_blame) for each in problems}
        assert answers == ({(fault.rule, fault.blame)} if broken else set()), [each.title for each in problems]
        if broken:
            assert all(word in problems[0].fix for word in fault.words), problems[0].fix
    assert fault.left is None or losses[1] < fault.left * losses[0]


@pytest.mark.parametrize("name", SOUND)
def test_that_a_sound_loop_with_narrow_formats_is_left_alone(name: str, tmp_path: Path) -> None:
    found = judged(SOUND[name], tmp_path / "run.h5")
    assert [(each.rule, each.title, each.evidence[0].text) for each in found.problems] == []


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_that_a_logarithm_of_zero_in_fp32_is_not_put_down_to_16_bits(low: torch.dtype, tmp_path: Path) -> None:
    """The targets hold zeros in any format; what autocast computes has small numbers and an epsilon that vanishes."""

    def loop(opened: Open) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        recorder = opened(model, optimizer)
        for step, (x, y) in enumerate(batches(40)):
            wanted = F.one_hot(y, 6).float()
            wanted = wanted if step == 20 else 0.9 * wanted + 0.01
            with torch.autocast("cpu", low):
                outputs = model(x)
                outputs = outputs - 0 * (20 * outputs).softmax(1) / (outputs.norm() + 1e-8)
            loss = (wanted.log() * outputs.float().log_softmax(1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss)

    problems = judged(loop, tmp_path / "run.h5").problems
    assert problems
    assert all(each.precision_is_to_blame is not True for each in problems), [each.title for each in problems]
