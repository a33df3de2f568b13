"""Short runs for the engine's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from precgui import config
from precgui.engine.qat import measure
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
    """Train the default recipe on the CPU with the settings given; returns every event."""

    def run(*settings: str, stopped: Callable[[], bool] = lambda: False) -> list[Event]:
        events: list[Event] = []
        train(config.load("digits-quick", ["device=cpu", "threads=1", *settings]), events.append, stopped)
        return events

    return run
