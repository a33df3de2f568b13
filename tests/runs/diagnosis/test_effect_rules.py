"""Rules on what `precgui quantize` measured: planted faults are found with their numbers, healthy cousins are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from precgui.cli.main import main
from precgui.engine.adapters.weights_file import tensors_of, write_weights
from precgui.formats.checkpoints.contents import open_checkpoint
from precgui.formats.weight_formats import weight_format
from precgui.model_job import scan_model
from precgui.runs.diagnosis import examine
from precgui.runs.diagnosis.effect_rules import EFFECT_RULES
from precgui.runs.diagnosis.findings import Diagnosis
from precgui.runs.file.reader import open_run
from precgui.runs.models.model_file import keep_effects, read_effects
from tests.formats.checkpoint_files import safetensors
from tests.runs.diagnosis.test_checkpoint_rules import healthy

ROOT = Path(__file__).resolve().parents[3]
LAYERS = ("layers.0.q_proj", "layers.0.k_proj", "layers.0.v_proj")
MEASURED: dict[str, Any] = {
    "baseline": {"loss": 1.0}, "samples": 4, "truth": "kl", "whole": [], "layers": [], "rank_agreement": {},
    "ceiling": None, "plan": dict.fromkeys(LAYERS, "int8/row"),
}  # fmt: skip


def diagnosis(folder: Path, **measured: Any) -> Diagnosis:
    model = open_checkpoint(safetensors(folder / "m.safetensors", healthy()))
    scan_model(model, [weight_format("int8/row")], folder / "m.h5", lambda _: None, threads=1)
    keep_effects(folder / "m.h5", model, MEASURED | measured)
    with open_run(folder / "m.h5") as run:
        return examine(run)


def speed(size: int, *ratios: float) -> dict[str, Any]:
    products = [{"inputs": count, "times_as_long": ratio} for count, ratio in zip((1, 64), ratios, strict=True)]
    return {"bytes": size, "fp32_bytes": 4000, "products": products}


def test_that_layers_without_calibration_are_found_with_the_count(tmp_path: Path) -> None:
    [found] = diagnosis(tmp_path, calibration=dict(zip(LAYERS, (512, 0, 512), strict=True))).findings
    assert found.rule == "unreached-layers" and found.severity == "warning" and found.fix
    assert found.tensors == ("layers.0.k_proj.weight",) and "k_proj" in found.title
    assert found.evidence[0].values == {"unreached": 1, "layers": 3, "usual": 512}


def test_that_a_plan_that_saves_bytes_and_no_time_is_told(tmp_path: Path) -> None:
    [found] = diagnosis(tmp_path, speed=speed(1000, 1.25, 1.5)).findings
    assert found.rule == "smaller-not-faster" and found.severity == "info" and found.tensors == LAYERS
    assert found.evidence[0].values == {"bytes": 1000, "fp32_bytes": 4000, "times_as_long": 1.25}


@pytest.mark.parametrize(
    ("measured", "ruled_out"),
    [
        ({"calibration": dict(zip(LAYERS, (512, 1, None), strict=True))}, {"unreached-layers"}),
        ({"speed": speed(1000, 0.6, 1.2)}, {"smaller-not-faster"}),
        ({"speed": speed(4000, 1.2, 1.2)}, {"smaller-not-faster"}),
        ({"speed": None, "calibration": {}}, set()),
        ({}, set()),
    ],
)
def test_that_healthy_measurements_have_no_finding(
    measured: dict[str, Any], ruled_out: set[str], tmp_path: Path
) -> None:
    found = diagnosis(tmp_path, **measured)
    assert found.findings == ()
    assert {each.rule for each in found.ruled_out} & set(EFFECT_RULES) == ruled_out


def test_that_damaged_measurements_are_a_sentence(tmp_path: Path) -> None:
    for odd in ({"speed": {"bytes": "x"}}, {"speed": [1]}, {"calibration": {"a": "b"}}, {"calibration": 3},
                {"speed": speed(1, 1.0, 2.0), "plan": 7}):  # fmt: skip
        found = diagnosis(tmp_path, **odd)
        assert found.why_not and "measurements that cannot be read" in found.why_not
        (tmp_path / "m.h5").unlink()
    diagnosis(tmp_path)
    assert read_effects(tmp_path / "m.h5") is not None


def test_that_every_rule_is_described_for_users() -> None:
    described = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    assert [rule for rule in EFFECT_RULES if f"`{rule}`" not in described] == []


EXPERTS = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.never = nn.Linear(32, 3), nn.Linear(32, 3)
    def forward(self, x):
        return self.used(x) if len(x) else self.never(x)

class Task:
    steps_per_epoch = 1
    def model(self):
        return Model()
    def _batches(self):
        yield torch.randn(16, 32, generator=torch.Generator().manual_seed(0)), torch.zeros(16, dtype=torch.long)
    train_batches = validation_batches = _batches
    def loss(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets)

def make_task(config):
    return Task()
"""


def test_that_a_measured_model_is_diagnosed_by_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(EXPERTS)
    scope: dict[str, Any] = {}
    exec(EXPERTS, scope)
    torch.manual_seed(0)
    write_weights(tensors_of(scope["Model"]()), tmp_path / "m.safetensors")
    kept = tmp_path / "m.h5"
    words = (str(tmp_path / "m.safetensors"), "--task", f"{tmp_path / 'mine.py'}:make_task", "--formats", "int8/row")
    options = ("--round", "weights", "--singles", "0", "--budget", "bits=9", "-o", str(kept), "--json")
    assert main(["quantize", *words, *options]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["calibration"] == {"used": 16, "never": 0} and len(printed["speed"]["products"]) == 2
    assert main(["diagnose", str(kept), "--json"]) == 1
    rules = [each["rule"] for each in json.loads(capsys.readouterr().out)["findings"]]
    assert "unreached-layers" in rules
    assert isinstance(read_effects(kept).speed.ratios, tuple)
