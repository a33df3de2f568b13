"""A representative part of `benchmarks/diagnosis.py`: planted faults are found, the fixes of their findings mend them,
healthy trainings are left alone. A plant that several tests are about is trained once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.catalogue import plants
from tests.faults.fixes import REMEDIES
from tests.faults.healthy import healthy
from tests.faults.matrix import Case, harm, judge_healthy, judge_plant
from tests.faults.plants import Plant
from tests.faults.printed_formulas import false_formulas, formulas
from tests.faults.training import progress

QUICK_PLANTS = (
    "overflow in the forward pass x300000 mlp",
    "overflow in the forward pass x300 mlp",
    "no loss scale, loss x1e-07 mlp",
    "scale of 2^40 at the start mlp",
    "BF16 weights, AdamW at 3e-05 mlp",
    "epsilon vanishes in FP16 mlp",
    "NaN in the data of one step, FP32 mlp",
    "NaN in the data of one step, scaler mlp",
    "root of zero in the loss, scaler mlp",
    "row masked completely gpt",
    "rate x1000 fp32 mlp",
    "rate of zero mlp",
    "clipped before unscaled mlp",
    "optimizer.step() in place of scaler.step() mlp",
    "a second step after a skipped one mlp",
    "scheduler ahead mlp",
    "the optimizer has other tensors mlp",
    "graph cut mlp",
)
QUICK_HEALTHY = (
    "mlp adamw fp16-amp",
    "mlp adamw BF16 storage that learns",
    "mlp warm-up from 2^24",
    "mlp experts never used",
    "mlp LoRA",
    "mlp early spikes",
    "gpt sgd bf16-amp",
    "mlp ends at a rate of zero",
)


Judged = Callable[[str], tuple[Case, Plant]]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """The case of a plant by its name."""
    folder, known = tmp_path_factory.mktemp("plants"), {plant.name: plant for plant in plants()}
    return functools.cache(lambda name: (judge_plant(folder, known[name]), known[name]))


@pytest.mark.parametrize("name", QUICK_PLANTS)
def test_that_a_planted_fault_is_named_and_blamed_rightly(name: str, judged: Judged) -> None:
    case, plant = judged(name)
    assert case.harmful is not plant.weak, case.harm
    assert case.right, [(found.rule, found.module, found.title) for found in case.diagnosis.findings]
    assert not case.wrong_blame
    assert not false_formulas(case.diagnosis.findings)


@pytest.mark.parametrize("rule", sorted(REMEDIES))
def test_that_the_fix_of_a_finding_mends_the_training(rule: str, judged: Judged) -> None:
    remedy = REMEDIES[rule]
    case, plant = judged(remedy.plant)
    findings = [each for each in case.diagnosis.findings if each.rule == rule]
    assert findings, [(each.rule, each.title) for each in case.diagnosis.findings]
    mended = remedy.apply(plant.setting, findings[0])
    assert mended != plant.setting
    left = harm(progress(mended), progress(plant.twin))
    assert left < min(remedy.left, case.harm), (left, case.harm, findings[0].fix, findings[0].config_change)


@pytest.mark.parametrize("name", QUICK_HEALTHY)
def test_that_a_healthy_training_is_left_alone(name: str, tmp_path: Path) -> None:
    case = judge_healthy(tmp_path, name, dict(healthy())[name])
    assert case.right, [(found.rule, found.title, found.evidence[0].text) for found in case.diagnosis.problems]
    assert not false_formulas(case.diagnosis.findings)
    assert case.diagnosis.verdict == "healthy"
    assert len(case.diagnosis.ruled_out) >= 8


def test_that_the_catalogue_is_as_large_as_it_says() -> None:
    everything = plants()
    assert len({plant.name for plant in everything}) == len(everything) >= 80
    assert sum(plant.weak for plant in everything) >= 10
    assert len(healthy()) >= 60


def test_that_a_formula_of_a_finding_is_worked_out_from_its_printed_digits(judged: Judged) -> None:
    case, _ = judged("clipped before unscaled mlp")
    (found,) = [each for each in case.diagnosis.findings if each.rule == "clip-before-unscale"]
    ((norm, scale, product),) = formulas(found.evidence[0].text)
    assert found.evidence[0].values["norm"] == pytest.approx(float(norm), rel=1e-3)
    assert not false_formulas([found])
    wrong = replace(found.evidence[0], text="norm 5.72e-06 times scale 1.966e+05 is 1")
    assert false_formulas([replace(found, evidence=(wrong,))]) == [wrong.text]
    assert scale.startswith("2^")
    assert product
