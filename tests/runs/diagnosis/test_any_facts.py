"""A run file is data: whatever stands in place of a number in a row of its facts, no rule raises."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from precgui.runs.diagnosis.examine import RULES
from precgui.runs.diagnosis.measurements import Measurements
from precgui.runs.diagnosis.rule import Rule
from precgui.runs.live import LiveRun
from precgui.runs.recorded_facts import FACTS, number, whole
from tests.runs.diagnosis.hand_made import run_of, steps

MISSING = "missing"
VALUES: tuple[Any, ...] = (MISSING, None, math.nan, math.inf, -math.inf, -1, 0, 10**400, "text", [], {}, [None])
CAUSE = {
    "verdict": "problems", "blame": True, "message": "m", "ideal_error": 0.01, "left_out_by": "where", "notes": [],
    "operations": [{"line": "a.py:3", "module": "0", "operation": "sub", "backward": False, "format": "bf16",
                    "share": 0.9, "kind": "cancellation"}],
    "first_nonfinite": {"operation": "sqrt", "module": "0", "line": "a.py:3", "backward": True},
    "overflows": "fp32",
    "cancelled": {"line": "a.py:3", "module": "0", "operation": "sub", "format": "fp32", "of": 1.0, "times": 2e4,
                  "kind": "cancellation in fp32"},
}  # fmt: skip
UPDATES = {
    "weights": 4, "elements": 64, "finite": True, "finite_in_fp64": True, "error": 0.9, "along": 0.1, "norm": 1.0,
    "worst": "0.weight", "format": "bf16", "kept_elsewhere": 0.0, "left_when_stored_in_fp64": 0.1,
    "made_at": {"line": "a.py:4", "left": 0.1, "formats": ["bf16"]},
}  # fmt: skip
BROKEN = {"finite": False, "finite_in_fp64": True, "cause": {
    "blame": True, "made_by": "div", "line": "a.py:4", "culprit": "mul", "culprit_line": "a.py:3"}}  # fmt: skip
EXACT = {
    "step": 2, "operations": 40, "seconds": 0.1, "loss": 2.0, "loss_fp64": 1.0, "finite": True, "finite_in_fp64": True,
    "gradient_error": 0.9, "cause": CAUSE, "updates": UPDATES, "reads_ahead": False,
    "next_token": {"loss": 0.1, "hidden": 2.0, "others": 0.0, "position": 4, "sequences": 8},
    "softmax_over_batch": {"operation": "_softmax", "line": "a.py:5", "module": "", "samples": 8, "classes": 3},
    "choices": [{"operation": "argmin", "line": "a.py:6", "module": "", "format": "bf16", "choices": 64,
                 "candidates": 64, "changed": 0.9, "tied": 0.8, "regret": 0.5}],
}  # fmt: skip
NOT_FINITE = {
    "step": 40, "finite": False, "finite_in_fp64": False, "cause": {**CAUSE, "blame": False}, "narrow_inputs": False,
    "given": [{"module": "0", "line": "a.py:1", "shape": [4, 4], "nan": True}], "updates": BROKEN,
}  # fmt: skip


def _each_step(row: dict[str, Any], *seen: int) -> list[dict[str, Any]]:
    return [{**row, "step": step} for step in seen or (2, 8, 32, 128)]


UPDATE_SEEN = {"step": 2, "elements": 64.0, "swallowed": 0.95, "intended": 0.1, "infinite": 0.0, "direction": 0.9,
               "weight": 0.01, "void": False, "writes": 8.0}  # fmt: skip
LOST = {"format": "fp16", "share": 0.9, "largest": 1.0, "module": "0", "count": 3}
LEVELS = {"mean": 1e3, "spread": 0.1, "levels": 3, "column": 1, "distance": 8.0}
ROWS: dict[str, list[dict[str, Any]]] = {
    "cancellation": [
        {"step": 2, "module": "0", "use": use, "format": "bf16", "share": 0.9, "elements": 64}
        for use in ("divisor", "amplified", "rounded data", "large data")
    ] + [{"step": 8, "module": None, "use": "rounded_difference", "format": "bf16", "share": 0.9, "elements": 64,
          "count": 2},
         {"step": 8, "module": None, "use": "rounded_ratio", "format": "bf16", "share": 0.6, "elements": 64, "count": 2,
          "largest": 260.0}],
    "stored_updates": [
        {"tensor": "0.weight", "tensors": 2, "format": "bf16", "operation": "lerp", "module": "0", "optimizer": False,
         "steps": _each_step(UPDATE_SEEN)},
        {"tensor": "", "tensors": 1, "format": "fp16", "operation": "add", "module": None, "optimizer": True,
         "steps": _each_step({**UPDATE_SEEN, "infinite": 0.5})},
    ],
    "integers": [
        {"use": "angle", "kind": "ramp", "format": "bf16", "merged": 0.5, "largest": 512.0, "module": "0", "step": 2,
         "radians": 500.0},
        {"use": "index", "kind": "cast", "format": "fp32", "merged": 0.5, "largest": 2e9, "module": "0", "step": 2},
    ],
    "broadcast_loss": [{"operation": "sub", "samples": 8, "step": 2, "column": "[8, 1]", "vector": "[8]"}],
    "lost_values": [
        {"operation": "cast", **LOST, "step": 2},
        {"operation": "overflowing_cast", **LOST, "numbers": 64, "infinite": 1, "step": 40},
        {"operation": "coarse cast", **LOST, "step": 2},
        {"operation": "wrapped add", **LOST, "format": "uint8", "step": 2},
        {"operation": "coarse rounding", **LOST, **LEVELS, "step": 2},
        {"operation": "short_data", **LOST, **LEVELS, "step": 2},
        {"operation": "coarse_scores", **LOST, **LEVELS, "step": 2},
        {"operation": "unit_decay", **LOST, "gap": 1e-3, "times": 64, "is_old": True, "step": 2},
        {"operation": "bounded_sum", **LOST, "made_by": "exp", "step": 2},
    ],
    "narrow_casts": [{"format": "fp16", "step": 2}],
    "applied_twice": [{"function": "softmax", "operation": "log_softmax", "module": "0", "step": 2}],
    "rounded_weights": [{"tensor": "0.weight", "steps": _each_step({"error": 0.9, "kept": 0.1})}],
    "rounded_activations": [{"module": "0", "operation": "round", "step": 2}],
    "quantised_values": [{"module": "0", "optimizer": False, "operation": "e4m3fn", "step": 2, "share": 0.9,
                          "lost": 0.9, "largest": 9.0, "lowest": 0.0, "highest": 1.0}],
    "loss_operations": [{"operation": "log", "line": "a.py:3", "format": "fp32", "distance": 0.01, "nearest": 2,
                         "step": 8, "count": 2}],
    "unscaled_again": [{"step": 8, "count": 2, "tensors": 4, "of": 4}],
    "lost_channels": [{"module": "0", "weights": False, "steps": _each_step(
        {"channels": 12, "lost": 11, "largest": 1600.0, "usual": 3.0, "step_size": 12.6})}],
    "finite_in_fp32": [
        {"use": use, "kind": "overflow", "made_by": "sum", "made_in": None, "operation": "div", "format": "fp16",
         "value": 1e5, "module": None, "step": step}
        for use in ("loss", "hidden", "epsilon", "gradient") for step in (2, 40)
    ] + [
        {"use": "cast", "kind": "overflow", "made_by": "to_copy", "made_in": "0", "operation": "to_copy", "module": "0",
         "format": "e5m2", "value": 6e4, "share": 0.1, "scale": 5.0, "step": 40, "backward": backward}
        for backward in (False, True)
    ],
    "loop_additions": [
        {"format": "bf16", "per_pass": 99.0, "elements": 12, "swallowed": 0.9},
        {"format": "bf16", "per_pass": 1.0, "elements": 12, "swallowed": 0.9, "operation": "index_add_", "exact": 300.0,
         "value": 256.0},
    ],
    "constant_answers": _each_step(
        {"loss": 2.3, "constant": 2.3, "kind": "cross entropy", "samples": 64, "best": 1.0, "void": False, "class": 0,
         "share": 0.95, "of_layer": True, "classes": 10, "alike": 0.9, "alike_in_all": 0.2}
    ),
    "gradient_edits": _each_step(
        {"format": "levels", "levels": 200, "share": 0.9, "lost": 0.9, "tensors": ["0.weight"], "parameters": 2,
         "of": 2, "largest": 1.0, "threshold": 0.1}
    ),
    "late_edits": _each_step({"factor": 0.5}),
    "cleared_gradients": _each_step({"largest": 1.0, "of": 2, "removed": 0}),
    "rewritten_weights": _each_step(
        {"format": "bf16", "parameters": 2, "of": 2, "tensors": ["0.weight"], "error": 1.0, "update": 1.0, "made": 0.1}
    ),
    "discarded_passes": _each_step({"passes": 8, "optimizer": "Adam"}),
    "reloaded_weights": [
        {"kind": kind, "module": "0", "step": 40, "since": 8, "count": 1, "parameters": 4} for kind in ("kept", "own")
    ],
    "emptied_moments": _each_step({"format": "fp16", "parameters": 2, "lost": 50, "of": 64, "largest": 1.0}),
    "zero_state": _each_step(
        {"state": "exp_avg_sq", "format": "fp16", "parameters": 2, "lost": 50, "of": 64, "update": 1.0, "usual": 0.01}
    ),
    "narrow_state": [{"state": "codes", "format": "uint8"}, {"operation": "round", "format": "fp32", "step": 2}],
    "singular_points": [
        {"step": 40, "module": "0", "line": "a.py:3", "operation": "log1p", "format": "bf16", "output": 6.5,
         "operand": -1.0, "wide": -0.998}
    ],
    "early_divisions": [{"step": 2, "scale": 16384.0, "parameters": 6}],
    "hidden_parameters": [{"parameters": 2, "elements": 64, "trained": 8, "modules": ["0"], "step": 8}],
    "untrained_parameters": [{"names": ["0.weight"], "parameters": 1, "step": 8}],
    "policy_ratios": [{"step": 8, "count": 2, "share": 0.95, "low": 0.8, "high": 1.2, "numbers": 64},
                      {"step": 8, "count": 2, "of_itself": True, "numbers": 64}],
    "heavy_dropouts": [{"module": "2", "probability": 0.9, "calls": 2, "step": 128}],
    "bounded_logits": [
        {"step": 8, "count": 2, "classes": 64, "size": 0.07, "factor": 0.07, "least": 4.02, "loss": 4.1}
    ],
    "foreign_samples": [{"step": 8, "count": 2, "module": "", "shape": [64, 1]}],
    "cut_samples": [{"step": 8, "count": 2, "module": "encoder", "shape": [64, 8]}],
    "terms_without_gradient": [
        {"step": 8, "count": 2, "operation": "argmax", "line": "a.py:3", "value": 4.0, "rest": 0.1}
    ],
    "unused_terms": _each_step({"terms": 2, "unused": 1, "optimizer": "Adam", "reaches": ["1.weight"]}),
    "clipped_objectives": [{"step": 8, "count": 2, "operation": "minimum", "numbers": 64}],
    "shifted_targets": [{"step": 8, "count": 2, "tokens": 640, "shorter": True}],
    "unshifted_targets": _each_step({"positions": 64}),
    "batches": _each_step(
        {"input": "0", "samples": 8, "numbers": 8, "alike": True, "short": True, "holes": True}, 1, 2, 8, 32, 128
    ),
    "broken_batches": [
        {"step": 40, "input": "0", "numbers": 64, "nan": 3, "infinite": 1, "format": "fp16"},
        {"step": 40, "input": "labels", "numbers": 64, "ignored": 64},
    ],
    "repeated_batch": [{"steps": 40, "samples": 8, "moves": True, "evaluated": 64}],
    "first_products": _each_step(
        {"module": "0", "samples": 64, "columns": 8, "rms": 200.0, "mean": 1.0, "spread": 200.0, "largest": 900.0,
         "largest_column": 2e5, "usual_column": 1.0, "column": 2, "divided_twice": True, "result_rms": 99.0,
         "result_spread": 99.0}
    ),
    "target_ranges": [
        {"step": step, "kind": kind, "function": "sigmoid", "module": "0", "numbers": 64, "low": -9.0, "high": 255.0,
         "mean": 90.0, "spread": 50.0, "beyond": 0.9, "lost": 0.9, "output_mean": 0.5, "output_spread": 0.1}
        for step in (2, 8, 32, 128) for kind in ("squared error", "binary cross entropy")
    ],
    "softmax_axes": [
        {"module": "0", "step": 2, "count": 3, "normalised": 8, "summed": 8, "least": 0.1, "largest": 9.0}
    ],
    "loss_arguments": [
        {"step": step, "module": "0", "loss": "nll_loss", "mistake": mistake, "low": 0.0, "high": 1.0, "share": 0.9}
        for step in (2, 8) for mistake in ("probabilities", "scores", "negative_targets", "zero_targets",
                                           "clamped_scores")
    ],
    "mixed_axes": [
        {"step": 2, "kind": kind, "module": "0", "from": "linear", "shape": [8, 4, 4], "size": 4}
        for kind in ("heads", "classes")
    ],
    "sequence_axes": [
        {"step": 2, "module": "lstm", "kind": "LSTM", "shape": [8, 4, 6], "batch_first": False, "use": use, "rows": 8,
         "place": 3}
        for use in ("mean", "place")
    ],
    "loss_terms": _each_step(
        {"terms": [{"is_fit": True, "numbers": 64, "weight": 0.01, "value": 2.3},
                   {"is_fit": False, "numbers": 8, "weight": 1.0, "value": 1e-3}]}
    ),
    "bootstrapped_targets": _each_step(
        {"discount": 0.9, "samples": 64, "ends": 8, "reward_at_ends": 1.0, "reward_elsewhere": 0.0, "unusual": 8}
    ),
    "unleft_states": [
        {"step": 32, "count": 3, "samples": 160, "states": 9, "unleft": 2, "unleft_samples": 25, "rewarded_samples": 13,
         "reward": 1.0, "reward_elsewhere": 0.0}
    ],
    "schedules": [
        {"kind": "plateau", "mode": "max", "best": 2.3, "last_epoch": 2, "factor": 1.0, "patience": 10},
        {"kind": "schedule", "rate": 1e-3, "base_rate": 0.1},
        {"kind": "planned", "planned": 200, "done": 10, "steps": 200, "peak": 1.0},
        {"kind": "lambda", "rate": 1e-4, "base_rate": 0.01},
    ],
    "kept_statistics": [{"step": 2, "module": "0"}],
    "exponents": [{"step": 40, "module": "0", "line": "a.py:3", "format": "fp32", "low": -9.0, "high": 99.0}],
    "masked_rows": [{"step": 40, "module": "0", "line": "a.py:3", "rows": 3, "of": 8}],
    "flat_units": [
        {"module": "0", "function": function, "share": 0.9, "step": 128, "of": 2} for function in ("tanh", "relu")
    ],
    "exact_steps": [*({**EXACT, "step": step} for step in (2, 8, 32)), NOT_FINITE],
    "nonfinite_operations": [
        {"operation": operation, "kind": kind, "format": "fp16", "line": "a.py:3", "low": low, "high": 9.0,
         "epsilon": low, "source": source, "culprit": culprit, "step": 40}
        for operation in ("div", "_softmax")
        for kind in ("nan", "inf")
        for low in (1e-12, None)
        for source in (None, {"operation": "log", "kind": "-inf", "line": "a.py:2"}, {"operation": "", "line": "a.py"})
        for culprit in ("operation", "source", "")
    ],
    "fp32_repetition": [
        {"finite": finite, "module": "0", "largest": 9.0, "why": "", "part": "forward", "step": 40, "cast": cast}
        for finite in (True, False)
        for cast in (None, {"format": "e5m2", "value": 6e4, "share": 0.1, "scale": 5.0}, {"format": "e5m2"})
    ],
}  # fmt: skip
WHOLE: dict[str, dict[str, Any]] = {  # facts without rows
    "census": {
        "operations": {"fp16": {"log": 3, "mm": 2}}, "angle": {"radians": 500.0, "format": "bf16", "module": "0"},
        "additions": {"0": {"format": "bf16", "per_pass": 9.0, "elements": 12, "swallowed": 0.9}},
        "scattered": {"0": {"format": "bf16", "operation": "index_add_", "elements": 12, "swallowed": 0.9,
                            "exact": 300.0, "value": 256.0, "per_pass": 1}},
        "optimizer_loss": {"elements": 64, "share": 0.9, "operation": "mul", "operation_share": 0.9},
        "flops": 10, "formats": {"fp16": 1.0}, "modules": {"0": {"fp16": 1.0, "share": 1.0}},
    },
    "loop": {
        "gradients_cleared": False, "stepped_twice": True, "opposed_gradients": {"compared": 9, "opposed": 9},
        "evaluation_mode_since": 3, "always_in_evaluation": True, "master_weights": 2, "past_scaler": True,
        "still_scaled": True, "stale_casts": True, "unscaled_twice": True, "mixed_roots": True, "unscaled_root": True,
        "scaled_penalty": True,
    },
    "scaler": {"initial_scale": 128.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000,
               "enabled": True, "used": False},
    "autocast": {"enabled": True, "dtype": "fp16", "modules_inside": 3},
}  # fmt: skip
FALLS = [2.0 * 0.99**place for place in range(160)]
COURSES = (FALLS, [2.3] * 160, [*FALLS[:39], math.nan, *FALLS[40:]])


class _Noted(Measurements):
    """Notes which facts a rule reads."""

    read: set[str]

    def fact(self, name: str) -> Mapping[str, Any]:
        self.read.add(name)
        return super().fact(name)

    def fact_rows(self, name: str) -> list[Mapping[str, Any]]:
        self.read.add(name)
        return super().fact_rows(name)


def _run(losses: list[float]) -> LiveRun:
    """A run that has all facts."""
    norms = [math.nan if math.isnan(each) else 1.0 for each in losses]
    recorder = {"optimizers": [{"name": "Adam", "lr": 1e-3, "eps": 1e-8}]}
    return run_of(steps(losses, grad_norm=norms), "fp16-amp", recorder=recorder, **_all_facts())


def _all_facts() -> dict[str, Any]:
    return {name: {"all": rows} for name, rows in ROWS.items()} | WHOLE


def _readers(name: str, run: LiveRun) -> list[Rule]:
    """The rules that read a fact."""
    readers = []
    for rule in RULES:
        m = _Noted(run)
        m.read = set()
        rule.judge(m)
        if name in m.read:
            readers.append(rule)
    return readers


def _changed(value: Any) -> Iterator[Any]:
    """The value with another one in place of one of its own, however deep; of lists the first and the last one."""
    last = {0: value[0], len(value) - 1: value[-1]} if isinstance(value, list) and value else {}
    for place, own in (value if isinstance(value, dict) else last).items():
        for other in VALUES:
            changed = copy.copy(value)
            if other is MISSING:
                del changed[place]
            else:
                changed[place] = other
            yield changed
        for inner in _changed(own):
            changed = copy.copy(value)
            changed[place] = inner
            yield changed


@np.errstate(all="ignore")
@pytest.mark.parametrize("name", [*ROWS, *WHOLE])
def test_that_no_value_of_a_fact_raises(name: str) -> None:
    for losses in COURSES:
        run = _run(losses)
        readers = _readers(name, run)
        for each in _changed(_all_facts()[name]):
            run.environment = {**run.environment, name: each}
            for rule in readers:
                rule.judge(Measurements(run))


def test_that_every_fact_with_rows_is_tried() -> None:
    of_no_rule = {"certificate", "record", "precision", "autocast"}
    assert set(FACTS) - of_no_rule <= {*ROWS, *WHOLE}


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_that_a_number_of_a_row_is_one(value: Any) -> None:
    row = {} if value is MISSING else {"step": value}
    assert isinstance(number(row, "step"), float)
    assert isinstance(whole(row, "step"), int) and abs(whole(row, "step")) < 2**63
    is_number = isinstance(value, int | float) and abs(value) < 10**300
    assert is_number or not math.isfinite(number(row, "step", math.nan))
