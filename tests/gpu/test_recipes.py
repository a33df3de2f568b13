"""Every bundled recipe that needs no download has on the GPU, in every precision, the losses of the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

pytest.importorskip("pydantic", reason="runs are configured with pydantic, which is not installed here")

from precgui.config.names import EMULATED
from precgui.formats.registry import blocks, formats
from tests.devices.runs import EVERY_PRECISION, SMALL, fp8_errors, refusal, run_on
from tests.gpu.place import DEVICE

pytestmark = pytest.mark.gpu
STEPS = 3
CLOSE = {"fp64": 1e-9, "fp32": 1e-4}
OTHERWISE = 3e-2


def distance(own: list[float], other: list[float]) -> float:
    """The largest relative difference of two lists of losses, where both are not NaN."""
    assert len(own) == len(other)
    assert [math.isnan(each) for each in own] == [math.isnan(each) for each in other]
    pairs = [(a, b) for a, b in zip(own, other, strict=True) if a != b and not math.isnan(a)]
    return max((abs(a - b) / max(abs(b), 1e-30) for a, b in pairs), default=0.0)


@pytest.mark.parametrize("precision", EVERY_PRECISION)
@pytest.mark.parametrize("recipe", SMALL)
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
    assert found <= CLOSE.get(precision, OTHERWISE), (own.losses, other.losses)
    assert own.incidents == other.incidents


FORMATS = [name for name in (*formats(), *blocks()) if name not in ("fp64", "fp32")]


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
    assert found <= OTHERWISE, (own.losses, other.losses)


@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])
def test_that_native_fp8_layers_are_their_emulation(scaling: str, tell: Callable[[str], None]) -> None:
    errors, note = fp8_errors(DEVICE, f"precision_options.fp8_scaling={scaling}")
    tell(f"fp8 {scaling}: {', '.join(f'{each:.1e}' for each in errors)} in result and gradients. {note}")
    assert max(errors) < 1e-2
