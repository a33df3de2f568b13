"""The bench on the CPU with tiny sizes: its figures are not judged, what it says about them is."""

from __future__ import annotations

import itertools
import json
import math
from types import SimpleNamespace

import pytest
import torch

from precgui.engine import accumulation
from precgui.engine.bench import parts, timing, workloads
from precgui.engine.bench import run as bench
from precgui.engine.bench.run import BenchPlan, run_bench
from precgui.engine.errors import EngineError
from precgui.hardware import measured, power, rapl
from precgui.hardware.figures import csv_text
from precgui.hardware.product_sums import sums_text
from precgui.hardware.step_energy import EnergyPlan
from precgui.hardware.support import Peak, Support
from tests.engine.matrix_unit import MatrixUnit
from tests.warm_children import python

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Short samples, and no accelerator that the test's machine may have."""
    monkeypatch.setattr(timing, "BUDGET_S", 0.002)
    monkeypatch.setattr(timing, "SAMPLE_S", 0.0)
    monkeypatch.setattr(bench, "detect", lambda facts, detect=bench.detect: detect({**facts, "devices": []}))  # type: ignore[attr-defined]


def run(events=None, *, stopped=lambda: False, **plan):
    events = [] if events is None else events
    options = {"device": "cpu", "formats": ("fp32", "bf16"), "sizes": (32, 48), "parts": ("gemm",), "threads": 1}
    return run_bench(BenchPlan(**{**options, **plan}), events.append, stopped), events


def test_that_the_rate_is_the_operations_over_the_time():
    result, _ = run()
    for row in result["gemm"]:
        assert row["tops"] == pytest.approx(2 * row["m"] ** 3 / row["seconds"] * 1e-12)
    assert {(row["format"], row["m"]) for row in result["gemm"]} == set(itertools.product(("fp32", "bf16"), (32, 48)))


def test_that_the_certificate_tells_which_arithmetic_ran():
    result, _ = run(formats=("fp64", "fp32", "bf16", "fp16", "int8", "e4m3fn"), parts=())
    found = {row["format"]: row for row in result["certificate"]}
    assert found["fp32"]["ran_as"] == "fp32"
    assert 1e-8 < found["fp32"]["error"] < 1e-6
    assert found["bf16"]["ran_as"] == "bf16"
    assert found["fp16"]["ran_as"] == "tf32 or fp16"
    assert found["int8"]["ran_as"] == "int8"
    assert found["e4m3fn"]["ran_as"] == "e4m3fn"
    assert not any(row["note"] for row in found.values())


def test_that_a_processor_adds_in_fp32_and_the_bench_says_so():
    result, _ = run(formats=("fp64", "fp32", "e4m3fn", "int8"), parts=("accumulation",))
    found = {row["format"]: row for row in result["accumulation"]}
    assert {fmt: row["bits"] for fmt, row in found.items()} == {"fp64": 53, "fp32": 24, "e4m3fn": 24}
    assert sums_text(found["fp32"]) == "sums keep 24 bits, rounded to nearest"
    assert all(row["is_deterministic"] and not row["fast"] and not row["note"] for row in found.values())


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        (MatrixUnit(14, 32), "sums keep 14 bits, truncated"),
        (
            MatrixUnit(14, 32, 128),
            "sums keep 14 bits, truncated; after every 128 terms the partial sum is added in FP32",
        ),
        (MatrixUnit(13, 16, rounding="nearest_even"), "sums keep 13 bits, rounded to nearest"),
        (MatrixUnit(50, 64), "sums keep all bits that its operands can tell apart"),
    ],
)
def test_that_a_short_accumulator_is_measured_shown_and_kept(monkeypatch, unit, text):
    """A matrix unit in place of torch's product, where the bench calls it."""
    monkeypatch.setattr(accumulation, "scaled_mm", unit.scaled_mm)
    monkeypatch.setattr(accumulation, "SIDE", 32)
    result, _ = run(formats=("e4m3fn",), parts=("accumulation",))
    (row,) = result["accumulation"]
    assert sums_text(row) == text
    line = dict(zip(*(line.split(",") for line in (csv_text(result).splitlines()[i] for i in (0, 2))), strict=True))
    assert (line["kind"], line["format"], line["fast"]) == ("accumulation", "e4m3fn", "False")
    assert line["bits"] == ("" if row["bits"] is None else str(row["bits"]))
    measured.keep(result)
    assert measured.kept()[0]["accumulation"] == [row]


