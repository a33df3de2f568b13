"""The fix that a finding proposes mends the training in which its fault is planted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.catalogue import plants
from tests.faults.fixes import REMEDIES
from tests.faults.matrix import harm, judge_plant
from tests.faults.training import progress


@pytest.mark.parametrize("rule", sorted(REMEDIES))
def test_that_the_fix_of_a_finding_mends_the_training(rule: str, tmp_path: Path) -> None:
    remedy = REMEDIES[rule]
    plant = next(each for each in plants() if each.name == remedy.plant)
    case = judge_plant(tmp_path, plant)
    findings = [each for each in case.diagnosis.findings if each.rule == rule]
    assert findings, [(each.rule, each.title) for each in case.diagnosis.findings]
    mended = remedy.apply(plant.setting, findings[0])
    assert mended != plant.setting
    left = harm(progress(mended), progress(plant.twin))
    assert left < min(remedy.left, case.harm), (left, case.harm, findings[0].fix, findings[0].config_change)
