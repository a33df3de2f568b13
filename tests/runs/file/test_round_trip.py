"""What goes in comes out: events through a file, events through a live run, both the same."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import precgui
from precgui.config import RunConfig
from precgui.events import STEP_SIGNALS, Incident, RunEnded, StepDone
from precgui.runs.file.schema import (  # type: ignore[attr-defined]
    EVENT_ROW,
    FIXED_TEXTS,
    RESERVED_TEXTS,
    ROWS_VALID,
    STATUS,
    TABLES,
    TENSOR_KINDS,
    TENSOR_STATS,
)
from precgui.runs.signals import SIGNALS
from precgui.runs.summary import summarise
from tests.runs.synthetic import live_run, open_writer, synthetic_events


def test_that_every_signal_of_the_file_is_that_of_the_live_run(write: Callable[..., Path]) -> None:
    live = live_run(synthetic_events())
    with precgui.open_run(write()) as saved:
        for name in (*SIGNALS, "power_w:package-0", "energy_j:cuda:0", "utilisation:CPU", "clock_held:CPU"):
            for over in ("step", "time_s"):
                for kept, wanted in zip(saved.series(name, over), live.series(name, over), strict=True):
                    assert kept.dtype == wanted.dtype == np.float64
                    np.testing.assert_array_equal(kept, wanted, err_msg=name)
        assert saved.events() == live.events()
        assert saved.events("nonfinite_gradient") == live.events("nonfinite_gradient") != []
        assert saved.power_devices() == live.power_devices() == ["cuda:0", "package-0"]
        assert saved.state_devices() == live.state_devices() == ["cuda:0", "CPU"]
        assert (saved.total_steps, saved.steps_per_epoch) == (live.total_steps, live.steps_per_epoch) == (300, 25)
        assert saved.notes == []


def test_that_each_value_is_the_one_that_was_emitted(write: Callable[..., Path]) -> None:
    steps = [event for event in synthetic_events() if isinstance(event, StepDone)]
    with precgui.open_run(write()) as saved:
        for name in STEP_SIGNALS:
            values = saved.series(name)[1]
            assert [repr(float(value)) for value in values] == [repr(float(getattr(step, name))) for step in steps]


def test_that_what_the_devices_did_is_kept(write: Callable[..., Path]) -> None:
    with precgui.open_run(write()) as saved:
        time_s, tensor_use = saved.series("tensor_use", "time_s")
        np.testing.assert_allclose(tensor_use, np.arange(20, 301, 20) / 300)
        np.testing.assert_allclose(time_s, 0.05 + np.arange(20, 301, 20) * 0.01)
        assert saved.summary["tensor_use"] == pytest.approx(np.arange(20, 301, 20).mean() / 300)
        assert saved.series("clock_held:cuda:0")[1].tolist() == [0.0, 1.0] * 7 + [0.0]
        assert saved.series("clock_reasons")[1].tolist() == [1.0, 4.0] * 7 + [1.0]
        assert np.isnan(saved.series("tensor_use:CPU")[1]).all()
        assert np.isnan(saved.series("clock_held:CPU")[1]).all()
        np.testing.assert_array_equal(saved.series("utilisation:CPU")[1], tensor_use)


def test_that_cpu_time_and_load_are_kept(write: Callable[..., Path]) -> None:
    with precgui.open_run(write()) as run:
        step, cpu_s = run.series("cpu_s")
        assert np.array_equal(step, run.series("loss")[0])
        assert np.array_equal(cpu_s, np.full(len(step), 0.008))
        time_s, load = run.series("load", "time_s")
        assert len(time_s) == 15
        assert set(load) == {1.5}
        assert set(run.series("cpu_pressure")[1]) == {0.25}


def test_that_a_file_of_today_without_cpu_time_and_load_is_read(write: Callable[..., Path]) -> None:
    path = write()
    with h5py.File(path, "r+") as file:
        names = [name for name in file["rows_valid"].attrs["tables"] if name != b"host"]
        counts = dict(zip(file["rows_valid"].attrs["tables"], file["rows_valid"][:], strict=True))
        del file["rows_valid"], file["steps/cpu_s"], file["host"]
        file["rows_valid"] = [counts[name] for name in names]
        file["rows_valid"].attrs["tables"] = names
    with precgui.open_run(path) as run:
        assert run.notes == []
        assert len(run.series("loss")[1]) == run.steps > 0
        assert np.isnan(run.series("cpu_s")[1]).all()
        assert len(run.series("cpu_s")[1]) == run.steps
        assert len(run.series("load")[1]) == 0


def test_that_nan_and_inf_are_kept(write: Callable[..., Path]) -> None:
    with precgui.open_run(write()) as saved:
        assert np.count_nonzero(np.isnan(saved.series("loss")[1])) == 5
        assert np.count_nonzero(np.isposinf(saved.series("grad_norm")[1])) == 5


def test_that_long_messages_are_kept_whole_and_odd_ones_as_well(tmp_path: Path) -> None:
    messages = ["", "ü" * 5000, "a" * 160, "a" * 161, "b\nc", "🦆" * 50]
    with open_writer(tmp_path / "run.h5") as writer:
        for message in messages:
            writer(Incident(0.0, 1, "note", "info", message, "módulo" * 3))
    with precgui.open_run(tmp_path / "run.h5") as saved:
        assert [event.message for event in saved.events()] == messages
        assert saved.events()[0].module == "módulo" * 3


def test_that_config_machine_and_environment_are_kept(write: Callable[..., Path]) -> None:
    config = RunConfig(title="größer", precision="bf16-amp", seed=3)
    with precgui.open_run(write(config=config)) as saved:
        assert saved.config == config
        assert (saved.title, saved.run_id, saved.created) == ("größer", "7f", "2026-01-02T03:04:05+00:00")
        assert saved.machine == {"devices": [{"name": "a CPU"}]}
        assert saved.environment["python"] == "3.11"
        assert saved.environment["parameters"] == 12345
        assert saved.environment["temperature"] is None
        assert (saved.status, saved.message, saved.device) == ("completed", "all steps done", "cpu")


def test_that_the_summary_has_the_promised_keys_and_figures(write: Callable[..., Path]) -> None:
    events = synthetic_events()
    steps = [event for event in events if isinstance(event, StepDone)]
    with precgui.open_run(write()) as saved:
        summary = dict(saved.summary)
        assert summary == summarise(live_run(events)) == summarise(saved)
    assert list(summary) == [
        "status", "precision", "steps", "final", "metric", "time_s", "before_first_step_s", "step_s_median",
        "samples_per_s",
        "memory_peak_bytes", "energy_j", "tensor_use", "skipped_steps", "nonfinite_events", "nonfinite_since_step",
        "nonfinite_validation",
    ]  # fmt: skip
    last_epoch = [step.loss for step in steps[-25:] if math.isfinite(step.loss)]
    assert summary["final"]["train_loss"] == pytest.approx(sum(last_epoch) / len(last_epoch), rel=1e-12)
    assert summary["final"]["val_accuracy"] == 1 - 1 / 300
    assert (summary["steps"], summary["skipped_steps"], summary["nonfinite_events"]) == (300, 5, 5)
    assert summary["memory_peak_bytes"] == 1_000_300
    assert summary["samples_per_s"] == pytest.approx(6400)
    assert summary["before_first_step_s"] == pytest.approx(0.06 - 0.009)
    # cuda:0 has no counter: power 110 .. 400 W in steps of 10 every 0.1 s; package-0 counts 2 J between readings.
    # The readings span 2.9 s of a run of 3.05 s.
    read_j = 29 * 2 + np.trapezoid(np.arange(110, 401, 10), dx=0.1)
    assert summary["energy_j"] == pytest.approx(read_j * 3.05 / 2.9)


def test_that_a_run_that_ends_on_nan_has_no_final_loss(tmp_path: Path) -> None:
    with open_writer(tmp_path / "run.h5") as writer:
        writer(StepDone(1, 0.1, 1.0, 1.0, False, 0.1, 1.0, 0.1, 0.0, 8, math.nan))
        writer(StepDone(2, 0.2, math.nan, 1.0, False, 0.1, 1.0, 0.1, 0.0, 8, math.nan))
        writer(RunEnded(0.2, "completed"))
    with precgui.open_run(tmp_path / "run.h5") as saved:
        assert saved.summary["final"] == {"train_loss": None, "val_loss": None, "val_accuracy": None}
        assert saved.summary["memory_peak_bytes"] is None
        assert saved.summary["energy_j"] is None


def test_that_a_failure_keeps_its_traceback_even_a_huge_one(tmp_path: Path) -> None:
    details = "first line\n" + "x" * 200_000 + "\nValueError: the last line"
    with open_writer(tmp_path / "run.h5") as writer:
        writer(RunEnded(0.2, "failed", "ValueError at step 3", details))
    with precgui.open_run(tmp_path / "run.h5") as saved:
        assert (saved.status, saved.message) == ("failed", "ValueError at step 3")
        assert saved.details.startswith("first line\n")
        assert saved.details.endswith("\nValueError: the last line")


def test_that_events_of_several_threads_are_all_kept_in_order(tmp_path: Path) -> None:
    def emit(first: int) -> None:
        for step in range(first, first + 500):
            writer(Incident(0.0, step, "note", "info", ""))

    with open_writer(tmp_path / "run.h5") as writer:
        threads = [threading.Thread(target=emit, args=(first,)) for first in (0, 1000, 2000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with precgui.open_run(tmp_path / "run.h5") as saved:
        kept = [event.step for event in saved.events()]
    assert sorted(kept) == [*range(500), *range(1000, 1500), *range(2000, 2500)]
    assert all(
        [step for step in kept if step // 1000 == i] == sorted(s for s in kept if s // 1000 == i) for i in range(3)
    )


def test_that_any_hdf5_tool_reads_the_documented_layout(write: Callable[..., Path]) -> None:
    with h5py.File(write(), "r") as file:
        assert file.attrs["schema"] == 1
        assert file["status"][()] == b"completed"
        assert json.loads(file["config"][()])["precision"] == "fp16-amp"
        assert file["steps/loss"].shape == (300,)
        assert file["events"].dtype.names[:6] == ("time_s", "step", "kind", "severity", "module", "message")
        rows = dict(zip(file["rows_valid"].attrs["tables"], file["rows_valid"][:], strict=True))
        assert rows[b"steps"] == 300


def test_that_reading_needs_neither_torch_nor_qt(write: Callable[..., Path]) -> None:
    code = (
        "import sys, precgui; r = precgui.open_run(sys.argv[1]); r.series('loss'); r.events();"
        "sys.exit(any(name in sys.modules for name in ('torch', 'PySide6')))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(write())], check=False).returncode == 0


def test_that_an_unknown_signal_is_a_key_error(write: Callable[..., Path]) -> None:
    with precgui.open_run(write()) as saved:
        for name in ("lost", "power_w:nobody", "tensor_use:nobody", "loss:cuda:0"):
            with pytest.raises(KeyError):
                saved.series(name)


def test_that_the_reading_example_of_the_manual_works(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manual = (Path(__file__).parents[3] / "docs" / "run-file.md").read_text(encoding="utf-8")
    example = manual.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(write().parent)
    exec(example, {})
    shown = capsys.readouterr().out
    assert shown.startswith("completed fp16-amp\n")
    assert "nonfinite_gradient the gradient of layer four" in shown


def test_that_the_manual_names_every_dataset_and_column() -> None:
    manual = (Path(__file__).parents[3] / "docs" / "run-file.md").read_text(encoding="utf-8")
    for path, table in TABLES.items():
        assert f"`/{path if not path.startswith('tensors/') or path.endswith('names') else 'tensors/KIND'}`" in manual
        for column in table.columns:
            assert column in manual
    for name in (*FIXED_TEXTS, *RESERVED_TEXTS, STATUS, ROWS_VALID, *TENSOR_KINDS, *TENSOR_STATS, *EVENT_ROW.names):
        assert name in manual
