"""Statistics of tensors, by both ways of looking, compared with NumPy."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import Tensor

from precgui.engine.telemetry.backends import CpuStats, CudaStats, StatsBackend, fetched, stride_for
from precgui.engine.telemetry.statistics import StatisticsTable, finished
from precgui.events import EXPONENT_BINS
from tests.engine.telemetry.tensor_rows import read

METERS = ("CpuStats", "CudaStats")


@functools.cache
def of_name(name: str) -> StatsBackend:
    """Made by the first test that needs it: its kernels take time and memory."""
    return CpuStats() if name == "CpuStats" else CudaStats(torch.device("cpu"))


@pytest.fixture(params=METERS)
def meter(request: pytest.FixtureRequest) -> StatsBackend:
    return of_name(request.param)


def looked_at(
    meter: StatsBackend, tensor: Tensor, stride: int = 1, factor: float = 1.0
) -> tuple[dict[str, float], np.ndarray]:
    (rows,) = fetched([meter.measure([tensor], [stride], 0, factor)])
    stats, exponents = read(finished(StatisticsTable("gradient", ["t"], [stride], [tensor.numel()]), rows, 1, 0.0))
    return stats["t"], exponents["t"]


def expected(values: np.ndarray) -> tuple[dict[str, float], np.ndarray]:
    """The statistics by NumPy's own functions."""
    flat = values.astype(np.float32).ravel()
    finite = flat[np.isfinite(flat)].astype(np.float64)
    nonzero = np.abs(finite[finite != 0])
    _, exponent = np.frexp(np.abs(flat[np.isfinite(flat)]))
    bins = np.where(nonzero.size and flat[np.isfinite(flat)] != 0, np.maximum(exponent + 126, 0), 0)
    histogram = np.bincount(bins, minlength=EXPONENT_BINS)
    histogram[255] = len(flat) - len(finite)
    stats = {
        "amax": np.abs(finite).max(initial=0) if len(finite) else np.nan,
        "amin_nonzero": nonzero.min() if len(nonzero) else np.nan,
        "mean": finite.mean() if len(finite) else np.nan,
        "rms": np.sqrt(np.mean(finite**2)) if len(finite) else np.nan,
        "l2": np.linalg.norm(finite),
        "zeros": np.count_nonzero(flat == 0),
        "nan": np.isnan(flat).sum(),
        "pos_inf": np.isposinf(flat).sum(),
        "neg_inf": np.isneginf(flat).sum(),
        "count": flat.size,
    }
    return stats, histogram


def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    wide = torch.randn(5000, generator=generator) * torch.exp2(torch.randn(5000, generator=generator) * 30)
    special = wide.clone()
    special[::97], special[1::97], special[2::97], special[3::97], special[4::97] = (
        0,
        torch.nan,
        torch.inf,
        -torch.inf,
        1e-42,
    )
    image = torch.randn(4, 3, 8, 8, generator=generator)
    return {
        "wide": wide, "special": special, "fp16": special.half(), "bf16": special.bfloat16(), "fp64": special.double(),
        "channels_last": image.contiguous(memory_format=torch.channels_last), "transposed": image.mT,
        "sliced": image[:, 1], "expanded": image[:1].expand(3, -1, -1, -1), "scalar": torch.tensor(-3.0),
        "zeros": torch.zeros(130), "nothing": torch.full((3,), torch.nan), "misaligned": wide[1:],
    }  # fmt: skip


@pytest.mark.parametrize("name", tensors())
def test_that_statistics_are_those_of_numpy(meter: StatsBackend, name: str) -> None:
    tensor = tensors()[name]
    stats, exponents = looked_at(meter, tensor)
    wanted, histogram = expected(tensor.float().numpy())
    np.testing.assert_array_equal(exponents, histogram)
    for key, value in wanted.items():
        np.testing.assert_allclose(stats[key], value, rtol=1e-6, err_msg=key)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 2047, 2048, 2049, 6000])
@pytest.mark.parametrize("spread", [0.0, 3.0, 60.0])
def test_that_no_size_and_no_spread_of_exponents_is_miscounted(size: int, spread: float) -> None:
    """Zeros, numbers below the normal ones, NaN and infinities in any place of a buffer of the loops."""
    generator = torch.Generator().manual_seed(size)
    values = torch.randn(size, generator=generator) * torch.exp2(spread * torch.randn(size, generator=generator))
    odd = torch.tensor([0.0, -0.0, 1e-40, -1e-45, torch.nan, torch.inf, -torch.inf, 3.4e38])
    places = torch.randint(4 * size, (size,), generator=generator)
    tensor = torch.where(places < len(odd), odd[places.clamp(max=len(odd) - 1)], values)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        stats, exponents = looked_at(of_name("CpuStats"), tensor.to(dtype))
        wanted, histogram = expected(tensor.to(dtype).float().numpy())
        np.testing.assert_array_equal(exponents, histogram)
        for key, value in wanted.items():
            np.testing.assert_allclose(stats[key], value, rtol=1e-6, err_msg=key)


