"""The profile of a step: operations by kind, module and format, whose own times add up to the step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from precgui.config import load
from precgui.engine.errors import EngineError
from precgui.engine.profile import floors, kinds
from precgui.engine.profile import paired as paired_steps
from precgui.engine.profile.document import OperationCounts, profile_config
from precgui.engine.profile.one_step import build_step, step
from precgui.engine.profile.operations import OperationRow, Profiled, ProfilerPhases, profile_of_steps, record_steps
from precgui.engine.profile.paired import (
    ProfiledPair,
    ProfilerShare,
    anchored,
    comparable,
    median_interval,
    profiler_share,
    typical,
)
from precgui.engine.torch_private import named_fused_kernels
from precgui.runs.speedup.waterfall import waterfall
from tests.compiled_code import needs_compiler

QUICK = ("record.tensors=false", "data.batch_size=16", "threads=1", "device=cpu")

CPU = torch.device("cpu")


def _profiled(*settings: str) -> tuple[Any, Profiled]:
    parts = build_step(load("digits-quick", [*QUICK, *settings]))
    step(parts)

    def work(phases: ProfilerPhases) -> None:
        phases.begin("data")
        step(parts, phases)

    return parts, profile_of_steps(record_steps(parts.model, parts.device, work, 1), 1, parts.device)


def test_that_own_times_add_up_to_the_step() -> None:
    _, profiled = _profiled()
    total = sum(row.cpu_s for row in profiled.rows) + profiled.gap_s + profiled.data_s
    assert total == pytest.approx(profiled.wall_s, rel=1e-6)


def test_that_operations_know_module_phase_kind_and_format() -> None:
    _, profiled = _profiled("precision=bf16-amp")
    found = {(row.module, row.phase, row.kind, row.format) for row in profiled.rows}
    assert ("head", "forward", "product", "bf16") in found
    assert ("head", "backward", "product", "bf16") in found
    assert ("features.0", "backward", "convolution", "bf16") in found
    assert ("features.0", "forward", "cast", "fp32 to bf16") in found
    assert all(row.kind == "optimizer" for row in profiled.rows if row.phase == "update")
    assert {row.phase for row in profiled.rows} <= {"forward", "backward", "update"}


def test_that_fp32_has_no_casts() -> None:
    _, profiled = _profiled()
    assert "cast" not in {row.kind for row in profiled.rows}


def test_that_profile_and_census_name_the_same_products() -> None:
    parts, profiled = _profiled("precision=bf16-amp")
    with OperationCounts(parts.model, parts.precision.labels) as counts:
        step(parts)
    profiled_names = {(row.operation, row.module) for row in profiled.rows if row.kind in kinds.MULTIPLIED}
    counted = {key: count for key, count in counts.counts.items() if count.flops}  # type: ignore[attr-defined]
    assert profiled_names == set(counted)
    mm = counted["mm", "head"]
    rows, width, classes = 16, parts.model.head.in_features, parts.model.head.out_features
    assert mm.flops == mm.calls * 2 * rows * width * classes
    assert mm.formats == {"bf16": mm.calls}


@pytest.mark.parametrize(
    ("name", "converts", "kind"),
    [
        ("addmm", False, kinds.PRODUCT),
        ("bmm", False, kinds.PRODUCT),
        ("convolution_backward", False, kinds.CONVOLUTION),
        ("_scaled_dot_product_flash_attention_for_cpu", False, kinds.ATTENTION),
        ("mkldnn_rnn_layer", False, kinds.RECURRENT),
        ("native_layer_norm_backward", False, kinds.NORMALISATION),
        ("native_batch_norm", False, kinds.NORMALISATION),
        ("copy_", True, kinds.CAST),
        ("copy_", False, kinds.COPY),
        ("gelu_backward", False, kinds.ELEMENTWISE),
        ("_log_softmax", False, kinds.ELEMENTWISE),
        ("transpose", False, None),
        ("linear", False, None),
        ("_to_copy", False, None),
    ],
)
def test_that_an_operation_has_its_kind(name: str, converts: bool, kind: str | None) -> None:
    assert kinds.kind_of(name, converts=converts) == kind


@pytest.mark.parametrize(
    ("kernel", "operations"),
    [
        ("graph_0_cpp_fused_gelu_gelu_backward_native_layer_norm_sum_0",
         ("gelu", "gelu_backward", "native_layer_norm", "sum")),
        ("triton_red_fused__log_softmax__to_copy_nll_loss_forward_3", ("log_softmax", "to_copy", "nll_loss_forward")),
        ("triton_poi_fused_add_0", ("add",)),
        ("graph_2_cpp_fused_1", ()),
        ("aten::mm", None),
        ("ampere_sgemm_128x64_tn", None),
    ],
)  # fmt: skip
def test_that_a_fused_kernel_names_its_operations(kernel: str, operations: tuple[str, ...] | None) -> None:
    assert kinds.fused_operations(kernel) == operations


def test_that_a_gpu_of_which_no_kernel_is_recorded_is_told_with_the_cure() -> None:
    """As in a container that may not ask, or beside another profiler."""
    parts = build_step(load("digits-quick", QUICK))
    recorded = record_steps(parts.model, CPU, lambda phases: step(parts, phases), 1)
    with pytest.raises(EngineError, match=r"recorded no kernel of the GPU.*NVreg_RestrictProfilingToAdminUsers"):
        profile_of_steps(recorded, 1, torch.device("cuda"))


@needs_compiler
def test_that_a_compiled_step_is_profiled_by_fused_kernels() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8))
    values = torch.randn(16, 32)
    with named_fused_kernels():
        model.compile()

        def work(phases: ProfilerPhases) -> None:
            phases.begin("forward")
            loss = model(values).square().sum()
            phases.begin("backward")
            loss.backward()

        profiled = profile_of_steps(record_steps(model, CPU, work, 1), 1, CPU)
    fused = [row for row in profiled.rows if row.kind == kinds.FUSED]
    assert {row.phase for row in fused} == {"forward", "backward"}
    held = {name for row in fused for name in kinds.fused_operations(row.operation) or ()}
    assert {"gelu", "native_layer_norm"} <= held
    products = [row for row in profiled.rows if row.kind == kinds.PRODUCT]
    assert all(floors.matrix_sizes(row) for row in products)
    assert products


@pytest.mark.parametrize(
    ("kernel", "used"),
    [
        ("ampere_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn", True),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", True),
        ("cutlass_80_tensorop_s1688gemm_128x128_16x4_nn_align4", True),
        ("ampere_sgemm_128x64_tn", False),
        ("void at::native::vectorized_elementwise_kernel<4, ...>", None),
    ],
)
def test_that_kernel_names_tell_of_tensor_cores(kernel: str, used: bool | None) -> None:
    assert kinds.uses_tensor_cores(kernel) is used


def _row(kind: str, *shapes: tuple[int, ...], **values: float) -> OperationRow:
    row = OperationRow("mm", kind, "head", "forward", "fp32", shapes)
    for name, value in values.items():
        setattr(row, name, value)
    return row


def test_that_sizes_of_products_are_read_from_their_operands() -> None:
    assert floors.matrix_sizes(_row("product", (3, 4), (4, 5))) == (1, 3, 4, 5)
    assert floors.matrix_sizes(_row("product", (5,), (3, 4), (4, 5))) == (1, 3, 4, 5)
    assert floors.matrix_sizes(_row("product", (2, 3, 4), (2, 4, 5))) == (2, 3, 4, 5)
    assert floors.matrix_sizes(_row("product", (3, 4), (4, 5), (3, 5))) == (1, 3, 4, 5)  # into a result that is given
    assert floors.matrix_sizes(_row("product", (3, 4), (3, 5))) is None
    assert floors.matrix_sizes(_row("convolution", (3, 4), (4, 5))) is None
    assert floors.odd_sizes((1, 512, 768, 50257)) == {"8": [50257], "16": [50257], "128": [50257]}


def test_that_only_large_sizes_that_are_no_multiple_of_8_are_padded() -> None:
    device = torch.device("cpu")
    assert floors.padding_gain(_row("product", (64, 64), (64, 128)), device, lambda: False) is None
    assert floors.padding_gain(_row("product", (3, 5), (5, 7)), device, lambda: False) is None
    found = floors.padding_gain(_row("product", (64, 64), (64, 257)), device, lambda: False)
    assert found is not None
    assert found[0] == (1, 64, 64, 320)
    assert found[1] < 1


def test_that_emulated_products_have_no_ratio_of_peaks() -> None:
    found = floors.peak_ratio("int4-qat", torch.device("cpu"), emulated=False, stopped=lambda: False)
    assert found.ratio is None
    assert "emulated" in found.note
    assert floors.peak_ratio("fp32", torch.device("cpu"), emulated=False, stopped=lambda: False).ratio == 1


def _measured(seconds: float) -> Profiled:
    row = _row("product", (2, 2), (2, 2), cpu_s=seconds, calls=2)
    return Profiled([row], 2, seconds + 2.0, 2.0, 0.0, 3)


def test_that_the_typical_step_leaves_out_what_interrupted_a_few() -> None:
    found = typical([_measured(4.0), _measured(90.0), _measured(4.0)])
    assert (found.rows[0].cpu_s, found.rows[0].calls, found.gap_s) == (2.0, 1.0, 1.0)


def test_that_the_typical_step_is_brought_to_the_time_of_its_pairs() -> None:
    found = anchored(typical([_measured(4.0)] * 3), ProfilerShare(1.5, 1.0, 0.0))
    assert (found.rows[0].cpu_s, found.gap_s) == (1.0, 0.5)


def test_that_the_expected_cost_of_the_profiler_stands_where_the_pairs_agree_with_it() -> None:
    share = profiler_share(1.0, 0.1, [1.0, 1.05, 1.08, 1.12, 1.15, 1.2, 1.3])
    assert (share.step_s, share.factor) == (pytest.approx(1.1), 1.0)
    assert share.uncertainty == pytest.approx(0.125)  # 1.3 from the pairs, 1.05 for half of the expected cost


@pytest.mark.parametrize(("slow_down", "factor"), [(1.15, 1.5), (2.0, 6.0), (0.9, 0.5)])
def test_that_the_pairs_decide_the_cost_of_an_event_between_half_and_six_times(slow_down: float, factor: float) -> None:
    """What lies beyond that is no cost of the profiler: it is left unexplained."""
    share = profiler_share(1.0, 0.1, [slow_down] * 8)
    assert (share.step_s, share.factor) == (pytest.approx(slow_down), pytest.approx(factor))


def test_that_the_median_has_an_interval_of_order_statistics() -> None:
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert median_interval([float(n) for n in range(10)]) == (1.0, 8.0)  # 97.9 %


def test_that_a_config_is_profiled_beside_fp32() -> None:
    said: list[str] = []
    document = profile_config(load("digits-quick", [*QUICK, "precision=bf16-amp"]), said.append, rounds=2, seconds=1.0)
    account = waterfall(document)
    assert account.observed > 0
    assert document["memory"]["measured"]["total_bytes"] > 0
    assert abs(document["memory"]["residual"]) < 0.05
    assert any(row["kind"] == "cast" for row in document["operations"])
    assert all(row["flops"] > 0 for row in document["operations"] if row["kind"] in ("product", "convolution"))
    assert {row["executed"] for row in document["operations"] if row["kind"] == "convolution"} == {"bf16"}
    assert any("round 1" in text for text in said)
    assert document["peak"]["format"] == "bf16"
    repeated = document["run"]["repeated"]
    assert repeated.keys() == {"products", "casts", "others", "gaps"}
    assert len(repeated["gaps"]) > 1
    assert [sum(shares) for shares in zip(*repeated.values(), strict=True)] == pytest.approx(
        [1.0] * len(repeated["gaps"])
    )


def test_that_profiling_leaves_no_hook_behind() -> None:
    before = len(nn.modules.module._global_forward_hooks), len(nn.modules.module._global_forward_pre_hooks)
    _profiled()
    after = len(nn.modules.module._global_forward_hooks), len(nn.modules.module._global_forward_pre_hooks)
    assert after == before


def test_that_pairs_go_on_until_the_cost_of_the_profiler_is_known_but_few_recordings_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paired_steps, "_PAIRS_S", 0.0)
    certain = ProfilerShare(1.0, 1.0, 0.0)
    share = lambda side: certain if len(side.pairs) >= 32 else replace(certain, uncertainty=1.0)  # noqa: E731
    monkeypatch.setattr(paired_steps, "share_of", share)
    side, _ = paired_steps.paired(load("digits-quick", [*QUICK]), seconds=3600.0)
    assert len(side.pairs) == 32  # 8 rounds of 4
    assert len(side.profiles) == 6  # the first five rounds and the eighth


def test_that_pairs_whose_sides_differ_most_in_page_faults_are_left_out() -> None:
    calm = [ProfiledPair(1.1 + n / 100, float(n)) for n in range(6)]
    assert comparable([*calm, *(ProfiledPair(9.0, 90_000.0) for _ in range(3))]) == [pair.slow_down for pair in calm]
    assert comparable([ProfiledPair(ratio, 0.0) for ratio in (1.1, 1.2, 1.3)]) == [1.1, 1.2, 1.3]
