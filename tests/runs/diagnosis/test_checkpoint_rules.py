"""Rules on trained models: each planted fault is found with its numbers, and a healthy model has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from precgui.cli.main import main
from precgui.formats.checkpoints.contents import open_checkpoint
from precgui.formats.weight_formats import weight_format
from precgui.model_job import scan_model
from precgui.runs.diagnosis import examine
from precgui.runs.diagnosis.checkpoint_rules import CHECKPOINT_RULES
from precgui.runs.diagnosis.findings import Diagnosis
from precgui.runs.file.reader import open_run
from tests.formats.checkpoint_files import Tensors, safetensors

ROOT = Path(__file__).resolve().parents[3]
BF16 = ml_dtypes.bfloat16
FORMATS = ("int8/row", "e4m3fn/row", "int4/128")


def matrix(seed: int, rows: int = 64, inputs: int = 256) -> Any:
    return (0.05 * np.random.default_rng(seed).standard_normal((rows, inputs))).astype(BF16)


def diagnosis(folder: Path, tensors: Tensors, formats: tuple[str, ...] = FORMATS) -> Diagnosis:
    model = open_checkpoint(safetensors(folder / "m.safetensors", tensors))
    scan_model(model, [weight_format(name) for name in formats], folder / "m.h5", lambda _: None, threads=1)
    with open_run(folder / "m.h5") as run:
        return examine(run)


def healthy() -> dict[str, tuple[str, Any]]:
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    return {f"layers.0.{name}.weight": ("BF16", matrix(seed)) for seed, name in enumerate(names)}


def test_that_a_healthy_model_has_no_finding(tmp_path: Path) -> None:
    found = diagnosis(tmp_path, healthy())
    assert found.findings == () and found.undecided == () and found.verdict == "healthy"
    assert "looked for in 4 tensors" in found.sentence
    assert {each.rule for each in found.ruled_out} >= {"nonfinite-weights", "outlier-columns", "wide-keys"}
    assert all(any(letter.isdigit() for letter in each.why) or "none" in each.why for each in found.ruled_out)


def planted(rule: str) -> dict[str, tuple[str, Any]]:
    tensors = healthy()
    _, k, v, o = tensors
    values = matrix(9).astype(np.float32)
    match rule:
        case "nonfinite-weights":
            values[3, 5] = np.nan
            values[4, :2] = np.inf
            tensors[o] = ("F32", values + np.float32(1e-9))
        case "outlier-columns":
            values[:, [3, 7]] *= 40
            tensors[o] = ("BF16", values.astype(BF16))
        case "wide-keys":
            values[5] *= 20
            tensors[k] = ("BF16", values.astype(BF16))
        case "beyond-fp16":
            values[0, :3] = [64000, 65536, -1e9]
            tensors[o] = ("BF16", values.astype(BF16))
        case "flushed-in-fp16":
            values[:32] *= 1e-9
            tensors[o] = ("BF16", values.astype(BF16))
        case "stored-twice":
            tensors["lm_head.weight"] = tensors[o]
        case "wider-than-values":
            tensors[o] = ("F32", values)
        case "odd-groups":
            tensors[o] = ("BF16", matrix(9, inputs=200))
        case "uncalibrated-scales":
            tensors["layers.0.attn.k_scale"] = tensors["layers.0.attn.v_scale"] = ("F32", np.ones((), np.float32))
        case "missing-scales":
            tensors["layers.0.up_proj.weight_packed"] = ("I32", np.zeros((64, 32), np.int32))
        case "unequal-parts":
            tensors[v] = ("F16", matrix(9).astype(np.float16))
    return tensors


PROOFS: dict[str, tuple[str, dict[str, Any]]] = {
    "nonfinite-weights": ("o_proj", {"nan": 1, "inf": 2, "tensors": 1}),
    "outlier-columns": ("o_proj", {"tensors": 1}),
    "wide-keys": ("k_proj", {}),
    "beyond-fp16": ("o_proj", {"count": 2, "amax": float(BF16(1e9))}),
    "flushed-in-fp16": ("o_proj", {"share": 0.5}),
    "stored-twice": ("o_proj", {"bytes": 64 * 256 * 2, "groups": 1}),
    "wider-than-values": ("o_proj", {"bytes": 64 * 256 * 2, "tensors": 1}),
    "odd-groups": ("o_proj", {"inputs": 200, "formats": "int4/128"}),
    "uncalibrated-scales": ("k_scale", {"scales": 2}),
    "missing-scales": ("up_proj", {"tensors": 1, "packed": 1}),
    "unequal-parts": ("q_proj", {"groups": 1, "of": 1}),
}


@pytest.mark.parametrize("rule", PROOFS)
def test_that_a_planted_fault_is_found_with_its_numbers(rule: str, tmp_path: Path) -> None:
    found = {each.rule: each for each in diagnosis(tmp_path, planted(rule)).findings}
    beside = {"outlier-columns"} if rule == "beyond-fp16" else set()  # one number makes a column wide
    assert set(found) - beside == {rule}
    each = found[rule]
    name, values = PROOFS[rule]
    assert name in each.module and each.module in each.tensors and each.fix and each.steps == "weights"
    [proof] = each.evidence
    for key, value in values.items():
        assert proof.values[key] == (value if isinstance(value, str) else pytest.approx(value, rel=0.01)), key
    if rule == "outlier-columns":
        assert set(str(proof.values["columns"]).split(", ")) == {"3", "7"}
        assert proof.values["int8_db"] < proof.values["e4m3fn_db"]
        rows = planted(rule)["layers.0.o_proj.weight"][1].astype(np.float64)

        def error(part: Any) -> float:
            scale = np.abs(part).max(1, keepdims=True) / 127
            return float(np.square(part - np.rint(part / scale) * scale).sum())

        share = 1 - error(np.delete(rows, [3, 7], 1)) / error(rows)
        assert proof.values["share"] == pytest.approx(share, abs=1e-3) and share > 0.99
        assert "2 of 256 columns make 100 %" in proof.text or "2 of 256 columns make 99" in proof.text


def test_that_every_rule_is_planted_here_and_described_for_users() -> None:
    assert set(PROOFS) == set(CHECKPOINT_RULES)
    described = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    assert [rule for rule in CHECKPOINT_RULES if f"`{rule}`" not in described] == []


def test_that_constants_are_neither_duplicates_nor_too_wide(tmp_path: Path) -> None:
    norms = {f"norm.{n}.weight": ("F32", np.ones(256, np.float32)) for n in range(2)}
    assert diagnosis(tmp_path, healthy() | norms).findings == ()


def test_that_a_scan_without_the_formats_cannot_tell(tmp_path: Path) -> None:
    found = diagnosis(tmp_path, planted("outlier-columns"), ("int4/32",))
    assert [(each.rule, each.needs) for each in found.undecided] == [
        ("outlier-columns", "a scan in int8/row and e4m3fn/row")
    ]


def test_that_the_command_line_names_the_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diagnosis(tmp_path, planted("nonfinite-weights"))
    assert main(["diagnose", str(tmp_path / "m.h5")]) == 1
    printed = capsys.readouterr().out
    assert (
        "NaN or Inf in layers.0.o_proj.weight (nonfinite-weights, weights)" in printed
        and "1 NaN and 2 infinite numbers" in printed
    )
    assert main(["diagnose", str(tmp_path / "m.h5"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["evidence"][0]["values"]["nan"] == 1