def test_that_a_factor_is_taken_in_before_looking(meter: StatsBackend) -> None:
    gradient = torch.randn(1000).half()
    stats, exponents = looked_at(meter, gradient, factor=2.0**-16)
    wanted, histogram = expected(gradient.float().numpy() / 65536)
    np.testing.assert_array_equal(exponents, histogram)
    np.testing.assert_allclose(stats["rms"], wanted["rms"], rtol=1e-6)


def test_that_sampling_sees_every_element_in_the_course_of_the_steps(meter: StatsBackend) -> None:
    numbers = torch.arange(64.0).repeat_interleave(64)
    seen = np.zeros(64)
    for tick in range(200):
        kept = meter.keep([numbers], [8], tick)
        blocks = (kept[0][:512] if isinstance(kept, tuple) else kept[0].numpy())[::64]
        seen[blocks.astype(int)] += 1
    assert seen.sum() == 200 * 8
    assert np.abs(seen - 25).max() <= 2


def test_that_both_meters_see_the_same_sample() -> None:
    tensor = torch.randn(64 * 1000)
    (host, exponents), (device, others) = (looked_at(meter, tensor, stride=16) for meter in map(of_name, METERS))
    np.testing.assert_array_equal(exponents, others)
    assert host["count"] == 64 * 63
    assert host["l2"] == pytest.approx(device["l2"]) == pytest.approx(float(tensor.norm()), rel=0.05)


@pytest.mark.parametrize(("size", "stride"), [(10, 1), (4096, 1), (8192, 2), (10**6, 16), (0, 1)])
def test_that_small_tensors_are_never_sampled(size: int, stride: int) -> None:
    assert stride_for(size, 16) == stride


@pytest.mark.parametrize(("name", "dtype"), [("lost_bf16", torch.bfloat16), ("lost_fp16", torch.float16),
                                             ("lost_e5m2", torch.float8_e5m2)])  # fmt: skip
