"""The model, the dtypes and the facts that a run records, through a file and live; and files that do not have them."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import h5py
import numpy as np
import pytest

import precgui
from precgui.config import RunConfig
from precgui.events import (
    EXPONENT_BINS,
    TENSOR_STATS,
    Event,
    Facts,
    ModelDescribed,
    ModuleInfo,
    ParameterInfo,
    RunEnded,
    RunStarted,
    StepDone,
    TensorStats,
)
from precgui.hardware.readings import Missing
from precgui.runs.file.repair import repair
from precgui.runs.file.schema import TABLES
from precgui.runs.recorded_facts import FACTS, fact, measurement_counts
from tests.runs.synthetic import live_run, open_writer, synthetic_events

DESCRIBED = ModelDescribed(
    0.2,
    (
        ModuleInfo("", "mine.Net", 2),
        ModuleInfo("größe", "torch.nn.modules.linear.Linear", 0),
        ModuleInfo("idle", "torch.nn.modules.linear.Linear"),
    ),
    (
        ParameterInfo("größe.weight", "parameter", "fp32", (4, 8), True, True, 1),
        ParameterInfo("größe.bias", "parameter", "fp32", (4,), True, True, 0),
        ParameterInfo("norm.running_mean", "buffer", "fp32", (4,), False, False),
        ParameterInfo("temperature", "parameter", "bf16", (), False, False),
    ),
)


def stats(step: int, kind: str, names: tuple[str, ...], dtypes: tuple[str, ...]) -> TensorStats:
    values = np.ones((len(names), len(TENSOR_STATS)))
    exponents = np.ones((len(names), EXPONENT_BINS), np.uint32)
    return TensorStats(step, 0.1, kind, names, (1,) * len(names), values.tobytes(), exponents.tobytes(), dtypes)


def events() -> list[Event]:
    return [
        RunStarted(0.0, 2, 1, "cpu", {"scaler": {"used": False}}, tensors=8),
        stats(0, "weight", ("a", "b"), ("fp32", "bf16")),
        StepDone(1, 0.1, 1.0, 1.0, False, 0.1, 1.0, 0.1, 0.0, 8, np.nan, 4, 2),
        DESCRIBED,
        Facts(0.2, {"census": {"unavailable": "the model is compiled"}}),
        stats(1, "gradient", ("b", "a"), ("fp32", "fp32")),
        stats(1, "ema", ("a",), ("fp32",)),
        stats(2, "gradient", ("b", "a"), ("bf16", "fp32")),
        StepDone(2, 0.2, 1.0, 1.0, False, 0.1, 1.0, 0.1, 0.0, 8, np.nan),
        Facts(0.3, {"record": {"measurements": {"gradient": 2}}}),
        RunEnded(0.3, "completed"),
    ]


def write(path: Path, what: list[Event]) -> Path:
    with open_writer(path) as writer:
        for event in what:
            writer(event)
    return path


def test_that_model_dtypes_and_passes_are_kept_and_live(tmp_path: Path) -> None:
    with precgui.open_run(write(tmp_path / "run.h5", events())) as saved:
        for run in (saved, live_run(events())):
            model = run.model()
            assert (model.modules, model.parameters, model.unavailable) == (*_described(), "")
            assert model.forward_order() == ["größe", ""]
            assert model.backward_order() == ["größe.bias", "größe.weight"]
            assert model.module_types["idle"].endswith("Linear")
            assert model.by_name["temperature"].shape == ()
            tensors = run.tensors()
            assert [tensors["gradient"].dtype(name) for name in "abc"] == ["fp32", "bf16", None]
            assert [tensors["weight"].dtype(name) for name in "ab"] == ["fp32", "bf16"]
            assert tensors["ema"].dtype("a") == "fp32"
            assert tensors["weight"].steps().tolist() == [0]
            np.testing.assert_array_equal(run.series("backward_passes")[1], [4, np.nan])
            np.testing.assert_array_equal(run.series("optimizer_steps")[1], [2, np.nan])
            assert measurement_counts(run) == {"gradient": 2}
        assert saved.notes == []


def _described() -> tuple[tuple[ModuleInfo, ...], tuple[ParameterInfo, ...]]:
    return DESCRIBED.modules, DESCRIBED.parameters


def old_file(path: Path) -> Path:
    """A finished run in a file as early versions wrote it."""
    late = [name for name, table in TABLES.items() if table.late]
    with open_writer(path) as writer:
        for event in synthetic_events(60):
            writer(event)
    with h5py.File(path, "r+") as file:
        for column in ("backward_passes", "optimizer_steps"):
            del file[f"steps/{column}"]
        for name in sorted(late, reverse=True):
            del file[name]
        known = [(name, rows) for name, rows in zip(TABLES, file["rows_valid"][:], strict=True) if name not in late]
        del file["rows_valid"]
        counted = file.create_dataset("rows_valid", data=np.array([rows for _, rows in known], "<i8"))
        counted.attrs["tables"] = np.array([name for name, _ in known], "S64")
    return path


def test_that_a_file_of_an_early_version_says_why_nothing_is_there(tmp_path: Path) -> None:
    path = old_file(tmp_path / "old.h5")
    with precgui.open_run(path) as run:
        assert run.steps == 60
        assert run.model().modules == ()
        assert "did not record the model" in run.model().unavailable
        assert np.isnan(run.series("backward_passes")[1]).tolist() == [True] * 60
        assert run.series("samples")[1].tolist() == [64.0] * 60
        assert run.tensors() == {}
        for name in FACTS:
            found = fact(run, name)
            assert isinstance(found, Missing)
            assert found.reason
        assert run.notes == []


def test_that_a_dead_file_of_an_early_version_can_be_repaired(tmp_path: Path) -> None:
    path = old_file(tmp_path / "old.h5")
    with h5py.File(path, "r+") as file:
        for name, text in (("status", b"running"), ("summary", b"{}")):
            file[name][()] = np.array(text, file[name].dtype)
        writer = {"host": socket.gethostname(), "pid": os.getpid(), "process_started": 0.0}
        dead = json.dumps({"writer": writer}).encode()
        del file["environment"]
        file["environment"] = np.array(dead, h5py.string_dtype("utf-8", len(dead)))
    repair(path, "failed", "it died")
    with precgui.open_run(path) as run:
        assert (run.status, run.steps) == ("failed", 60)
        assert np.isnan(run.series("optimizer_steps")[1]).all()


def test_that_facts_say_what_they_are_or_why_they_are_not_there(tmp_path: Path) -> None:
    own = RunConfig(task="own-loop")
    for run in (live_run(events(), own), live_run(events())):
        assert fact(run, "scaler") == {"used": False}
        assert fact(run, "census") == Missing("the model is compiled")
        assert isinstance(fact(run, "autocast"), Missing)
        with pytest.raises(KeyError):
            fact(run, "weather")
    started = live_run([Facts(0.0, {"record": {"looks": {"gradient": 7}}})])
    assert measurement_counts(started) == {"gradient": 7}
    assert measurement_counts(live_run([])) == {}
    assert live_run([]).model().unavailable == "the model is described after the first step"


def test_that_a_model_is_not_yet_described_or_never_was(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    with open_writer(path) as writer:
        writer(RunStarted(0.0, 2, 1, "cpu"))
        with precgui.open_run(path) as run:
            assert run.model().unavailable == "the model is described after the first step"
    with precgui.open_run(path) as run:
        assert run.model().unavailable == "the run ended before its model was described"
