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

_MOST_REASONS, _LONGEST = 8, 400  # lines on a failure, characters of a line


@pytest.fixture(autouse=True)
def needs_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]) -> None:
    """Skips without a GPU; what a test keeps goes to its own folder."""
    record_property("told", "")  # so that its report is known as one of this folder
    if not REHEARSED and not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    monkeypatch.setenv("PRECGUI_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PRECGUI_STATE", str(tmp_path / "state"))


_CONFIGS: list[pytest.Config] = []


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(2)  # workers share the machine, and the load is the GPU's
    _CONFIGS.append(config)


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Keeps a line on what was seen, which is printed when its test ends."""
    return lambda line: record_property("told", line)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What was seen, and why a test failed, at once: a part of the report that is ended keeps it."""
    reporter = _CONFIGS[0].pluginmanager.get_plugin("terminalreporter")
    is_own = any(name == "told" for name, _ in report.user_properties)
    if reporter is None or not is_own or not (report.when == "call" or report.failed):  # a worker of xdist has none
        return
    seen = [f"SEEN {line}" for name, line in report.user_properties if name == "told" and line]
    reasons = [line for line in report.longreprtext.splitlines() if line.startswith("E ")] if report.failed else []
    failed = [f"WHY {line[:_LONGEST]}" for line in (report.nodeid, *reasons[:_MOST_REASONS])] if report.failed else []
    if seen or failed:
        reporter.ensure_newline()
        for line in (*seen, *failed):
            reporter.write_line(line)


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