def test_that_lost_updates_are_those_that_a_cast_loses(meter: StatsBackend, name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    before = (torch.rand(20_000, generator=generator) + 1.01).to(dtype).float() * 2.0**-3
    after = before + before * torch.exp2(-14 * torch.rand(20_000, generator=generator))
    after[:5000] = before[:5000]
    kept = meter.keep([before], [1], 0)
    (rows,) = fetched([meter.compare([after], [1], 0, kept)])
    stats, _ = read(finished(StatisticsTable("update", ["w"], [1], [20_000]), rows, 1, 0.0))
    moved = after != before
    lost = (after.to(dtype).float() == before) & moved
    assert stats["w"]["changed"] == pytest.approx(float(moved.float().mean()))
    assert stats["w"][name] == pytest.approx(float(lost.sum() / moved.sum()), abs=2e-4)
    np.testing.assert_allclose(stats["w"]["rms"], (after - before).double().square().mean().sqrt(), rtol=1e-6)


def test_that_of_a_view_its_own_elements_are_looked_at(meter: StatsBackend) -> None:
    numbers = torch.complex(torch.arange(1.0, 25.0), torch.full((24,), torch.nan))
    for view in (numbers.real, numbers.real[::3], torch.complex(numbers.real, -numbers.real).conj().imag):
        stats, exponents = looked_at(meter, view)
        wanted, bins = expected(view.numpy(force=True))
        assert stats["mean"] == wanted["mean"]
        assert stats["nan"] == 0
        np.testing.assert_array_equal(exponents, bins)


def test_that_numbers_beyond_the_range_of_fp32_are_neither_infinite_nor_zero(meter: StatsBackend) -> None:
    below_one = 1 - 2.0**-40
    values = [1e300, -1e300, 1e-300, -1e-60, 0.0, -0.0, torch.inf, -torch.inf, torch.nan, below_one]
    stats, exponents = looked_at(meter, torch.tensor(values, dtype=torch.float64))
    assert (stats["zeros"], stats["nan"], stats["pos_inf"], stats["neg_inf"], stats["count"]) == (2, 1, 1, 1, 10)
    assert stats["amax"] == np.finfo(np.float32).max
    assert stats["amin_nonzero"] == 2.0**-149
    assert {place: int(count) for place, count in enumerate(exponents) if count} == {0: 4, 126: 1, 254: 2, 255: 3}


@pytest.mark.parametrize("stride", [1, 4])
def test_that_changes_of_fp64_weights_are_seen_that_fp32_cannot_hold(meter: StatsBackend, stride: int) -> None:
    before = torch.rand(20_000, dtype=torch.float64) + 1
    after = before + 2.0**-40
    after[::2] = before[::2]
    kept = meter.keep([torch.ones(5), before], [1, stride], 3)
    (rows,) = fetched([meter.compare([torch.ones(5), after], [1, stride], 3, kept)])
    stats, _ = read(finished(StatisticsTable("update", ["o", "w"], [1, stride], [5, 20_000]), rows, 1, 0.0))
    assert stats["o"]["changed"] == 0
    assert stats["w"]["changed"] == 0.5
    assert stats["w"]["amax"] == 2.0**-40
    assert stats["w"]["lost_bf16"] == 1


@pytest.mark.parametrize("every", [1, 2, 10, 34, 50, 64])
def test_that_blocks_are_left_out_at_no_interval(every: int) -> None:
    for stride in (2, 16):
        looks = [
            of_name("CpuStats").keep([torch.arange(64.0 * 64)], [stride], 1 + every * look)[0] for look in range(200)
        ]
        assert {int(block) // 64 for look in looks for block in look[: 4096 // stride : 64]} == set(range(64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_that_the_last_block_is_sampled_though_it_is_short(meter: StatsBackend, dtype: torch.dtype) -> None:
    values = torch.zeros(64 * 66 + 3, dtype=dtype)
    values[-1] = 1
    looks = fetched([meter.measure([values], [4], tick) for tick in range(40)])
    counts = {float(row[0, 8]): float(row[0, 2]) for row in looks}
    assert counts == {64.0 * 17: 0.0, 64.0 * 16: 0.0, 64.0 * 16 + 3: 1.0}


def test_that_the_norm_over_calls_of_different_sizes_is_that_of_all() -> None:
    """A head that sees a large map at a stride and small ones in full must not count the small ones for more."""
    large, small = torch.full((64 * 1000,), 10.0), torch.ones(500)
    rows = fetched([of_name("CpuStats").measure([large, small], [8, 1], 3)])[0]
    stats, _ = read(finished(StatisticsTable("activation", ["head"] * 2, [8, 1], [64_000, 500]), rows, 1, 0.0))
    assert stats["head"]["l2"] == pytest.approx(np.sqrt(100 * 64_000 + 500), rel=1e-6)
    assert stats["head"]["count"] == 64 * 125 + 500


def test_that_all_numbers_of_a_step_come_over_together() -> None:
    meter = of_name("CudaStats")
    looks = [meter.measure([torch.ones(3), torch.ones(5)], [1, 1], 0), meter.measure([torch.zeros(2)], [1], 0)]
    first, second, more = fetched([*looks, torch.tensor([torch.inf, 2.0])])
    assert (first.shape[0], second.shape[0], more.tolist()) == (2, 1, [np.inf, 2.0])
    assert first[:, 8].tolist() == [3, 5]
    assert second[0, 4] == 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_that_norms_are_those_of_torch(meter: StatsBackend, dtype: torch.dtype) -> None:
    sizes = (1, 63, 2048, 2049, 5000)
    tensors = [torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype) for size in sizes]
    tensors += [tensors[-1].view(50, 100).T, torch.zeros(0, dtype=dtype), torch.zeros(3, dtype=dtype)]
    wanted = [float(torch.linalg.vector_norm(tensor.double())) for tensor in tensors]
    np.testing.assert_allclose(meter.norms(tensors).tolist(), wanted, rtol=2e-6)


def test_that_norms_are_taken_of_types_that_stand_side_by_side(meter: StatsBackend) -> None:
    values = 3.0, 3 + 4j
    tensors = [torch.full((4,), value) for value in values] + [torch.full((4,), 2.0).bfloat16(), torch.ones(4).double()]
    assert meter.norms(tensors).tolist() == [6.0, 10.0, 4.0, 2.0]
    assert meter.norms(tensors[:2]).tolist() == [6.0, 10.0]


def test_that_norms_tell_what_is_not_finite(meter: StatsBackend) -> None:
    bad = torch.ones(3000)
    bad[2999] = torch.inf
    assert meter.norms([torch.ones(4), bad, -bad, torch.full((9,), torch.nan)]).isfinite().tolist() == [1, 0, 0, 0]


def test_that_rows_that_were_fetched_before_are_kept_beside_new_ones(meter: StatsBackend) -> None:
    (first,) = fetched([meter.measure([torch.ones(3)], [1], 0)])
    again, second = fetched([first, meter.measure([torch.ones(5)], [1], 0)])
    assert again is first
    assert isinstance(second, np.ndarray)
    assert second.shape == first.shape
