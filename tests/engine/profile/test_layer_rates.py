"""The products of a step, recorded once and made again alone in each format."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from precgui.config import load
from precgui.engine.profile import layer_rates
from precgui.engine.profile.document import OperationCounts
from precgui.engine.profile.one_step import build_step, step
from precgui.engine.torch_private import tree_leaves

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def counted() -> OperationCounts:
    settings = ("record.tensors=false", "data.batch_size=16", "threads=1", "device=cpu")
    parts = build_step(load("digits-quick", list(settings)))
    with OperationCounts(parts.model, parts.precision.labels) as counts:
        step(parts)
    return counts  # type: ignore[return-value]


def test_that_calls_know_their_modules_and_phase(counted: OperationCounts) -> None:
    uses = {(str(call.func.overloadpacket), next(iter(use.modules)), use.phase)
            for call, use in counted.recorded.items()}  # fmt: skip
    assert ("aten.addmm", "head", "forward") in uses
    assert ("aten.mm", "head", "backward") in uses
    assert ("aten.convolution_backward", "features.0", "backward") in uses


def test_that_recorded_flops_are_those_of_the_step(counted: OperationCounts) -> None:
    recorded = sum(call.flops * use.calls for call, use in counted.recorded.items())
    assert recorded == sum(count.flops for count in counted.counts.values())


def test_that_the_largest_calls_make_most_of_the_work(counted: OperationCounts) -> None:
    chosen, share = layer_rates.largest(counted.recorded)
    flops = [call.flops * use.calls for call, use in chosen]
    assert flops == sorted(flops, reverse=True)
    assert share == pytest.approx(sum(flops) / sum(c.flops * u.calls for c, u in counted.recorded.items()))
    assert share >= layer_rates.FLOPS_SHARE or len(chosen) == layer_rates.MOST_PRODUCTS


@pytest.mark.parametrize("fmt", ["fp32", "bf16", "fp16"])
def test_that_a_call_is_made_again_in_the_format_with_the_same_geometry(counted: OperationCounts, fmt: str) -> None:
    for call, _ in layer_rates.largest(counted.recorded)[0]:
        out = [t for t in tree_leaves(layer_rates.synthetic_call(call, fmt, CPU)()) if isinstance(t, torch.Tensor)]
        assert {t.dtype for t in out} == {layer_rates.FLOATS[fmt]}  # type: ignore[attr-defined]
        assert all(t.isfinite().all() for t in out)


def test_that_rates_are_measured_and_refusals_named(counted: OperationCounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_rates, "MOST_PRODUCTS", 2)
    monkeypatch.setattr(layer_rates, "ROUNDS", 2)
    monkeypatch.setattr(layer_rates, "_COPY_BYTES", {"cpu": 1 << 16})
    monkeypatch.setattr(layer_rates, "_SQUARE", {"cpu": 64})
    make = layer_rates.synthetic_call

    def refusing(call: Any, fmt: str, device: torch.device) -> Any:
        if fmt == "fp16":
            raise RuntimeError("no kernel for Half\nmore")
        return make(call, fmt, device)

    monkeypatch.setattr(layer_rates, "synthetic_call", refusing)
    document = layer_rates.rates(counted.recorded, CPU)
    assert len(document["rows"]) == 2
    for row in document["rows"]:
        fp32 = row["formats"]["fp32"]
        assert fp32["flops_s"] == pytest.approx(row["flops"] / fp32["seconds"])
        assert fp32["speedup"] == 1
        assert row["formats"]["bf16"]["flops_per_byte"] == pytest.approx(2 * fp32["flops_per_byte"])
        assert set(row["formats"]) == set(document["formats"])
        assert row["formats"]["fp16"] == {"note": "torch refuses: no kernel for Half"}
    assert document["bandwidth_bytes_s"] > 0
    assert document["square_flops_s"]["fp32"] > 0


# FP8 and INT8 ----------------------------------------------------------------------------------------------


def test_that_fp8_and_int8_are_for_products_of_two_matrices_only() -> None:
    assert layer_rates.matrix_sizes("addmm", [(3,), (2, 8), (8, 3)]) == (2, 8, 3)
    assert layer_rates.matrix_sizes("mm", [(2, 8), (8, 3)]) == (2, 8, 3)
    for operation, shapes in (("convolution", [(4, 3, 8, 8), (16, 3, 3, 3)]), ("bmm", [(5, 2, 8), (5, 8, 3)])):
        with pytest.raises(layer_rates.NotMeasuredError, match="products of two matrices only"):
            layer_rates.matrix_sizes(operation, shapes)


@pytest.mark.parametrize("fmt", layer_rates.NARROW)
def test_that_a_narrow_product_is_that_of_the_normal_numbers_or_says_why_not(fmt: str) -> None:
    try:
        out = layer_rates.narrow_product((32, 64, 48), fmt, CPU)()
    except (RuntimeError, layer_rates.NotMeasuredError) as reason:
        pytest.skip(str(reason))
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(32, 64, generator=draw), torch.randn(64, 48, generator=draw)
    assert isinstance(out, torch.Tensor)
    largest = {"e4m3fn": 448.0, "int8": 127.0}[fmt]
    scale = (a.abs().max() * b.abs().max() / largest**2).double()
    exact = a.double() @ b.double()
    assert ((out.double() * scale - exact).norm() / exact.norm()) < 0.05


def test_that_wrong_sums_of_integers_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    right = layer_rates.int_mm  # type: ignore[attr-defined]
    monkeypatch.setattr(layer_rates, "int_mm", lambda x, y: right(x, y).clamp(-32768, 32767))
    with pytest.raises(layer_rates.NotMeasuredError, match="wrong on this processor"):
        layer_rates.narrow_product((32, 256, 48), "int8", CPU)


def test_that_a_kernel_for_reference_is_not_waited_for(
    counted: OperationCounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_rates, "estimated_s", lambda *_: 60.0)
    monkeypatch.setattr(layer_rates, "narrow_product", lambda *_: pytest.fail("was made"))
    call = next(call for call in counted.recorded if str(call.func.overloadpacket) == "aten.addmm")
    results = layer_rates._timed(call, ("e4m3fn",), CPU, lambda: False)
    assert results["e4m3fn"] == {"note": "not measured: about 60.0 s a call, by a kernel for reference"}
