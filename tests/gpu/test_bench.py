"""Rates below the theoretical peak, and the certificate of every format that the hardware multiplies."""

from __future__ import annotations

import pytest

from precgui.engine.bench.run import BenchPlan, run_bench
from precgui.engine.bench.workloads import BLOCKS, FORMATS
from precgui.hardware import measured

pytestmark = pytest.mark.gpu


def test_that_rates_stay_below_the_peak_and_the_certificate_is_right(gpu):
    parts = ("gemm", "alignment", "copy", "conversions", "blocks")
    result = run_bench(BenchPlan("cuda:0", FORMATS, (1024, 4096), parts=parts), lambda event: None, lambda: False)
    ran_as = {row["format"]: row["ran_as"] for row in result["certificate"]}
    for fmt in FORMATS:
        if gpu.level(fmt) == "native" and ran_as[fmt] is not None:
            assert fmt in ran_as[fmt].split()
    assert ran_as["fp32"] == "fp32"
    shares = {(row["format"], row["m"]): row["share"] for row in result["gemm"] if row.get("share") is not None}
    assert shares
    assert all(share <= 1.0 for share in shares.values()), shares
    assert all(row["clock_mhz"] for row in result["gemm"] if row["tops"])
    assert result["copy"]["gb_s"] > 50
    assert all(row["gb_s"] for row in result["conversions"])
    assert {row["block"] for row in result["blocks"] if row["seconds"]} == set(BLOCKS)
    assert result["complete"]
    measured.keep(result)
    assert measured.kept()[0]["device"]["name"] == gpu.name


def test_that_the_sums_of_each_format_are_measured(gpu):
    result = run_bench(BenchPlan("cuda:0", FORMATS, (256,), parts=("accumulation",)), lambda event: None, lambda: False)
    found = {(row["format"], row["fast"]): row for row in result["accumulation"]}
    assert all(row["is_deterministic"] and not row["note"] for row in found.values())
    exact = {"fp64": (53, "nearest_even"), "fp32": (24, "nearest_even")}
    for fmt, expected in exact.items():
        assert (found[fmt, False]["bits"], found[fmt, False]["rounding"]) == expected
    if gpu.capability != "9.0":
        return
    hopper = {"tf32": (24, "toward_zero", 8), "bf16": (24, "toward_zero", 16), "fp16": (24, "toward_zero", 16)}
    for fmt, expected in hopper.items():
        assert tuple(found[fmt, False][key] for key in ("bits", "rounding", "terms")) == expected
    of_fp8 = {("e4m3fn", True): None, ("e4m3fn", False): 128, ("e5m2", False): 128}
    for key, promoted_every in of_fp8.items():
        row = found[key]
        assert (row["bits"], row["rounding"], row["terms"]) == (14, "toward_zero", 32)
        assert row["promoted_every"] == promoted_every


def test_that_a_size_that_fp8_cannot_take_is_a_note_and_not_the_end(gpu):
    plan = BenchPlan("cuda:0", ("e4m3fn",), (1000,), parts=("gemm", "alignment", "energy"))
    result = run_bench(plan, lambda event: None, lambda: False)
    assert "torch refuses" in result["gemm"][0]["note"]
    assert "torch refuses" in result["energy"][0]["note"]
    assert result["complete"]


def test_that_a_native_16_bit_format_is_faster_than_fp32(gpu):
    if gpu.level("bf16") != "native":
        pytest.skip("BF16 is not native on this GPU")
    plan = BenchPlan("cuda:0", ("fp32", "bf16"), (4096,), parts=("gemm",))
    result = run_bench(plan, lambda event: None, lambda: False)
    assert measured.gain(gpu.name, [result]) > 1.5
