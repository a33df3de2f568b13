"""Short runs for the engine's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from precgui import config
from precgui.engine.qat import measure
from precgui.engine.torch_private import has_avx2, scaled_mm
from precgui.engine.train import train
from precgui.events import Event

Record = Callable[..., list[Event]]


@pytest.fixture(scope="session", autouse=True)
def latency_of_few_rounds() -> Iterator[None]:
    """How fast a converted model is, is no matter of these tests: two rounds instead of a hundred."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "_FEWEST", 2)
        patch.setattr(measure, "_MOST", 2)
        yield


@pytest.fixture
def record() -> Record:
    """Train a recipe on the CPU, the default one unless another is given, with these settings; returns every event."""

    def run(*settings: str, recipe: str = "digits-quick", stopped: Callable[[], bool] = lambda: False) -> list[Event]:
        events: list[Event] = []
        train(config.load(recipe, ["device=cpu", "threads=1", *settings]), events.append, stopped)
        return events

    return run


@pytest.fixture(scope="session")
def fp8_products() -> None:
    """Skip where torch has no FP8 product: with AMX it asks oneDNN, also where that is limited to AVX2."""
    has_avx2()  # with ATEN_CPU_CAPABILITY set torch asks oneDNN only after it was asked for the instructions
    eight, one = torch.eye(16).to(torch.float8_e4m3fn), torch.ones(())
    try:
        scaled_mm(eight, eight.t(), scale_a=one, scale_b=one, out_dtype=torch.float32)
    except RuntimeError as error:
        if "primitive descriptor" not in str(error):
            raise
        pytest.skip("oneDNN, limited to older instructions than torch sees, has no FP8 product")
