"""Every bundled recipe that needs no download has on the GPU, in every precision, the losses of the CPU."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest

pytest.importorskip("pydantic", reason="runs are configured with pydantic, which is not installed here")

from precgui.config.names import EMULATED
from precgui.config.recipes import RECIPES
from precgui.formats.model import FloatFormat, IntFormat
from precgui.formats.registry import blocks, formats
from tests.devices.runs import EVERY_PRECISION, SMALL, Ran, fp8_errors, refusal, run_on
from tests.gpu.place import ALL, DEVICE, IS_HERE

pytestmark = pytest.mark.gpu
STEPS = 3
# By how much losses may differ from those of the CPU. FP64 and FP32 are added in another order. In TF32, FP16 and BF16
# each operand and each result is rounded, which may be decided otherwise where the last digit of FP32 differs: some
# half spacings of the format.
CLOSE = {
    "fp64": 1e-12, "fp32": 1e-5, "tf32": 2**-9, "fp16-amp": 2**-8, "fp16-pure": 2**-8,
    "bf16-amp": 2**-6, "bf16-pure": 2**-6, "bf16-sr": 2**-6,
}  # fmt: skip


def distance(own: list[float], other: list[float]) -> float:
    """The largest relative difference of two lists of losses, where both are not NaN."""
    assert len(own) == len(other)
    assert [math.isnan(each) for each in own] == [math.isnan(each) for each in other]
    pairs = [(a, b) for a, b in zip(own, other, strict=True) if a != b and not math.isnan(a)]
    return max((abs(a - b) / max(abs(b), 1e-30) for a, b in pairs), default=0.0)


OPERANDS = {
    "fp8": "e5m2",
    "mxfp8": "mxfp8_e4m3",
    "mxfp6": "mxfp6_e2m3",
    **{f"int{bits}-qat": f"int{bits}" for bits in (8, 4, 2, 1)},
}  # the coarsest format of operands


def close(precision: str) -> float:
    """See CLOSE. Where operands alone are rounded, few decisions differ: half a spacing beside the largest number."""
    if precision in CLOSE:
        return CLOSE[precision]
    name = OPERANDS.get(precision, precision.removeprefix(EMULATED))
    chosen = formats()[blocks()[name].element if name in blocks() else name]
    if isinstance(chosen, FloatFormat):
        return 2.0 ** -(chosen.mantissa_bits + 1)
    return 2.0**-chosen.bits if isinstance(chosen, IntFormat) else 0.5  # of a few numbers


ALWAYS = ("bf16-amp", "fp16-amp", "fp8")
ROWS = [
    (recipe, precision)
    for recipe, precision in itertools.product(SMALL if IS_HERE else (), EVERY_PRECISION)  # not 290 skipped tests
    if ALL or recipe in ("digits-quick", "gpt-quick") or precision in (*ALWAYS, RECIPES[recipe][1].precision)
]


@pytest.mark.parametrize(("recipe", "precision"), ROWS)
def test_that_a_recipe_has_the_losses_of_the_cpu(recipe: str, precision: str, tell: Callable[[str], None]) -> None:
    words = (*SMALL[recipe], f"precision={precision}", "threads=2")
    own, other = (run_on(device, recipe, *words, steps=STEPS) for device in (DEVICE, "cpu"))
    if sentence := refusal(recipe, precision):
        assert own.refused == other.refused == sentence
        return
    assert own.refused == other.refused == ""
    assert len(own.losses) == STEPS
    found = distance(own.losses, other.losses)
    tell(f"{recipe} {precision}: losses differ by {found:.1e} of the CPU's")
    assert found <= close(precision), (own.losses, other.losses)
    assert in_modules(own) == in_modules(other)


FORMATS = sorted({*formats(), *blocks()} - {"fp64", "fp32"})


@pytest.mark.parametrize("name", FORMATS)
def test_that_emulated_products_have_the_losses_of_the_cpu(name: str, tell: Callable[[str], None]) -> None:
    words = (f"precision={EMULATED}{name}", "threads=2")
    own, other = (run_on(device, "digits-quick", *words, steps=STEPS) for device in (DEVICE, "cpu"))
    assert own.refused == other.refused
    if own.refused:
        tell(f"emulated:{name}: refused. {own.refused}")
        return
    found = distance(own.losses, other.losses)
    tell(f"emulated:{name}: losses differ by {found:.1e} of the CPU's")
    assert found <= close(EMULATED + name), (own.losses, other.losses)


def in_modules(ran: Ran) -> list[tuple[int, str, str]]:
    """What was not finite, by module: which of its parameters comes first depends on the kernels."""
    return [(step, kind, name.rpartition(".")[0]) for step, kind, name in ran.incidents]


@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])
def test_that_native_fp8_layers_are_their_emulation(scaling: str, tell: Callable[[str], None]) -> None:
    errors, note = fp8_errors(DEVICE, f"precision_options.fp8_scaling={scaling}")
    tell(f"fp8 {scaling}: {', '.join(f'{each:.1e}' for each in errors)} in result and gradients. {note}")
    assert all(error < 1e-2 for error in errors), errors  # a maximum may leave out NaN