def test_that_a_product_that_cannot_be_probed_is_a_note(monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(accumulation, "scaled_mm", refuse)
    result, _ = run(formats=("e4m3fn",), parts=("accumulation",))
    (row,) = result["accumulation"]
    assert row["note"] == "torch refuses: no such kernel"
    assert sums_text(row) == ""


def test_that_asking_for_tf32_where_there_is_none_is_found_out(monkeypatch):
    monkeypatch.setattr(parts, "set_fp32_arithmetic", lambda *, tf32: None)
    result, _ = run(formats=("tf32",), parts=())
    assert result["certificate"][0]["ran_as"] == "fp32"
    assert "asked for tf32" in result["certificate"][0]["note"]


def test_that_progress_comes_before_each_step_and_adds_up():
    _, events = run(parts=("gemm", "conversions", "copy"))
    progress = [event for event in events if event["kind"] == "progress"]
    assert [event["done"] for event in progress] == list(range(progress[0]["total"]))
    assert events[-1]["kind"] == "done"
    rows = [event["part"] for event in events if event["kind"] == "row"]
    assert rows == ["certificate"] * 2 + ["gemm"] * 4 + ["copy"] + ["conversions"] * 6


def test_that_a_stopped_bench_keeps_what_it_has_and_says_that_it_is_incomplete():
    events = []

    def stopped():
        return sum(event["kind"] == "row" and event["part"] == "gemm" for event in events) >= 2

    result, _ = run(events, stopped=stopped, parts=bench.DEFAULT_PARTS)
    assert not result["complete"]
    assert result["certificate"]
    assert 2 <= len(result["gemm"]) < 4
    assert events[-1]["kind"] == "done"


def test_that_the_bench_of_the_window_gives_way_to_it():
    """In a process of its own: nobody but root can take it back."""
    code = (
        "import os; from types import SimpleNamespace; from precgui.engine.bench import run as bench;"
        "bench.serve(lambda event: None, SimpleNamespace(stopped=lambda: True), device='cpu', formats=('fp32',));"
        "print(os.nice(0))"
    )
    assert int(python("-c", code).stdout) >= min(bench.NICE, 19)


def test_that_a_reference_kernel_is_not_run_at_a_size_that_would_take_minutes(monkeypatch):
    tiny_s = {"fp32": 1e-4, "bf16": 0.5}
    probed = iter(tiny_s.values())
    monkeypatch.setattr(parts, "once", lambda work, device: next(probed))
    result, _ = run(formats=tuple(tiny_s), sizes=(512,))
    rows = {row["format"]: row for row in result["gemm"]}
    assert rows["bf16"]["seconds"] is None
    assert rows["bf16"]["note"] == "reference kernel, not measured at this size: about 32 s a call"
    assert rows["fp32"]["seconds"] is not None


def test_that_a_size_that_the_host_cannot_hold_is_not_tried(monkeypatch):
    monkeypatch.setattr(parts, "free_memory_bytes", lambda: 4 * parts.OPERANDS * 32**2)
    result, _ = run(formats=("fp32",), sizes=(32, 48), parts=("gemm", "energy"))
    assert [row["seconds"] is None for row in result["gemm"]] == [False, True]
    assert "host's memory" in result["gemm"][1]["note"]
    assert "host's memory" in result["energy"][0]["note"]


def test_that_what_torch_refuses_is_a_note_and_not_the_end(monkeypatch):
    def refuse(fmt, size, device):
        if fmt == "bf16":
            raise RuntimeError("not on this device\nsecond line")
        return gemm(fmt, size, device)

    gemm = workloads.gemm
    monkeypatch.setattr(workloads, "gemm", refuse)
    result, _ = run(parts=("gemm", "alignment"))
    assert [row["note"] for row in result["gemm"] if row["format"] == "bf16"] == [
        "torch refuses: not on this device"
    ] * 2
    assert all(row["tops"] for row in result["gemm"] if row["format"] == "fp32")


def test_that_a_rate_above_the_peak_is_flagged_as_a_wrong_peak(monkeypatch):
    def with_peak(facts, detect=bench.detect):  # type: ignore[attr-defined]
        machine = detect(facts)
        for device in machine.devices:
            device.formats["fp32"] = Support("native", "", peak=Peak(1e-9, "far too low"))
        return machine

    monkeypatch.setattr(bench, "detect", with_peak)
    result, _ = run(formats=("fp32",), sizes=(32,))
    assert result["gemm"][0]["share"] > 1
    assert "peak is wrong" in result["gemm"][0]["note"]


def test_that_what_does_not_fit_is_a_note_and_not_the_end(monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't allocate memory")

    gemm = workloads.gemm
    monkeypatch.setattr(workloads, "copy", refuse)
    monkeypatch.setattr(
        workloads, "gemm", lambda fmt, size, device: refuse() if size == 40 else gemm(fmt, size, device)
    )
    result, _ = run(formats=("fp32",), sizes=(40,), parts=("gemm", "copy", "conversions", "energy"))
    assert result["copy"]["gb_s"] is None
    assert result["copy"]["note"] == "torch refuses: can't allocate memory"
    assert "refuses this size" in result["energy"][0]["note"]
    assert all(row["gb_s"] for row in result["conversions"])
    assert len(csv_text(result).splitlines()) == 1 + 1 + 1 + 1 + 6 + 1


def test_that_the_clock_of_an_accelerator_is_read_while_it_works(monkeypatch):
    told = []
    monkeypatch.setattr(timing, "synchronize", lambda device: told.append("wait"))
    gpu = SimpleNamespace(type="cuda")
    read = timing.while_busy(lambda: told.append("work"), gpu, 0.01, lambda: told.append("read") or 1980)
    assert read == 1980
    assert told == ["work"] * 3 + ["read", "wait"]
    timing.while_busy(lambda: told.append("work"), CPU, 0.01, lambda: None)
    assert told.count("work") == 3


def test_that_alignment_is_relative_to_the_multiple_of_16():
    result, _ = run(formats=("fp32",), sizes=(64,), parts=("alignment",))
    found = {row["m"]: row for row in result["alignment"]}
    assert found[64]["relative"] == 1.0
    assert [found[size]["multiple_of"] for size in (64, 56, 60, 62, 63)] == [16, 8, 4, 2, 1]


def test_that_a_result_is_kept_and_found_again():
    result, _ = run(sizes=(32, 64))
    path = measured.keep(result)
    for name, text in (("0.json", "{"), ("1.json", "[]"), ("2.json", f'{{"schema": {measured.SCHEMA}}}')):
        path.with_name(name).write_text(text)
    (kept,) = measured.kept()
    assert kept == json.loads(json.dumps(result))
    name = result["device"]["name"]
    rates = {fmt: max(r["tops"] for r in result["gemm"] if r["format"] == fmt) for fmt in ("fp32", "bf16")}
    for row in kept["gemm"]:
        row["spread"] = 0.0
    assert measured.gain(name, [kept]) == pytest.approx(rates["bf16"] / rates["fp32"])
    assert measured.gain("another card", measured.kept()) is None
    assert measured.best_tops(result) == rates


def test_that_a_device_that_is_not_there_is_one_sentence():
    with pytest.raises(EngineError, match="mps is not there"):
        run(device="mps")


@pytest.mark.parametrize("fmt", ["fp32", "bf16"])
@pytest.mark.parametrize("block", workloads.BLOCKS)
def test_that_the_blocks_go_forward_and_backward(block, fmt):
    work, operations = workloads.BLOCKS[block](fmt, CPU, True)
    work()
    assert operations > 0
    large = workloads.BLOCKS[block](fmt, CPU, False)[1]
    assert large > operations


def test_that_timing_gives_a_median_with_its_spread_and_times_a_long_call_once(monkeypatch):
    measured_time = timing.measure(lambda: sum(range(100)), CPU, lambda: False)
    assert measured_time.seconds > 0
    assert measured_time.calls >= timing.LEAST_SAMPLES
    assert measured_time.spread is not None
    assert math.isfinite(measured_time.spread)
    monkeypatch.setattr(timing, "LONG_S", 0.0)
    assert timing.measure(lambda: None, CPU, lambda: False).spread is None


def test_that_turns_are_compared_in_ratios(monkeypatch):
    now_s = [0.0]

    def lasting(seconds):
        return lambda: now_s.append(now_s.pop() + seconds)

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    ratios = timing.compare([lasting(0.25), lasting(1.0)], CPU, lambda: False)
    assert ratios == [1.0, 4.0]


def test_that_the_energy_of_a_product_is_measured_where_there_is_a_sensor(monkeypatch, tmp_path):
    """A fake CPU package whose counter grows by 30 W; a product uses its time's worth of it."""
    zone = rapl.Zone("CPU package 0", tmp_path, 1e6)
    monkeypatch.setattr(rapl, "zones", lambda: [zone])
    monkeypatch.setattr(rapl.Zone, "read_j", lambda self: 0.0)
    monkeypatch.setattr(power.RaplSensor, "read", lambda self, now_s, last=False: (30.0, 30.0 * now_s))
    monkeypatch.setattr(parts, "PLAN", EnergyPlan(0.0, 0.15, 0.15, windows=2, least_s=0.1))
    result, _ = run(formats=("fp32",), sizes=(64,), parts=("gemm", "energy"))
    (row,) = result["energy"]
    assert row["method"] == "energy counter"
    assert row["idle_w"] == pytest.approx(30.0)
    assert row["gigaops_per_joule"] == pytest.approx(2 * 64**3 / row["gross_j"] * 1e-9)
    assert row["net_j"] == pytest.approx(0.0, abs=1e-3 * row["gross_j"])


def test_that_without_a_sensor_there_is_a_note_and_no_number(monkeypatch, tmp_path):
    monkeypatch.setattr(rapl, "POWERCAP", tmp_path / "none")
    result, _ = run(formats=("fp32",), sizes=(32,), parts=("energy",))
    assert result["energy"][0]["gross_j"] is None
    assert "no power sensor" in result["energy"][0]["note"]
