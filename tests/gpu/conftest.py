"""Tests of what only an NVIDIA GPU can show; without one they are skipped. They need torch and pytest, and no Qt."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from precgui.engine.torch_facts import torch_facts
from precgui.hardware.detect import detect
from precgui.hardware.device import Device
from tests.gpu.place import REHEARSED


@pytest.fixture(autouse=True)
def needs_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips without a GPU; what a test keeps goes to its own folder."""
    if not REHEARSED and not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    monkeypatch.setenv("PRECGUI_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PRECGUI_STATE", str(tmp_path / "state"))


def pytest_configure() -> None:
    torch.set_num_threads(2)  # the machine is shared by workers of xdist, and loads are those of a GPU


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Keeps a line on what was seen, which stands at the end of what pytest prints."""
    return lambda line: record_property("told", line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.stats.get(kind, [])]
    lines = [str(line) for each in reports for name, line in each.user_properties if name == "told"]
    if lines:
        terminalreporter.section("what was seen")
        for line in sorted(lines):
            terminalreporter.write_line(f"SEEN {line}")


@pytest.fixture
def gpu() -> Device:
    """The first GPU of torch as precgui detects it."""
    if REHEARSED:
        pytest.skip("needs an NVIDIA GPU: this is a rehearsal on another device")
    found = detect(torch_facts()).device("cuda:0")
    assert found is not None
    return found


@contextmanager
def _products() -> Iterator[None]:
    """BF16 products of 8192^3 one after the other, in a thread, until the block ends."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    ended = threading.Event()

    def multiply() -> None:
        while not ended.is_set():
            for _ in range(20):
                torch.mm(a, a)
            torch.cuda.synchronize()

    thread = threading.Thread(target=multiply)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.fixture
def load():  # a context manager
    """`with load():` keeps the tensor cores busy."""
    return _products
