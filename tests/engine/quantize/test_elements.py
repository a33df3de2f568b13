"""The fast form against ml_dtypes, NumPy, gfloat and the exact form."""

from __future__ import annotations

import gfloat
import numpy as np
import pytest
import torch

from precgui.engine.quantize import device as on_device
from precgui.engine.quantize import torch_form
from precgui.engine.quantize.elements import quantize
from precgui.engine.quantize.float_kernels import TILE, constants, is_plain, loop
from precgui.engine.quantize.plan import SINGLE, make_plan
from precgui.formats.arrays import quantize_array
from precgui.formats.registry import UnknownFormatError, get
from precgui.formats.rounding import OVERFLOWS, ROUNDINGS, CastPolicy, Overflow, RoundingMode, stream_keys
from tests.formats.references import GFLOAT_TF32, ML_DTYPES, all_values, bits_equal, hard_inputs

RNG = np.random.default_rng(11)
PATTERNS = RNG.integers(0, 2**32, 40_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
BF16 = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
with np.errstate(all="ignore"):
    FP16 = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
EXACT_NAMES = ["fp64", "tf32", "bf16", "fp16", "e4m3fn", "e4m3fnuz", "e2m1", "ue4m3", "e8m0", "e5m7", "e9m4", "e11m30",
               "e0m4", "e5m0", "e3m20", "e8m23", "e5m23", "e7m40", "e5m112", "e11m53", "e0m30", "int8", "mxint8", "nf4",
               "sign1", "e4m3b20", "e12m9"]  # fmt: skip


def _torch(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


@pytest.mark.parametrize("name", [n for n in ML_DTYPES if n != "e8m0"])
def test_that_every_pattern_and_every_tie_rounds_as_in_ml_dtypes(name: str) -> None:
    inputs = np.concatenate([PATTERNS, BF16, FP16, hard_inputs(all_values(name, get(name).bits), limit=70_000)])
    with np.errstate(all="ignore"):
        theirs = inputs.astype(ML_DTYPES[name]).astype(np.float32)
    ours = quantize(_torch(inputs), name, nan="negative_zero").numpy()
    assert bits_equal(ours, theirs).all()


def test_that_tf32_rounds_as_in_gfloat() -> None:
    inputs = np.concatenate([PATTERNS[:20_000], BF16[::5], FP16[::5]])
    with np.errstate(all="ignore"):
        theirs = gfloat.round_ndarray(GFLOAT_TF32, inputs.astype(np.float64))
    assert bits_equal(quantize(_torch(inputs), "tf32").numpy(), theirs).all()


@pytest.mark.parametrize("name", ["bf16", "fp16", "e5m2", "e4m3fnuz", "e5m2fnuz"])
def test_that_torch_casts_agree(name: str) -> None:
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "e5m2": torch.float8_e5m2,
              "e4m3fnuz": torch.float8_e4m3fnuz, "e5m2fnuz": torch.float8_e5m2fnuz}  # fmt: skip
    inputs = _torch(np.concatenate([PATTERNS, BF16, FP16]))
    assert bits_equal(quantize(inputs, name).numpy(), inputs.to(dtypes[name]).float().numpy()).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", EXACT_NAMES)
def test_that_the_fast_form_gives_the_answers_of_the_exact_form(name: str, rounding: RoundingMode, dtype: type) -> None:
    with np.errstate(invalid="ignore"):
        values = np.concatenate([PATTERNS[:3000], BF16[::40], FP16[::40]]).astype(dtype)
    if dtype is np.float64:
        values = np.concatenate([values, RNG.integers(0, 2**64, 2000, dtype=np.uint64).view(np.float64)])
    for overflow in OVERFLOWS:
        ours = quantize(_torch(values), name, rounding=rounding, overflow=overflow, seed=5, nan="negative_zero").numpy()
        with np.errstate(all="ignore"):
            exact = quantize_array(values, get(name), CastPolicy(rounding, overflow), seed=5).astype(dtype)
        assert bits_equal(ours, exact).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", [*EXACT_NAMES, "e5m2", "e5m2fnuz", "int4", "uint8"])
def test_that_the_torch_form_gives_the_same_bits(name: str, rounding: RoundingMode, dtype: type) -> None:
    with np.errstate(invalid="ignore"):
        values = np.concatenate([PATTERNS[:4000], BF16[::20], FP16[::20]]).astype(dtype)
    if dtype is np.float64:
        values = np.concatenate([values, RNG.integers(0, 2**64, 2000, dtype=np.uint64).view(np.float64)])
    for overflow in OVERFLOWS:
        policy = CastPolicy(rounding, overflow)
        ours = quantize(_torch(values), name, rounding=rounding, overflow=overflow, seed=3).numpy()
        form = torch_form.rounded(_torch(values), get(name), policy, 3)
        if form is None:
            form = on_device.rounded_on_device(_torch(values), get(name), policy, 3)
        assert bits_equal(form.numpy(), ours)[~np.isnan(values)].all()


def test_that_all_but_rare_formats_have_a_torch_form_in_single_precision() -> None:
    values = _torch(PATTERNS[:100])
    left = {
        (name, rounding)
        for name in EXACT_NAMES
        for rounding in ROUNDINGS
        if torch_form.rounded(values, get(name), CastPolicy(rounding), 0) is None
    }
    assert left == {("e5m112", rounding) for rounding in ROUNDINGS} | {("sign1", "toward_zero")}


def test_that_tensor_operations_serve_double_precision_too() -> None:
    values = torch.randn(2000, dtype=torch.float64) * 100
    for rounding in ("nearest_even", "stochastic", "up"):
        ours = quantize(values, "e5m12", rounding=rounding, seed=3)
        other = on_device.rounded_on_device(values, get("e5m12"), CastPolicy(rounding), 3)
        assert torch.equal(ours, other)


def test_that_shape_dtype_and_strides_of_any_tensor_are_served() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        tensor = torch.randn(6, 8, dtype=dtype).t()[::2]
        result = quantize(tensor, "e4m3fn")
        assert (result.shape, result.dtype) == (tensor.shape, dtype)
        assert torch.equal(result, quantize(tensor.contiguous(), "e4m3fn"))
    assert quantize(torch.tensor(0.3), "e2m1").shape == ()
    assert quantize(torch.zeros(0, 3), "e2m1").shape == (0, 3)


@pytest.mark.parametrize("rounding", ["nearest_even", "up", "stochastic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_that_the_order_in_memory_stays_and_changes_no_value(dtype: torch.dtype, rounding: RoundingMode) -> None:
    plain = torch.randn(3, 5, 4, 6).to(dtype)
    wanted = quantize(plain, "e4m3fn", rounding=rounding, seed=2)
    for tensor in (
        plain.contiguous(memory_format=torch.channels_last),
        plain[:, 1:, ::2],
        plain[:1].expand(3, 5, 4, 6),
    ):
        rounded = quantize(tensor, "e4m3fn", rounding=rounding, seed=2)
        assert torch.equal(rounded, quantize(tensor.contiguous(), "e4m3fn", rounding=rounding, seed=2))
        assert rounded.stride() == torch.empty_like(tensor).stride()
    assert torch.equal(
        quantize(plain.to(memory_format=torch.channels_last), "e4m3fn", rounding=rounding, seed=2), wanted
    )


@pytest.mark.parametrize("rounding", [each for each in ROUNDINGS if each != "stochastic"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_that_the_values_of_a_code_book_stay(dtype: type, rounding: RoundingMode) -> None:
    book = np.array([float(value) for value in get("nf4").values], dtype)
    assert quantize(_torch(book), "nf4", rounding=rounding).tolist() == book.tolist()
    tiny = quantize(_torch(np.array([-1e-30, 1e-30], dtype)), "nf4", rounding=rounding).numpy()
    zero, place = np.zeros((), dtype), int(np.flatnonzero(book == 0)[0])
    outer = {"down": (book[place - 1], zero), "up": (zero, book[place + 1])}
    assert tiny.tolist() == list(outer.get(rounding, (zero, zero) if rounding != "to_odd" else tiny))


@pytest.mark.parametrize("rounding", ["to_odd", "nearest_away", "toward_zero", "up", "down", "stochastic"])
@pytest.mark.parametrize("name", ["e2m1", "e3m2", "e4m3fn"])
def test_that_nan_stays_nan_in_every_rounding(name: str, rounding: RoundingMode) -> None:
    rounded = quantize(torch.tensor([float("nan"), 1.0]), name, rounding=rounding, seed=1)
    assert rounded.isnan().tolist() == [True, False]


def test_that_nan_stays_nan_unless_another_convention_is_asked_for() -> None:
    values = torch.tensor([float("nan"), -1.0])
    for name in ("fp16", "e4m3fn", "e2m1", "int8", "nf4"):
        assert quantize(values, name)[0].isnan()
    assert quantize(values, "e2m1", nan="max")[0] == 6
    assert quantize(values, "int8", nan="zero")[0] == 0
    assert quantize(values, "e4m3fn", nan="zero")[0].isnan()


def test_that_saturate_is_short_for_the_overflow_policy() -> None:
    values = torch.tensor([464.0, 465.0, float("inf"), -1e9])
    assert quantize(values, "e4m3fn", saturate=True).tolist() == [448, 448, 448, -448]
    assert quantize(values, "e4m3fn").isnan().tolist() == [False, True, True, True]


def test_that_the_gradient_passes_straight_through() -> None:
    values = torch.tensor([0.3, 500.0, -7.0], requires_grad=True)
    (quantize(values, "e4m3fn", saturate=True) * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [1, 2, 3]
    assert not quantize(values.detach(), "e4m3fn").requires_grad


def test_that_bad_requests_are_refused_with_a_reason() -> None:
    with pytest.raises(TypeError, match="int32"):
        quantize(torch.zeros(2, dtype=torch.int32), "fp16")
    with pytest.raises(ValueError, match="'sideways' is not known"):
        quantize(torch.zeros(2), "fp16", rounding="sideways")
    with pytest.raises(UnknownFormatError):
        quantize(torch.zeros(2), "fp17")


@pytest.mark.parametrize("name", ["bf16", "e4m3fn", "e2m1"])
def test_that_stochastic_rounding_is_unbiased_and_keeps_to_the_neighbours(name: str) -> None:
    values = (torch.rand(4000, generator=torch.Generator().manual_seed(1)) * 4 + 0.25).repeat(4)
    low, high = quantize(values, name, rounding="down"), quantize(values, name, rounding="up")
    runs = torch.stack([quantize(values, name, rounding="stochastic", seed=seed) for seed in range(24)]).double()
    assert ((runs == low) | (runs == high)).all()
    gap = (high - low).double()
    inside = gap > 0
    errors = ((runs - values.double()) / gap.clamp(min=1e-30))[:, inside]
    assert abs(float(errors.mean())) < 3 * float(errors.std()) / errors.numel() ** 0.5
    exact = quantize(values, name)
    assert torch.equal(quantize(exact, name, rounding="stochastic", seed=7), exact)


def test_that_stochastic_results_depend_on_the_seed_alone() -> None:
    values = torch.randn(3 << 20)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = quantize(values, "e4m3fn", rounding="stochastic", seed=9)
        torch.set_num_threads(3)
        shared = quantize(values, "e4m3fn", rounding="stochastic", seed=9)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone, shared)
    assert not torch.equal(alone, quantize(values, "e4m3fn", rounding="stochastic", seed=10))
    torch.manual_seed(4)
    first = quantize(values, "e4m3fn", rounding="stochastic")
    torch.manual_seed(4)
    assert torch.equal(first, quantize(values, "e4m3fn", rounding="stochastic"))


def test_that_flushing_subnormals_to_zero_does_not_change_the_result() -> None:
    values = _torch(np.concatenate([PATTERNS[:5000], np.float32(1e-40) * RNG.normal(size=500).astype(np.float32)]))
    wanted = {name: quantize(values, name).view(torch.int32) for name in ("bf16", "fp16", "e4m3fn")}
    flushing = torch.set_flush_denormal(True)
    try:
        found = {name: quantize(values, name).view(torch.int32) for name in wanted}
    finally:
        torch.set_flush_denormal(False)
    assert flushing
    for name, result in wanted.items():
        assert torch.equal(found[name], result)


def test_that_the_keys_of_the_draws_are_those_of_the_exact_form() -> None:
    plan = make_plan(get("bf16"), CastPolicy("stochastic"), SINGLE)
    assert plan.method == "bit_mask"
    assert stream_keys(1, 0) != stream_keys(1, 1)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_that_tiles_with_and_without_subnormals_agree_with_the_array_form(rounding: RoundingMode) -> None:
    values = np.random.default_rng(4).normal(size=3 * TILE + 37).astype(np.float32)
    values[TILE : TILE + 900] *= np.float32(2.0**-130)  # the second tile has subnormals, the others have none
    values[5:9] = [0.0, -0.0, np.inf, np.nan]
    ours = quantize(_torch(values), "e9m4", rounding=rounding, seed=3).numpy()
    assert bits_equal(ours, quantize_array(values, get("e9m4"), CastPolicy(rounding), 3)).all()


@pytest.mark.parametrize("overflow", OVERFLOWS)
@pytest.mark.parametrize("name", ["bf16", "fp16", "e4m3fn", "e2m1", "tf32"])
def test_that_the_short_end_of_a_loop_does_what_the_long_one_does(name: str, overflow: Overflow) -> None:
    plan = make_plan(get(name), CastPolicy("nearest_even", overflow), SINGLE)
    assert is_plain(plan)
    bits = np.concatenate([PATTERNS, BF16, FP16]).view(np.uint32)
    results = []
    for plain in (False, True):
        results.append(np.empty_like(bits))
        loop(SINGLE, "nearest", plan.method, plain)(bits, results[-1], constants(plan), ())
    assert np.array_equal(*results)


def test_that_loops_take_the_long_end_where_signs_or_kinds_of_overflow_differ() -> None:
    for name in ("ue4m3", "e4m3fnuz"):
        assert not is_plain(make_plan(get(name), CastPolicy("nearest_even"), SINGLE))
    assert not is_plain(make_plan(get("fp16"), CastPolicy("up"), SINGLE))
    assert not is_plain(make_plan(get("e9m4"), CastPolicy("nearest_even", "nan"), SINGLE))


@pytest.mark.parametrize("rounding", ["nearest_even", "up", "stochastic"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 5), (2, 1, 5, 5), (4, 8, 1, 1)])
def test_that_both_forms_keep_the_order_in_memory(shape: tuple[int, ...], rounding: RoundingMode) -> None:
    plain = torch.randn(shape)
    turned = [plain.to(memory_format=torch.channels_last), plain.transpose(1, 3), plain[:, :, ::2], plain]
    for tensor in turned:
        own = quantize(tensor, "e4m3fn", rounding=rounding, seed=3)
        scripted = torch_form.quantize(tensor, "e4m3fn", rounding=rounding, seed=3)
        assert torch.equal(own, scripted)
        assert own.stride() == scripted.stride()
        assert own.is_contiguous(memory_format=torch.channels_last) or tensor is not turned[0]
