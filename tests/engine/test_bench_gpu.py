"""What only a real NVIDIA GPU can show: rates below the peak, the certificate of TF32 and FP8, live counters."""

from __future__ import annotations

import time

import pytest
import torch

from precgui.engine.bench import Plan, run_bench
from precgui.engine.torch_facts import torch_facts
from precgui.hardware.detect import detect
from precgui.hardware.live import LivePoller, Snapshot
from precgui.hardware.readings import Absent

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


def test_that_rates_stay_below_the_peak_and_the_certificate_is_right():
    formats = ("fp32", "tf32", "bf16", "fp16", "e4m3fn", "int8")
    result = run_bench(Plan("cuda:0", formats, (4096,), parts=("gemm", "copy")), lambda event: None, lambda: False)
    native = detect(torch_facts()).device("cuda:0").formats
    ran_as = {row["format"]: row["ran_as"] for row in result["certificate"]}
    for fmt in formats:
        if native[fmt].support == "native" and ran_as[fmt] is not None:
            assert fmt in ran_as[fmt].split()
    shares = {row["format"]: row["share"] for row in result["gemm"] if row.get("share") is not None}
    assert shares
    assert all(0.05 < share <= 1.0 for share in shares.values()), shares
    assert all(row["clock_mhz"] for row in result["gemm"] if row["tops"])
    assert result["copy"]["gb_s"] > 50


def test_that_live_readings_see_a_load():
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    found: list[Snapshot] = []
    poller = LivePoller(found.append)
    poller.start()
    end = time.monotonic() + 4
    while time.monotonic() < end:
        for _ in range(10):
            torch.mm(a, a)
        torch.cuda.synchronize()
    poller.stop()
    last = [snapshot for snapshot in found if snapshot.full][-1].devices[0].values
    power = last["power_average_w"]
    assert isinstance(power, Absent) or power > 20
    tensor = last["tensor"]
    assert isinstance(tensor, Absent) or tensor > 10
